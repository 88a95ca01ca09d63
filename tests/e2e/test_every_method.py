"""Every registered method through `flwr run`: Ray workers, unlike clients, one client a round."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.contract.runs import Candidate
from deploy.flower.simulation import FlowerRun, FlowerSimulation
from deploy.flower.text import toml_lines
from strategies.base.method import method_names
from tests.e2e.conftest import LIMIT, ROOT
from tests.e2e.every_method_app import HEADING, wire_of
from tests.support import SMALL, Outcome

pytestmark = pytest.mark.e2e

# Few, small images: what crosses processes is as various, and computing it takes a third.
CONFIG: dict[str, Any] = {
    "sample_fraction": 0.34,
    "subset": 0.1,
    "image_size": 16,
    "feature_dim": 32,
    "round_timeout": LIMIT,  # a method that hangs is given up in time for the others
}
APP = """
[project]
name = "every-method"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "every_method_app:server"
clientapp = "every_method_app:client"

[tool.flwr.app.config]
"""


@dataclasses.dataclass(frozen=True)
class Turns:
    """What one `flwr run` of all methods left: every method's run has the method's name."""

    run: FlowerRun
    directory: Path

    def log_of(self, method: str) -> str:
        """Return the part of the log that a method wrote."""
        before, heading, after = self.run.log.partition(f"{HEADING}{method}\n")
        assert heading, f"the run ended before it came to {method}: {before[-5000:]}"
        return after.partition(HEADING)[0]


@pytest.fixture(scope="module")
def turns(dataset_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Turns:
    """Run all methods, one after the other, on one SuperLink in one pair of Ray workers."""
    app, directory = tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("turns")
    config = {key.replace("_", "-"): value for key, value in CONFIG.items()}
    values = {**SMALL, "report": True, "output-dir": str(directory), **config}
    (app / "pyproject.toml").write_text(APP + toml_lines(values))
    shutil.copy(ROOT / "tests" / "e2e" / "every_method_app.py", app)
    environment = {"WILDFLOWER_CACHE": str(dataset_cache), "PYTHONPATH": str(ROOT)}
    limit = 2 * LIMIT + 30 * len(method_names())
    lines: list[str] = []
    with FlowerSimulation(environment=environment) as flower:
        try:
            run = flower.run(app, {}, clients=3, workers=2, timeout=limit, on_line=lines.append)
        except TimeoutError as error:  # the methods that ended by then still have their tests
            run = FlowerRun("", "not over in time", str(error), "\n".join(lines))
    return Turns(run, directory)


def test_all_methods_had_their_turn(turns: Turns) -> None:
    assert turns.run.completed, f"{turns.run.status} {turns.run.details}: {turns.run.log[-5000:]}"
    runs = [Outcome(turns.directory / method) for method in method_names()]
    assert "2" in {row["workers"] for run in runs for row in run.rows("rounds")}


@pytest.mark.parametrize("method", method_names())
def test_flwr_run_equals_the_same_process(method: str, turns: Turns, tmp_path: Path) -> None:
    """The files are those of a run without Ray; test_comparison runs the app as it is shipped."""
    log = turns.log_of(method)
    assert "1 of 3 clients" in log, log
    through_ray = Outcome(turns.directory / method)
    assert through_ray.config["status"] == "completed", log
    assert (through_ray.path / "report.html").is_file()
    here = Candidate(method).run(tmp_path, 3, **CONFIG, wire_dtype=wire_of(method))
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert through_ray.text(name) == here.text(name)
