"""The attack on kept uplinks, on cases with a known answer, and beside its controls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deploy.attack.attack import ATTACK, CONTROLS, Plan, attack
from deploy.attack.labels import labels_told
from deploy.attack.output import Line, lines_of, text_of, verdict, write_csv, write_page
from deploy.attack.scores import mean_squared_errors, psnr, score
from deploy.attack.targets import LOGITS, REPRESENTATION, targets_of
from deploy.attack.victims import Scene
from deploy.attack.white_box import WhiteBox, of_equal_norm, total_variation
from deploy.cli import main
from models import SplitModel
from strategies.base.options import ConfigError
from tests.support import Outcome, run_federation

pytest.importorskip("skimage", reason="needs the extra attack")

IMAGE = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)

LINEAR = """
from torch import nn


def linear(shape):
    body = nn.Flatten()
    body.raw_dim = shape.channels * shape.image_size**2
    return body
"""
"""A model whose representation is the picture itself."""


def linear_model(pixels: int) -> SplitModel:
    return SplitModel(
        "linear", nn.Flatten(), nn.Identity(), raw_dim=pixels, feature_dim=pixels, num_classes=4
    )


def test_a_linear_extractor_gives_the_image_back_exactly() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8)).astype(np.uint8)
    vectors = (images / 127.5 - 1).astype(np.float32).reshape(2, -1)
    box = WhiteBox(steps=1500, tv_weight=0.0)
    model = linear_model(192).eval().requires_grad_(False)
    found = box.invert(model, REPRESENTATION, vectors, (3, 8, 8), torch.Generator().manual_seed(0))
    # A byte at either end is out of a sigmoid's reach; it comes within a byte or two.
    assert np.abs(found.astype(int) - images.astype(int)).max() <= 2


def test_logits_are_attacked_through_the_head() -> None:
    model = linear_model(192).eval().requires_grad_(False)
    wanted = np.array([[0.5, -0.2, 0.1, 0.0]], dtype=np.float32)
    generator = torch.Generator().manual_seed(1)
    found = WhiteBox(steps=300).invert(model, LOGITS, wanted, (3, 8, 8), generator)
    scores = model(torch.from_numpy(found) / 127.5 - 1)
    torch.testing.assert_close(scores, torch.from_numpy(wanted), atol=0.02, rtol=0)


def test_total_variation_by_hand() -> None:
    images = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])
    assert total_variation(images).item() == pytest.approx(0.5 + 0.5 + 1.0 + 0.0)


def test_scores_by_hand() -> None:
    """FedRE's scale: 10 log10(255^2 / MSE), per image and then averaged."""
    truth = np.stack([np.full((1, 8, 8), 10), np.full((1, 8, 8), 30)]).astype(np.uint8)
    found = np.full((1, 8, 8), 20, np.uint8)
    assert mean_squared_errors(found, truth).tolist() == [100.0, 100.0]
    assert psnr(np.array([100.0]))[0] == pytest.approx(28.1308, abs=1e-4)
    own = score(IMAGE, np.stack([255 - IMAGE, IMAGE]))
    assert own.best == 1
    assert own.best_psnr == np.inf
    assert own.ssim == pytest.approx(1.0)
    assert own.mse == pytest.approx(mean_squared_errors(IMAGE, (255 - IMAGE)[None])[0] / 2)


def test_vectors_and_their_images() -> None:
    labels = np.array([2, 0, 2])
    (mixed,) = targets_of({"entangled_rep": np.zeros(4, np.float32)}, labels)
    assert mixed.truth.tolist() == [0, 1, 2]
    prototypes = {"class_ids": np.array([0, 2]), "prototypes": np.zeros((2, 4), np.float32)}
    assert [t.truth.tolist() for t in targets_of(prototypes, labels)] == [[1], [0, 2]]
    every = {"class_ids": np.arange(3), "prototypes": np.zeros((3, 4), np.float32)}  # under noise
    assert [t.truth.tolist() for t in targets_of(every, labels)] == [[1], [0, 2]]
    rows = {"representations": np.zeros((3, 4), np.float32), "labels": labels}
    assert [t.truth.tolist() for t in targets_of(rows, labels)] == [[0], [1], [2]]
    with pytest.raises(ConfigError, match="the uplink has weights: there is no attack"):
        targets_of({"weights/a": np.zeros(3)}, labels)


def test_random_vectors_are_as_long_as_those_sent() -> None:
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    drawn = of_equal_norm(vectors, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), [5.0, 0.0], rtol=1e-6)


def test_labels_that_are_told() -> None:
    """FedRE's mixed label has exactly the client's classes; ids and counts are exact."""
    labels = np.array([0, 0, 0, 2])
    mixed = labels_told(1, {"entangled_label": np.array([0.5, 0.0, 0.5, 0.0])}, labels, 4)
    assert mixed is not None
    assert mixed.classes_exact
    assert (mixed.distance, mixed.guess) == (pytest.approx(0.25), pytest.approx(0.5))
    counts = {"class_ids": np.array([0, 2]), "counts": np.array([3, 1])}
    exact = labels_told(1, counts, labels, 4)
    assert exact is not None
    assert exact.distance == 0
    ids = labels_told(1, {"class_ids": np.array([0, 2]), "counts": np.empty(0)}, labels, 4)
    assert ids is not None
    assert ids.distance == pytest.approx(0.25)
    assert labels_told(1, {"weights/a": np.zeros(3)}, labels, 4) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Clients whose representation is the picture, and who send it as it is."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "linear_nets.py").write_text(LINEAR)
    return run_federation(
        folder, 2, method="fedallrep", models="linear_nets:linear", code_dir=str(folder),
        feature_dim=256, image_size=16, subset=0.08, num_rounds=1, keep_payloads=1,
    )  # fmt: skip


def test_an_attack_that_must_succeed_beats_all_controls(run: Outcome, tmp_path: Path) -> None:
    """With one image in a vector and an extractor that keeps everything, it comes back."""
    plan = Plan(vectors=6, attacker=WhiteBox(steps=400))
    scene = Scene.of(run.path)
    findings = attack(scene, plan)
    assert len(findings.results) == 6
    assert findings.sent == sum(int(row["train_examples"]) for row in run.rows("clients"))
    lines = lines_of(findings.results)
    assert [line.found_by for line in lines] == [ATTACK, *CONTROLS]
    assert lines[0].best_psnr > 25
    assert "beats all controls" in text_of(findings)
    assert "classes of 2 of 2 clients are told exactly" in text_of(findings)
    for result in findings.results:
        assert result.scores[ATTACK].psnr == result.scores[ATTACK].best_psnr  # one true image
    write_csv(tmp_path / "attack.csv", findings, {0: "a", 1: "b"})
    assert len((tmp_path / "attack.csv").read_text().splitlines()) == 1 + 6 * 4
    write_page(tmp_path / "attack.html", scene, plan, findings)
    page = (tmp_path / "attack.html").read_text()
    assert page.count("data:image/png") == 6 * 5
    assert "http" not in page.replace("http-equiv", "")


def test_an_interrupted_attack_goes_on_and_comes_to_the_same(run: Outcome) -> None:
    scene, plan = Scene.of(run.path), Plan(vectors=4, attacker=WhiteBox(steps=20))
    whole = lines_of(attack(scene, plan).results)
    kept = sorted(plan.folder(scene).glob("*.safetensors"))
    kept[0].write_bytes(b"cut")  # as a full disk or a kill would leave it
    said: list[str] = []
    assert lines_of(attack(scene, plan, said.append).results) == whole
    assert {text.split(" (")[0] for text in said} == {"client 0"}


def test_lpips_is_a_column_where_it_is_asked_for(run: Outcome, tmp_path: Path) -> None:
    scene, plan = Scene.of(run.path), Plan(vectors=2, attacker=WhiteBox(steps=20))
    found = attack(scene, plan, perceptual=lambda _found, _truth: 0.25)
    assert {line.lpips for line in lines_of(found.results)} == {0.25}
    assert "LPIPS" in text_of(found)
    write_csv(tmp_path / "attack.csv", found, {0: "cnn5", 1: "cnn5", 2: "cnn5"})
    assert (tmp_path / "attack.csv").read_text().splitlines()[1].endswith(",0.2500")
    write_page(tmp_path / "attack.html", scene, plan, found)
    assert "<th>LPIPS</th>" in (tmp_path / "attack.html").read_text()


def test_an_attack_that_finds_nothing_says_so() -> None:
    lines = [Line(ATTACK, 1, 9.0, 9.0, 0), Line(CONTROLS[0], 1, 9.0, 9.1, 0, -0.1, 0.2)]
    assert verdict(lines).startswith("the attack does not beat its controls: random vector")


def test_what_cannot_be_attacked_is_said(
    run: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(tmp_path)]) == 2
    assert "there is no run here" in capsys.readouterr().err
    assert main(["attack", str(run.path), "--round", "7"]) == 2
    assert "--round 7: there are uplinks of rounds 1" in capsys.readouterr().err
    plain = run_federation(tmp_path, 2, num_rounds=1, models="cnn5", subset=0.08, image_size=16)
    assert main(["attack", str(plain.path)]) == 2
    assert "this run kept no uplinks; run it with keep-payloads" in capsys.readouterr().err
