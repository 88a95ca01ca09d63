"""Labels as people write them: which spellings are one class, and which are missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from data.folder_tree import name_key

MISSING = frozenset(("nan", "na", "n/a", "#n/a", "none", "null", "-", "?"))
"""What programs write in the place of a missing label, in lower case."""

MOST_CLASSES = 20_000
"""Most labels of sentences or images; more are sentences or numbers in the label's place."""
FEW = 5
"""From this many different labels on, most of them unique is a mistake, not a small sample."""

_NUMBER = re.compile(r"(-?\d+)(\.0+)?")


def label_key(label: str) -> str:
    """Return what labels are compared by: as `name_key`, and 1.0, as pandas may write 1, is 1."""
    key = name_key(label)
    number = _NUMBER.fullmatch(key)
    return number[1] if number else key


def class_names_of(labels: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return each class's most frequent spelling by key, and what is to be said of the others."""
    spellings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for label, count in Counter(labels).items():
        spellings[label_key(label)][label] += count
    names = {
        key: min(counts, key=lambda name: (-counts[name], name))
        for key, counts in spellings.items()
    }
    several = [(key, sorted(counts)) for key, counts in spellings.items() if len(counts) > 1]
    numbers = [some for key, some in several if _NUMBER.fullmatch(key)]
    others = [some for key, some in several if not _NUMBER.fullmatch(key)]
    return names, [
        *_joined_said("labels that differ in case only are one class", others),
        *_joined_said("labels that are one number are one class", numbers),
    ]


def _joined_said(what: str, several: list[list[str]]) -> list[str]:
    shown = "; ".join(", ".join(map(repr, some)) for some in several[:3])
    more = f" and {len(several) - 3} more" if len(several) > 3 else ""
    return [f"{what}: {shown}{more}"] * bool(several)
