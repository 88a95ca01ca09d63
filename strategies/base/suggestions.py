"""What a key or value that is not known was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

SYNONYMS = (
    frozenset(("lambda", "lamda", "lam", "mu", "weight", "coefficient", "coef", "strength")),
    frozenset(("tau", "temperature", "temp")),
    frozenset(("epochs", "epoch", "steps", "step", "iterations")),
    frozenset(("lr", "rate", "eta")),
    frozenset(("dim", "width", "size", "dimension")),
)
"""Words by which papers and other programs call the same thing."""


def nearest(text: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known text that is spelt most alike; case, blanks, `_` and `-` do not count."""
    spelt = {_plain(word): word for word in known}
    found = difflib.get_close_matches(_plain(text), spelt, n=1, cutoff=cutoff)
    return spelt[found[0]] if found else None


def key_hint(key: str, known: Mapping[str, object], method: str = "") -> str:
    """Return what to say after an unknown key: a key it resembles, or those of its method.

    Parameters
    ----------
    key : str
        The unknown key.
    known : Mapping of str
        All known keys.
    method : str, optional
        The running method, whose own keys a key without a prefix may have meant.
    """
    prefix, dot, name = key.partition(".")
    owner = prefix if dot else method
    own = [k.partition(".")[2] for k in known if owner and k.startswith(owner + ".")]
    if dot and own:  # a key of this method, whatever other methods have
        found = _alike(name, own)
        if not found:
            return f"; the keys of {prefix} are {', '.join(own)}"
        return "; did you mean " + " or ".join(f"{prefix}.{word}" for word in found) + "?"
    if key in own:
        return f"; did you mean {method}.{key}?"
    near = nearest(key, known, cutoff=0.5)
    if near is None and (found := _alike(key, own)):
        near = f"{method}.{found[0]}"
    return f"; did you mean {near}?" if near else ""


def _alike(name: str, own: list[str]) -> list[str]:
    """Return keys of one method that are spelt like a name or mean the same; none if none does."""
    if near := nearest(name, own, cutoff=0.75):
        return [near]
    groups = [group for group in SYNONYMS if group & set(name.split("-"))]
    if found := [word for word in own if any(group & set(word.split("-")) for group in groups)]:
        return found[:3]
    near = nearest(name, own, cutoff=0.5)
    return [near] if near else []


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", "").replace("-", "")
