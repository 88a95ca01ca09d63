"""A preset: one setting of a paper, its numbers, and the comparison that runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.compare.fields import refuse_unknown
from deploy.compare.plan import Plan, make_plan
from strategies.base.method import method_names
from strategies.base.options import ConfigError

SCALES = ("full", "cpu")
"""The paper's own scale, and the reduction that a preset states under `[scale.cpu]`."""

WEEK = 7 * 86_400.0
"""Seconds that one run may take."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A number of the paper, and its spread over seeds where the paper gives one."""

    value: float
    spread: float | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """Where numbers come from: the paper's name, its table, and the text that was read."""

    paper: str
    table: str
    text: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """Median seconds a round that were measured, by method label, on which machine, and how."""

    machine: str
    command: str
    seconds: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Scale:
    """A setting: how many clients, which run-config keys, and in words what it is.

    Those of a method's `overrides` take the place of its item's keys of the same name.
    """

    words: str
    clients: int
    settings: Mapping[str, Any]
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def fitted(self, item: Any) -> Any:
        """Return an item of `methods` as it is run at this scale."""
        own = self.overrides.get(label_of(item))
        if not own:
            return item
        fields: dict[str, Any] = {"name": item} if isinstance(item, str) else item
        return {**fields, "overrides": {**fields.get("overrides", {}), **own}}


@dataclasses.dataclass(frozen=True)
class Preset:
    """One setting of a paper.

    Attributes
    ----------
    name : str
        Of its file.
    source : Source
        Where its numbers come from.
    methods : tuple
        Items as in a comparison file.
    absent : tuple of str
        Methods of the table that Wildflower does not have.
    not_built : str
        Why nothing of it can be run here; empty if it can.
    expected : dict of str to dict of str to Published
        By method label and quantity, see `deploy.reproduce.quantities`.
    claims : tuple of str
        What the text says without a cell.
    gaps : tuple of str
        What of the paper's setting is not stated or cannot be had here.
    measured : tuple of Measured
        Seconds a round on machines that it was run on.
    scales : dict of str to Scale
        By name, see `SCALES`.
    compared : dict of str to object
        Further keys of the comparison.
    """

    name: str
    source: Source
    methods: tuple[Any, ...]
    absent: tuple[str, ...]
    not_built: str
    expected: Mapping[str, Mapping[str, Published]]
    claims: tuple[str, ...]
    gaps: tuple[str, ...]
    measured: tuple[Measured, ...]
    scales: Mapping[str, Scale]
    compared: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the methods that can be run."""
        return tuple(label_of(item) for item in self.methods)

    def scale(self, name: str) -> Scale:
        """Return the setting at a scale; raises `ConfigError` where the file states none."""
        if name not in self.scales:
            raise ConfigError(f"{self.name}: the preset states no scale {name!r}, it has full")
        return self.scales[name]

    def plan(
        self, scale: str, seeds: Sequence[int], output: Path, settings: Mapping[str, Any],
        methods: Sequence[str] = (), gpus: float | None = None,
    ) -> Plan:  # fmt: skip
        """Lay out its runs as a comparison.

        Parameters
        ----------
        scale : str
            One of `SCALES`.
        seeds : sequence of int
            Of the runs.
        output : Path
            Directory of the runs and of the page.
        settings : Mapping of str
            Run-config keys that win over the preset's.
        methods : sequence of str
            Labels to run; none for all.
        gpus : float, optional
            Share of a GPU that a client's process takes.

        Raises
        ------
        ConfigError
            If nothing of it can be run here, or a method or a key is not known.
        """
        if self.not_built:
            raise ConfigError(f"{self.name}: cannot be run here: {self.not_built}")
        at = self.scale(scale)
        chosen = [at.fitted(item) for item in self._chosen(methods)]
        kept = {label_of(item) for item in chosen}
        compared = dict(self.compared)
        if compared.get("reference") not in kept:
            compared.pop("reference", None)
        pairs = [pair for pair in compared.pop("differences", []) if set(pair) <= kept]
        content = {
            "name": self.name if scale == "full" else f"{self.name}-{scale}",
            "output-dir": str(output), "clients": at.clients, "methods": chosen,
            "seeds": list(seeds), "settings": {**at.settings, **settings},
            "differences": pairs, "run-timeout": WEEK, "gpus-per-client": gpus, **compared,
        }  # fmt: skip
        try:
            return make_plan(content)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    def _chosen(self, wanted: Sequence[str]) -> list[Any]:
        for label in wanted:
            if label in self.absent:
                raise ConfigError(
                    f"{label}: {self.source.table} has it, but {why_absent(label)}; "
                    f"{self.name} runs {', '.join(self.labels)}"
                )
        refuse_unknown(f"method of {self.name}", wanted, self.labels)
        return [item for item in self.methods if not wanted or label_of(item) in wanted]


def label_of(item: Any) -> str:
    """Return the label of an item of `methods`."""
    return item if isinstance(item, str) else str(item.get("label", item.get("name")))


def why_absent(method: str) -> str:
    """Say why a preset does not run a method that its table has."""
    if method in method_names():
        return "the preset has no setting for it yet"
    return "Wildflower has no such method"
