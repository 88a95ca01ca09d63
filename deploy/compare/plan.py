"""What a comparison file asks for: read, checked as a whole, and laid out as planned runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.tasks import TaskSpec, assign_task
from deploy.compare.fields import (
    read_label,
    read_list,
    read_mapping,
    read_number,
    read_optional,
    read_text,
    refuse_unknown,
)
from deploy.yaml_files import read_yaml
from models.own_code import searching
from server_app.records.client_tasks import ClientTask, is_plain
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.run_config import RunConfig
from strategies.base.suggestions import nearest

OWN_KEYS = ("method", "seed", "output-dir", "run-name", "resume")
"""Run-config keys that the comparison itself sets."""

DAY = 86_400.0

_FILE_KEYS = (
    "name", "output-dir", "clients", "methods", "seeds", "settings", "variants",
    "target-accuracy", "reference", "differences", "parallel-workers", "gpus-per-client",
    "run-timeout", "split-per-seed",
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
    reference : str, optional
        Label of the method whose rounds to the target the others' are divided by, and from whose
        last scores their relative changes are taken.
    differences : tuple of (str, str)
        Pairs of method labels whose accuracies are subtracted client by client.
    workers : int, optional
        Processes that compute clients at once; None is one per core.
    gpus_per_client : float, optional
        Share of a GPU that each of them takes; None leaves GPUs alone.
    run_timeout : float
        Seconds that one run may take.
    """

    name: str
    output: Path
    clients: int
    runs: tuple[PlannedRun, ...]
    target: float | None = None
    reference: str | None = None
    differences: tuple[tuple[str, str], ...] = ()
    workers: int | None = None
    gpus_per_client: float | None = None
    run_timeout: float = DAY

    @property
    def federation(self) -> dict[str, float]:
        """What Flower's simulation is told of GPUs."""
        return {"client-resources-num-gpus": self.gpus_per_client} if self.gpus_per_client else {}

    @property
    def tasks(self) -> dict[str, str]:
        """The metric of every task, in their order; none where every run has one mean accuracy."""
        found: dict[str, str] = {}
        several = False
        for text in dict.fromkeys(run.run.tasks for run in self.runs):
            specs = [
                assign_task(text, client) or TaskSpec(ClientTask.task)
                for client in range(self.clients)
            ]
            own = {spec.task: spec.metric for spec in specs}
            several = several or not is_plain(own)
            found |= own
        return found if several else {}


def read_plan(path: Path) -> Plan:
    """Read and check a comparison file.

    Raises
    ------
    ConfigError
        For the first thing wrong, with the nearest accepted spelling; nothing has started then.
    """
    content = read_yaml(path, "YAML")
    try:
        return make_plan(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def make_plan(content: object) -> Plan:
    """Check the content of a comparison file and lay out its runs; see `read_plan`."""
    top = read_mapping(content, "the file")
    refuse_unknown("key", top, _FILE_KEYS)
    missing = [key for key in _REQUIRED if top.get(key) is None]
    if missing:
        needed = ", ".join(_REQUIRED)
        raise ConfigError(f"missing: {', '.join(missing)}; a comparison needs {needed}")
    name, output = read_text(top["name"], "name"), read_text(top["output-dir"], "output-dir")
    clients = read_number(top, "clients", int, 1)
    shared = _settings(top.get("settings"), "settings")
    with searching(str(shared.get("code-dir", ""))):
        methods = [_method(item) for item in read_list(top["methods"], "methods")]
    variants = [_variant(item) for item in read_list(top.get("variants") or [], "variants")]
    seeds = read_list(top["seeds"], "seeds")
    own_split = _own_split(top, [shared, *(entry.settings for entry in [*variants, *methods])])
    runs = [
        _planned(name, output, clients, settings, variant, method, seed)
        for seed in seeds
        for settings in [shared | {"partition-seed": seed} if own_split else shared]
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
        target=read_optional(top, "target-accuracy", float, 0.0, 1.0),
        reference=_reference(top, [method.label for method in methods]),
        differences=_differences(read_list(top.get("differences") or [], "differences"), runs),
        workers=read_optional(top, "parallel-workers", int, 1),
        gpus_per_client=read_optional(top, "gpus-per-client", float, 0.0, 1.0),
        run_timeout=read_optional(top, "run-timeout", float, 1.0) or DAY,
    )


def _own_split(top: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every seed divides the data anew; by default all seeds share one split."""
    wanted = top.get("split-per-seed", False)
    if not isinstance(wanted, bool):
        raise ConfigError(f"split-per-seed = {wanted!r}: expected true or false")
    if wanted and any("partition-seed" in given for given in settings):
        raise ConfigError(
            "split-per-seed: every seed is the partition-seed of its runs then; leave "
            "partition-seed out of all settings"
        )
    return wanted


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
    with searching(str(config.get("code-dir", ""))):
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
    fields = {"name": item} if isinstance(item, str) else read_mapping(item, "an item of methods")
    refuse_unknown("key of a method", fields, ("name", "label", "overrides"))
    name = read_text(fields.get("name"), "name of a method")
    own = _own_method(name)
    label = read_label(fields.get("label", name), "label of a method")
    overrides = read_mapping(fields.get("overrides") or {}, f"overrides of {label}")
    if own and (key := next((k for k in overrides if k.startswith(f"{own}.")), None)):
        raise ConfigError(
            f"overrides of {label}: flwr run does not know {key}, an option of a method of your "
            f'own; write method-options: "{key.partition(".")[2]}=..."'
        )
    return Entry(label, _settings(overrides, f"overrides of {label}"), name)


def _own_method(name: str) -> str:
    """Return the name that a user's own method gives itself; empty for one of Wildflower's."""
    from strategies.base.method import get_method, method_names

    try:
        own = get_method(name)
    except ConfigError:
        if nearest(name, method_names()):
            refuse_unknown("method", [name], method_names())
        raise
    return "" if name in method_names() else own.name


def _variant(item: object) -> Entry:
    fields = read_mapping(item, "an item of variants")
    refuse_unknown("key of a variant", fields, ("label", "settings"))
    label = read_label(fields.get("label"), "label of a variant")
    return Entry(label, _settings(fields.get("settings"), f"settings of {label}"))


def _reference(top: Mapping[str, Any], labels: list[str]) -> str | None:
    if top.get("reference") is None:
        return None
    reference = read_text(top["reference"], "reference")
    refuse_unknown("label in reference", [reference], labels)
    return reference


def _differences(items: list[Any], runs: list[PlannedRun]) -> tuple[tuple[str, str], ...]:
    data = {(r.label, r.seed, r.variant): (r.run.data_spec, r.run.tasks) for r in runs}
    labels = list(dict.fromkeys(run.label for run in runs))
    for item in items:
        pair = read_list(item, "an item of differences")
        refuse_unknown("label in differences", pair, labels)
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigError(f"differences: expected pairs of two different labels, not {pair}")
        if any(
            spec != data[pair[1], *at] for (label, *at), spec in data.items() if label == pair[0]
        ):
            raise ConfigError(f"differences: the clients of {' and '.join(pair)} have unlike data")
    return tuple(dict.fromkeys((pair[0], pair[1]) for pair in items))


def _settings(value: object, where: str) -> dict[str, Any]:
    from strategies.base.parsing import default_run_config

    settings = {} if value is None else read_mapping(value, where)
    for key in settings:
        if key in OWN_KEYS:
            raise ConfigError(f"{where}: {key} is set by the comparison itself; leave it out")
    refuse_unknown(f"run-config key in {where}", settings, default_run_config())
    return settings


def _refuse_twins(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two runs would be named {name}; give repeated methods a label of their own, and "
                "every seed and variant once"
            )
