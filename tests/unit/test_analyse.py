"""`wildflower analyse`: its measures on cases with a known answer, and a whole run."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from deploy.analyse.analysis import Plan, analyse, mapped, pairs
from deploy.analyse.command import FOLDER
from deploy.analyse.figures import TITLES
from deploy.analyse.measures import calibration, centred_gram, confusion, linear_cka
from deploy.analyse.models import REPRESENTATION, analysed, common_examples
from deploy.analyse.regions import Head, Regions, regions
from deploy.cli import main
from deploy.evenly import evenly
from deploy.kept_run import KeptRun
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation

pytest.importorskip("matplotlib", reason="needs the extra analyse")

ROWS = np.random.default_rng(0).normal(size=(40, 6))


def brute_force_cka(one: np.ndarray, other: np.ndarray) -> float:
    """||Y^T X||_F^2 / (||X^T X||_F ||Y^T Y||_F) of centred columns, as the paper writes it."""
    x, y = (rows - rows.mean(axis=0) for rows in (one, other))
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms)


def test_cka_by_the_papers_formula() -> None:
    other = np.tanh(ROWS @ np.random.default_rng(1).normal(size=(6, 9)))
    value = linear_cka(centred_gram(ROWS), centred_gram(other))
    assert value == pytest.approx(brute_force_cka(ROWS, other))
    assert value is not None
    assert 0.1 < value < 0.99


def test_cka_does_not_see_rotation_scale_and_shift() -> None:
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0]
    same = linear_cka(centred_gram(ROWS), centred_gram(3.0 * ROWS @ rotation + 5.0))
    assert same == pytest.approx(1.0)
    assert linear_cka(centred_gram(ROWS), centred_gram(np.ones((40, 3)))) is None


def test_cka_of_pairs_of_clients() -> None:
    grams = {3: centred_gram(ROWS), 7: centred_gram(2 * ROWS)}
    table = pairs(grams, [3, 5, 7])
    np.testing.assert_allclose(table[[0, 0, 2], [0, 2, 0]], 1.0)
    assert np.isnan(table[1]).all()  # client 5 has no such stage


def test_calibration_by_hand() -> None:
    """Two bins that hold examples: gaps |0.55 - 0.5| of two and |0.9 - 1| of one."""
    found = calibration(np.array([0.55, 0.55, 0.9]), np.array([True, False, True]), bins=10)
    assert found.counts.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 1, 0]
    assert found.error == pytest.approx((2 * 0.05 + 1 * 0.1) / 3)
    assert calibration(np.array([1.0]), np.array([True])).error == 0.0


def test_confusion_by_hand() -> None:
    table = confusion(np.array([0, 0, 2]), np.array([0, 1, 2]), 3)
    assert table.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_clients_are_taken_evenly() -> None:
    assert evenly([0, 1, 2, 3, 4, 5], 3) == [0, 2, 4]
    assert evenly([4], 3) == [4]
    assert mapped({0: np.ones((3, 2), np.float32), 1: np.ones((3, 4), np.float32)}, ROWS, 0)[1] == (
        "no map: the representations have unlike widths, [2, 4]"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A model comes with every downlink, and two of the clients have the same."""
    return run_federation(
        tmp_path_factory.mktemp("analysed"), 3, method="fedavg", models="cnn5, cnn4",
        image_size=16, subset=0.08, feature_dim=32, report=True, num_rounds=1,
    )  # fmt: skip


def test_a_run_from_end_to_end(run: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse", str(run.path), "--images", "30"]) == 0
    text = capsys.readouterr().out
    assert "Models of 3 of 3 clients after round 1" in text
    assert "(all there are)" in text
    folder = run.path / FOLDER
    for name in ("cka", "tsne", "confusion", "calibration"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{name}.svg").read_text()
    with (folder / "cka.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    own = [float(row["cka"]) for row in rows if row["client"] == row["other"] and row["cka"]]
    assert own
    assert own == pytest.approx([1.0] * len(own))
    equal = [r for r in rows if (r["stage"], r["client"], r["other"]) == ("stage 1", "0", "2")]
    assert float(equal[0]["cka"]) == pytest.approx(1.0)  # they have the same averaged model
    page = (folder / "analysis.html").read_text()
    assert page.count("data:image/png") == 4
    assert not (folder / "regions.csv").exists()  # d = 32
    assert "http" not in page.replace("http-equiv", "")
    assert 'href="analysis/analysis.html"' in run.text("report.html")
    summary = json.loads((folder / "analysis.json").read_text())
    assert set(summary["mean_cka"]) >= {"stage 1", "representation"}


def test_scores_are_those_of_the_closing_evaluation(run: Outcome) -> None:
    """The share on the diagonal is the accuracy that the run recorded."""
    found = analyse(run.path, Plan(images=20))
    recorded = {
        int(row["client"]): float(row["value"])
        for row in run.metrics(metric="accuracy", phase="final")
    }
    assert recorded
    for client, table in found.confusions.items():
        assert np.trace(table) / table.sum() == pytest.approx(recorded[client], abs=1e-5)


def test_what_would_fill_the_memory_is_refused(
    run: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.analyse.analysis.LARGEST_BYTES", 1e4)
    with pytest.raises(ConfigError, match="--images 20 with 3 clients would take about"):
        analyse(run.path, Plan(images=20))


def test_a_run_without_states_is_refused(
    run: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", str(tmp_path)]) == 2
    assert "there is no run here" in capsys.readouterr().err
    for missing, said in (("clients", "no client's state is kept"), ("checkpoints", "finished no")):
        copy = tmp_path / missing
        shutil.copytree(run.path, copy)
        shutil.rmtree(copy / missing)
        assert main(["analyse", str(copy)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "`wildflower clean`" in error


SIGNS = Head(np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32), np.zeros(2, np.float32))
"""Class 0 right of the axis, class 1 left of it."""


def test_regions_by_hand() -> None:
    points = np.array([[-1.0, 0.0], [3.0, 2.0]], np.float32)
    found = Regions([4], SIGNS, points, np.array([1, 1]))
    assert found.right == 0.5
    classes, extent = found.grid(4)
    assert extent == pytest.approx((-1.4, 3.4, -0.2, 2.2))
    # Middles of cells at -0.8, 0.4, 1.6 and 2.8
    assert classes.tolist() == [[1, 0, 0, 0]] * 4


def test_clients_with_one_head_share_their_regions() -> None:
    other = Head(SIGNS.weights, np.array([0.0, 5.0], np.float32))
    rows = {client: np.full((3, 2), client, np.float32) for client in (0, 1, 2)}
    labels = np.array([0, 1, 0])
    shared, own = regions({0: SIGNS, 1: other, 2: SIGNS}, rows, labels)
    assert (shared.clients, own.clients) == ([0, 2], [1])
    assert shared.points[:, 0].tolist() == [0, 0, 0, 2, 2, 2]
    assert shared.labels.tolist() == [0, 1, 0, 0, 1, 0]
    assert regions({0: SIGNS}, {0: np.zeros((3, 5), np.float32)}, labels) == []


def test_the_toy_shows_what_a_shared_head_tells_apart(tmp_path: Path) -> None:
    """FedRE's clients have the server's head in their evaluation, local ones each their own."""
    for method, heads in (("fedre", 1), ("local", 3)):
        made = run_federation(
            tmp_path / method, 3, method=method, dataset="toy", models="mlp-small, mlp-medium",
            feature_dim=2, alpha=1.0, subset=0.4, num_rounds=2,
        )  # fmt: skip
        assert main(["analyse", str(made.path)]) == 0
        summary = json.loads((made.path / FOLDER / "analysis.json").read_text())
        assert len(summary["in_own_region"]) == heads
        assert all(0 < share < 1 for share in summary["in_own_region"].values())
        with (made.path / FOLDER / "regions.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 5 * heads
        page = (made.path / FOLDER / "analysis.html").read_text()
        assert TITLES["regions"] in page


def test_what_is_aligned_beside_a_head_is_analysed(tmp_path: Path) -> None:
    """FedMuscle's models: encoder stages, and the representations that cross the network."""
    run = run_federation(
        tmp_path, 2, method="fedmuscle", models="cnn5, resnet10-w4", feature_dim=2, subset=0.2,
        image_size=16, public_dataset="digits", public_size=32, evaluate_when="post",
        **{"fedmuscle.batch-size": 16},
    )  # fmt: skip
    found = analyse(run.path, Plan(images=64, map_images=16))
    assert list(found.cka) == ["stage 1", "stage 2", "stage 3", "stage 4", REPRESENTATION]
    assert found.cka[REPRESENTATION].shape == (2, 2)
    assert found.regions == []  # heads read the encoder's feature, wider than two
    kept = KeptRun.of(run.path)
    (item, _) = analysed(kept, [0, 1])
    examples = common_examples(kept, [0, 1], 64, 0)
    lengths = np.linalg.norm(item.stages(examples)[REPRESENTATION], axis=1)
    np.testing.assert_allclose(lengths, 1.0, rtol=1e-5)
