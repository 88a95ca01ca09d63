"""A real run of the app as it is shipped: `flwr run`, a SuperLink, a Ray worker, and its files.

`test_every_method` has two workers, `test_comparison` a run that is interrupted and resumed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.conftest import Simulate
from tests.support import OWN_MODEL, make_hostile, run_federation

pytestmark = pytest.mark.e2e


def test_own_folder_and_own_models_equal_the_same_process(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README, U44, U49: an image folder split over the clients, own models by file and module.

    The user's folder has a `data` as well, and a file `data.py` that the own model imports.
    """
    code = tmp_path / "code"
    code.mkdir()
    make_hostile(code)
    (code / "data.py").write_text(OWN_MODEL)
    (code / "nets.py").write_text("from .data import tiny\nimport data\ndata.DATASETS\n")
    config = {
        "dataset": "imagefolder",
        "data_dir": str(pictures(tmp_path / "pictures")),
        "partition": "iid",
        "subset": 1.0,
        "models": "1=own_models:tiny, 2=nets:tiny, *=cnn5",
        "code_dir": str(code),
    }
    done, run = simulate(tmp_path / "there", workers=1, **config)
    assert done.completed, done.log
    assert "round 2/2" in done.log
    assert "report.html" in done.log
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_models.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    here = run_federation(tmp_path / "here", 3, **config)
    for name in ("metrics.csv", "traffic.csv", "clients.csv"):
        assert run.text(name) == here.text(name)
    assert [r["model"] for r in run.rows("clients")] == ["cnn5", "own_models:tiny", "nets:tiny"]
    assert {r["raw_dim"] for r in run.rows("clients")} == {"500", "64"}
    assert sum(int(r["train_examples"]) for r in run.rows("clients")) > 50
    assert {r["workers"] for r in run.rows("rounds")} == {"1"}
    summary = run.summary
    assert summary["accuracy"] == here.summary["accuracy"]
    assert (summary["method"], summary["clients"]) == ("fedre", 3)
    assert summary["traffic"]["uplink_scalars_per_round"] == 3 * 512
    assert (run.path / "report.html").stat().st_size > 10_000


def pictures(root: Path) -> Path:
    """Write a folder of images of three colours, one a class."""
    for part, count in (("train", 24), ("test", 8)):
        for number, name in enumerate(("ant", "bee", "cow")):
            (root / part / name).mkdir(parents=True)
            for k in range(count):
                image = Image.new("RGB", (32, 32), color=(80 * number, 10 * k, 90))
                image.save(root / part / name / f"{k}.png")
    return root
