"""Preset files, one TOML file a setting in deploy/presets: found by name, read and checked.

What the files hold is in deploy/presets/README.md. Files there without a table `[paper]` are
run-configs, which `flwr run --run-config` reads and presets build on by `base`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import DataError
from data.text_files import read_user_text
from deploy.compare.fields import (
    read_list,
    read_mapping,
    read_number,
    read_optional,
    read_text,
    refuse_unknown,
)
from deploy.reproduce.preset import SCALES, Measured, Preset, Published, Scale, Source, label_of
from deploy.reproduce.quantities import check_quantity
from deploy.run import flattened, read_run_config
from strategies.base.options import ConfigError
from strategies.base.suggestions import nearest

PRESETS = Path(__file__).parents[1] / "presets"
COMPARED = ("reference", "differences", "target-accuracy")
"""Keys that go to the comparison as they are."""

_KEYS = (
    *("base", "clients", "methods", "settings", "not-registered", "not-built", "claims"),
    *("cannot-be-had", "paper", "expected", "measured", "scale", *COMPARED),
)


def preset_names(folder: Path = PRESETS) -> list[str]:
    """Return the names of all presets, sorted."""
    found = folder.glob("*.toml")
    return sorted(path.stem for path in found if "\n[paper]\n" in path.read_text("utf-8"))


def find_preset(name: str, folder: Path = PRESETS) -> Preset:
    """Read a preset by its name.

    Raises
    ------
    ConfigError
        If there is none, naming those that begin like it or the nearest one; or for the first
        thing wrong in its file.
    """
    path = folder / f"{name}.toml"
    known = preset_names(folder)
    if name in known:
        return read_preset(path)
    of_paper = [other for other in known if other.startswith(name.partition("-")[0] + "-")]
    if longer := [other for other in of_paper if other.startswith(f"{name}-")]:
        hint = f"presets that begin so: {', '.join(longer)}"
    elif near := nearest(name, of_paper or known, cutoff=0.75):
        hint = f"did you mean {near}?"
    else:
        hint = f"there are {', '.join(of_paper or known)}"
    if path.is_file():
        hint = f"it is a run-config for `flwr run --run-config`; {hint}"
    raise ConfigError(f"{name!r}: no such preset; {hint}")


def read_preset(path: Path) -> Preset:
    """Read and check one file; see `find_preset`."""
    try:
        return _checked(path, _content(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_user_text(path))
    except (DataError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a preset: {error}") from error


def _checked(path: Path, top: Mapping[str, Any]) -> Preset:
    refuse_unknown("key", top, _KEYS)
    methods = tuple(read_list(top.get("methods", []), "methods"))
    absent = _texts(top, "not-registered")
    not_built = str(top.get("not-built", ""))
    if bool(methods) == bool(not_built):
        raise ConfigError("give methods, or not-built with the reason why there are none")
    labels = [*map(label_of, methods), *absent]
    expected = read_mapping(top.get("expected", {}), "expected")
    if not not_built:
        refuse_unknown("method in expected", expected, labels)
    return Preset(
        name=path.stem,
        source=_source(top.get("paper")),
        methods=methods,
        absent=absent,
        not_built=not_built,
        expected={label: _cells(label, cells) for label, cells in expected.items()},
        claims=_texts(top, "claims"),
        gaps=_texts(top, "cannot-be-had"),
        measured=tuple(_measured(item) for item in read_list(top.get("measured", []), "measured")),
        scales={} if not_built else _scales(path, top, [*map(label_of, methods)]),
        compared={key: top[key] for key in COMPARED if key in top},
    )


def _scales(path: Path, top: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Scale]:
    base = {} if "base" not in top else read_run_config(path.parent / str(top["base"]))
    for own in ("method", "min-clients"):
        base.pop(own, None)
    full = Scale(
        "the paper's scale",
        read_number(top, "clients", int, 1) if "clients" in top else _no_clients(),
        base | dict(flattened(read_mapping(top.get("settings", {}), "settings"))),
    )
    scales = {"full": full}
    for name, item in read_mapping(top.get("scale", {}), "scale").items():
        refuse_unknown("scale", [name], SCALES[1:])
        fields = read_mapping(item, f"scale.{name}")
        refuse_unknown(
            f"key of scale.{name}", fields, ("words", "clients", "settings", "overrides")
        )
        changed = dict(
            flattened(read_mapping(fields.get("settings", {}), f"scale.{name}.settings"))
        )
        clients = read_optional(fields, "clients", int, 1) or full.clients
        words = read_text(fields.get("words"), f"scale.{name}.words")
        overrides = _overrides(fields.get("overrides", {}), f"scale.{name}.overrides", labels)
        scales[name] = Scale(words, clients, {**full.settings, **changed}, overrides)
    return scales


def _overrides(value: object, where: str, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    given = read_mapping(value, where)
    refuse_unknown(f"method in {where}", given, labels)
    return {
        label: dict(flattened(read_mapping(keys, f"{where}.{label}")))
        for label, keys in given.items()
    }


def _no_clients() -> int:
    raise ConfigError("missing: clients")


def _source(value: object) -> Source:
    fields = read_mapping(value, "paper")
    refuse_unknown("key of paper", fields, ("name", "table", "text"))
    return Source(*(read_text(fields.get(k), f"paper.{k}") for k in ("name", "table", "text")))


def _texts(top: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(read_text(text, f"an item of {key}") for text in read_list(top.get(key, []), key))


def _cells(label: str, value: object) -> dict[str, Published]:
    cells = read_mapping(value, f"expected.{label}")
    found = {}
    for quantity, number in cells.items():
        check_quantity(quantity, f"expected.{label}")
        numbers = number if isinstance(number, list) else [number]
        if not 1 <= len(numbers) <= 2 or not all(type(n) in (int, float) for n in numbers):
            raise ConfigError(
                f"expected.{label}.{quantity} = {number!r}: expected a number, or a number and its "
                "spread in a list"
            )
        found[quantity] = Published(*map(float, numbers))
    return found


def _measured(value: object) -> Measured:
    fields = read_mapping(value, "an item of measured")
    refuse_unknown("key of measured", fields, ("machine", "command", "seconds-a-round"))
    seconds = read_mapping(fields.get("seconds-a-round"), "measured.seconds-a-round")
    machine, command = (read_text(fields.get(k), f"measured.{k}") for k in ("machine", "command"))
    return Measured(machine, command, {k: float(v) for k, v in seconds.items()})
