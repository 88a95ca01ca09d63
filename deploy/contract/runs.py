"""Running a small federation in this process, and reading its records."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from client_app.app import app as client_app
from models import resolve_models
from models.own_code import searching
from server_app.app import app as server_app
from server_app.rounds.in_process import InProcessGrid
from strategies.base.method import Method, get_method

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "subset": 0.25,
    "models": "cnn5, cnn2, resnet10-w4",
    "num-rounds": 2,
    "min-examples": 5,
    "public-size": 48,
    "report": False,
}
"""Settings that make a run take seconds: real images, three unlike architectures."""

TINY: dict[str, Any] = {
    # The ResNet brings BatchNorm's buffers; most of the time is spent on convolutions.
    "subset": 0.08,
    "image_size": 16,
    "feature_dim": 32,
    "models": "cnn5, cnn4, resnet10-w4",
}
"""Settings for what is about states and not about learning: few, small images."""


ONE_NETWORK = "*=resnet10-w4"
"""What takes the place of unlike models where clients have parts of one: it has BatchNorm."""

NEEDED: dict[str, dict[str, Any]] = {
    "fedktl": {"fedktl.generator": "models.image_generator:small", "fedktl.server-epochs": 2},
}
"""By method: keys that have no default, or make the server's part short. An untrained generator
will do."""


class NotKept(AssertionError):  # noqa: N818 - not an error of the program
    """The tested method does not keep to the contract; says what was found."""


def expect(holds: object, found: str) -> None:
    """Raise `NotKept` with what was found unless `holds`; unlike `assert`, also under -O."""
    if not holds:
        raise NotKept(found)


@dataclass(frozen=True)
class Outcome:
    """A finished run's directory and records."""

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        content: dict[str, Any] = json.loads(
            (self.path / "summary.json").read_text(encoding="utf-8")
        )
        return content

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        content: dict[str, Any] = json.loads(
            (self.path / "config.json").read_text(encoding="utf-8")
        )
        return content

    def rows(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file, by the names of its columns."""
        with (self.path / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def metrics(self, **wanted: Any) -> list[dict[str, str]]:
        """Return the rows of metrics.csv whose columns have these values."""
        rows = self.rows("metrics")
        return [r for r in rows if all(r[k] == str(v) for k, v in wanted.items())]

    def text(self, name: str) -> str:
        """Return a file's text."""
        return (self.path / name).read_text(encoding="utf-8")


def run_federation(
    directory: Path,
    clients: int,
    *,
    app: ClientApp | None = None,
    nodes: Mapping[int, Mapping[str, Any]] | None = None,
    grid_class: type[InProcessGrid] = InProcessGrid,
    **config: Any,
) -> Outcome:
    """Run a federation in this process; keyword `num_rounds` is the key `num-rounds`.

    A key of a method is written with a double underscore: `fedre__mechanism="RAR"`.
    """
    keys = {k.replace("__", ".").replace("_", "-"): v for k, v in config.items()}
    values = {**SMALL, "output-dir": str(directory), "run-name": "run", **keys}
    if values.get("resume"):
        values["run-name"] = ""
    grid = grid_class(app or client_app, clients, values, nodes)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=values)
    server_app(grid=grid, context=context)
    return Outcome(
        directory / str(values["resume"] if values.get("resume") else values["run-name"])
    )


@dataclass(frozen=True)
class Candidate:
    """A method under test.

    Attributes
    ----------
    name : str
        The run-config value `method`.
    config : dict
        Further keys of every run with it, such as `method_options` and `code_dir`.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method; one's own is found in `code_dir`."""
        with searching(str(self.config.get("code_dir", ""))):
            return get_method(self.name)

    @property
    def module(self) -> ModuleType:
        """The module of its client half."""
        return sys.modules[self.method.client.__module__]

    def run(self, directory: Path, clients: int, **config: Any) -> Outcome:
        """Run a federation with it; its own keys count before those of the check."""
        config |= needed_by(self.method, str(config.get("models", SMALL["models"])))
        return run_federation(directory, clients, **{**config, "method": self.name, **self.config})


def needed_by(method: Method, models: str = SMALL["models"]) -> dict[str, Any]:
    """Return the keys without which a method cannot run, with small ones for a test.

    `models` is one network where that is what the method needs.
    """
    unlike = len(set(resolve_models(models))) > 1
    one = {"models": ONE_NETWORK if method.one_network and unlike else models}
    return {**NEEDED.get(method.name, {}), **one}
