"""What a comparison file asks for: read, checked as a whole, and laid out as planned runs."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from strategies.base.options import ConfigError
from strategies.base.run_config import NAME, RunConfig, parse_run_config

OWN_KEYS = ("method", "seed", "output-dir", "run-name", "resume")
"""Run-config keys that the comparison itself sets."""

DAY = 86_400.0

_FILE_KEYS = (
    "name", "output-dir", "clients", "methods", "seeds", "settings", "variants",
    "target-accuracy", "differences", "parallel-workers", "run-timeout",
)  # fmt: skip
_REQUIRED = ("name", "output-dir", "clients", "methods", "seeds")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One method under comparison, or one variant: a label and the run-config keys it sets."""

    label: str
    settings: Mapping[str, Any]
    method: str = ""


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Attributes
    ----------
    variant, label, method : str
        Where it stands in the table; `variant` is "" in a comparison without variants.
    seed : int
        Its seed.
    config : dict
        Its run-config overrides, `run-name` and `output-dir` included.
    run : RunConfig
        The same, resolved and checked.
    """

    variant: str
    label: str
    method: str
    seed: int
    config: dict[str, Any]
    run: RunConfig

    @property
    def name(self) -> str:
        """The run's name: `<name>-<variant>-<label>-seed<k>`."""
        return self.run.run_name

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self.run.run_root / self.name


@dataclasses.dataclass(frozen=True)
class Plan:
    """A whole comparison.

    Attributes
    ----------
    name : str
        Names the runs and the output files.
    output : Path
        Directory of both.
    clients : int
        Clients of every run.
    runs : tuple of PlannedRun
        In the order in which they run: seed by seed, so that early results span all methods.
    target : float, optional
        Accuracy whose cost is asked for.
    differences : tuple of (str, str)
        Pairs of method labels whose accuracies are subtracted client by client.
    workers : int, optional
        Processes that compute clients at once; None is one per core.
    run_timeout : float
        Seconds that one run may take.
    """

    name: str
    output: Path
    clients: int
    runs: tuple[PlannedRun, ...]
    target: float | None = None
    differences: tuple[tuple[str, str], ...] = ()
    workers: int | None = None
    run_timeout: float = DAY


def read_plan(path: Path) -> Plan:
    """Read and check a comparison file.

    Raises
    ------
    ConfigError
        For the first thing wrong, with the nearest accepted spelling; nothing has started then.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    try:
        return make_plan(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def make_plan(content: object) -> Plan:
    """Check the content of a comparison file and lay out its runs; see `read_plan`."""
    top = _mapping(content, "the file")
    _refuse_unknown("key", top, _FILE_KEYS)
    missing = [key for key in _REQUIRED if top.get(key) is None]
    if missing:
        needed = ", ".join(_REQUIRED)
        raise ConfigError(f"missing: {', '.join(missing)}; a comparison needs {needed}")
    name, output = _text(top["name"], "name"), _text(top["output-dir"], "output-dir")
    clients = _number(top, "clients", int, 1)
    shared = _settings(top.get("settings"), "settings")
    methods = [_method(item) for item in _list(top["methods"], "methods")]
    variants = [_variant(item) for item in _list(top.get("variants") or [], "variants")]
    seeds = _list(top["seeds"], "seeds")
    runs = [
        _planned(name, output, clients, shared, variant, method, seed)
        for seed in seeds
        for variant in variants or [Entry("", {})]
        for method in methods
    ]
    if not runs:
        raise ConfigError("methods and seeds: give at least one of each")
    _refuse_twins([run.name for run in runs])
    return Plan(
        name=name,
        output=Path(output).expanduser(),
        clients=clients,
        runs=tuple(runs),
        target=_optional(top, "target-accuracy", float, 0.0, 1.0),
        differences=_differences(_list(top.get("differences") or [], "differences"), runs),
        workers=_optional(top, "parallel-workers", int, 1),
        run_timeout=_optional(top, "run-timeout", float, 1.0) or DAY,
    )


def _planned(
    name: str, output: str, clients: int, shared: Mapping[str, Any], variant: Entry,
    method: Entry, seed: object,
) -> PlannedRun:  # fmt: skip
    parts = [name, variant.label, method.label, f"seed{seed}"]
    config = {
        "min-clients": clients, **shared, **variant.settings, **method.settings,
        "method": method.method, "seed": seed, "output-dir": output,
        "run-name": "-".join(part for part in parts if part),
    }  # fmt: skip
    run = parse_run_config(config)
    _check_data_and_models(run)
    return PlannedRun(variant.label, method.label, method.method, run.seed, config, run)


def _check_data_and_models(run: RunConfig) -> None:
    """Refuse what `parse_run_config` leaves to the clients."""
    from data import DataError
    from models import ModelError
    from models.groups import resolve_models

    try:
        resolve_models(run.models)
        _ = run.data_spec
    except (ModelError, DataError) as error:
        raise ConfigError(str(error)) from error


def _method(item: object) -> Entry:
    from strategies.base.method import method_names

    fields = {"name": item} if isinstance(item, str) else _mapping(item, "an item of methods")
    _refuse_unknown("key of a method", fields, ("name", "label", "overrides"))
    name = _text(fields.get("name"), "name of a method")
    _refuse_unknown("method", [name], method_names())
    label = _label(fields.get("label", name), "label of a method")
    return Entry(label, _settings(fields.get("overrides"), f"overrides of {label}"), name)


def _variant(item: object) -> Entry:
    fields = _mapping(item, "an item of variants")
    _refuse_unknown("key of a variant", fields, ("label", "settings"))
    label = _label(fields.get("label"), "label of a variant")
    return Entry(label, _settings(fields.get("settings"), f"settings of {label}"))


def _differences(items: list[Any], runs: list[PlannedRun]) -> tuple[tuple[str, str], ...]:
    data = {(run.label, run.seed, run.variant): run.run.data_spec for run in runs}
    labels = list(dict.fromkeys(run.label for run in runs))
    for item in items:
        pair = _list(item, "an item of differences")
        _refuse_unknown("label in differences", pair, labels)
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigError(
                f"differences: accepted are pairs of two different labels, not {pair}"
            )
        if any(
            spec != data[pair[1], *at] for (label, *at), spec in data.items() if label == pair[0]
        ):
            raise ConfigError(f"differences: the clients of {' and '.join(pair)} have unlike data")
    return tuple(dict.fromkeys((pair[0], pair[1]) for pair in items))


def _settings(value: object, where: str) -> dict[str, Any]:
    from strategies.base.run_config import default_run_config

    settings = {} if value is None else _mapping(value, where)
    for key in settings:
        if key in OWN_KEYS:
            raise ConfigError(f"{where}: {key} is set by the comparison itself; leave it out")
    _refuse_unknown(f"run-config key in {where}", settings, default_run_config())
    return settings


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{key!r}: unknown {what}; {hint}")


def _refuse_twins(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two runs would be named {name}; give repeated methods a label of their own, and "
                "every seed and variant once"
            )


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: accepted is a mapping of names to values, not {value!r}")
    return value


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{key} = {value!r}: accepted is a list")
    return value


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} = {value!r}: accepted is a text")
    return value


def _label(value: object, key: str) -> str:
    text = _text(value, key)
    if not NAME.fullmatch(text):
        raise ConfigError(
            f"{key} = {text!r}: accepted is a name of letters, digits, '.', '_' and '-', because "
            "it becomes part of a directory's name"
        )
    return text


def _number(
    top: Mapping[str, Any], key: str, kind: type, low: float, high: float | None = None
) -> Any:
    value = top[key]
    fits = isinstance(value, int) or (kind is float and isinstance(value, float))
    if isinstance(value, bool) or not fits or value < low or (high is not None and value > high):
        words = f"{'an integer' if kind is int else 'a number'} of at least {low:g}"
        raise ConfigError(
            f"{key} = {value!r}: accepted is {words}" + (f", at most {high:g}" if high else "")
        )
    return kind(value)


def _optional(
    top: Mapping[str, Any], key: str, kind: type, low: float, high: float | None = None
) -> Any:
    return None if top.get(key) is None else _number(top, key, kind, low, high)
