"""Attackers other than white box, on cases with a known answer: decoder, update, membership."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deploy.attack.attack import ATTACK, Plan, attack
from deploy.attack.comparison import ahead_of, verdict_on
from deploy.attack.decoder import Decoder
from deploy.attack.labels import labels_told, proportions_of_update
from deploy.attack.membership import (
    RECEIVED,
    Distance,
    area_under_curve,
    comparable,
    infer_membership,
)
from deploy.attack.membership_output import text_of, write_csv
from deploy.attack.output import lines_of
from deploy.attack.targets import REPRESENTATION, STEM, head_means, vectors_of
from deploy.attack.update import (
    UpdateInversion,
    first_layer_inputs,
    first_linear,
    labels_in_proportion,
)
from deploy.attack.victims import Scene
from deploy.attack.white_box import WhiteBox, total_variation
from deploy.cli import main
from models import SplitModel
from strategies.base.options import ConfigError
from tests.support import OWN_MODEL, Outcome, run_federation

pytest.importorskip("skimage", reason="needs the extra attack")

SHAPE = (1, 8, 8)


def run_kept(folder: Path, **config: object) -> Outcome:
    (folder / "tiny_nets.py").write_text(OWN_MODEL)
    keys = {
        "models": "tiny_nets:tiny", "image_size": 16, "subset": 0.08, "feature_dim": 64,
        "keep_payloads": 1, "num_rounds": 1, **config,
    }  # fmt: skip
    return run_federation(folder, 2, code_dir=str(folder), **keys)


def two_layers() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 4))


def change_of(model: nn.Module, image: np.ndarray, label: int, lr: float = 0.1) -> np.ndarray:
    """Return how one step of SGD on one image changes the parameters, (D,)."""
    inputs = torch.from_numpy(image)[None] / 127.5 - 1
    loss = F.cross_entropy(model(inputs), torch.tensor([label]))
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return (-lr * torch.cat([g.flatten() for g in grads])).numpy()


IMAGE = np.random.default_rng(3).integers(0, 256, SHAPE).astype(np.uint8)


def test_a_single_image_follows_exactly_from_a_linear_layers_change() -> None:
    """x = dW_i / db_i, and the label is the one class whose bias rose."""
    model = two_layers()
    change = change_of(model, IMAGE, 2)
    weights, biases = change[: 16 * 64].reshape(16, 64), change[16 * 64 : 16 * 65]
    found = first_layer_inputs((weights, biases), 1, SHAPE)
    np.testing.assert_array_equal(found[0], IMAGE)
    assert first_linear(model, SHAPE) == "1"
    assert first_linear(nn.Sequential(nn.Conv2d(1, 1, 3), *model), (1, 10, 10)) is None
    bias = {"head_bias": change[-4:]}
    shares = proportions_of_update(bias, {"head_bias": np.zeros(4, np.float32)})
    assert shares is not None
    np.testing.assert_array_equal(shares, [0, 0, 1, 0])
    told = labels_told(0, bias, np.array([2]), 4, {"head_bias": np.zeros(4, np.float32)})
    assert told is not None
    assert (told.inferred, told.classes_exact, told.distance) == (True, True, 0.0)


def test_an_unchanged_layer_says_nothing() -> None:
    nothing = first_layer_inputs((np.zeros((1, 64)), np.zeros(1)), 2, SHAPE)
    assert (nothing == 128).all()
    assert proportions_of_update({"head_bias": np.zeros(2)}, {"head_bias": np.zeros(2)}) is None


def test_a_gradients_direction_gives_the_image_back() -> None:
    """The search, on the network whose first layer would give the answer at once."""
    model = two_layers()
    change = change_of(model, IMAGE, 2)
    box = UpdateInversion(steps=400, tv_weight=0.0)
    found = box.invert(model, change, np.array([2]), SHAPE, torch.Generator().manual_seed(0))
    assert np.abs(found[0].astype(int) - IMAGE.astype(int)).mean() < 3


def test_labels_by_largest_remainder() -> None:
    assert labels_in_proportion(np.array([0.6, 0.0, 0.4]), 3, 3).tolist() == [0, 0, 2]
    assert labels_in_proportion(None, 4, 3).tolist() == [0, 0, 1, 2]


def test_a_heads_change_tells_a_single_examples_representation() -> None:
    """dW_c / db_c of every class is r; only the class that is there has a bias that rose."""
    r, p = np.array([0.5, -1.0, 2.0], np.float32), np.array([0.2, 0.5, 0.3])
    drop = (p - np.array([0, 1, 0])).astype(np.float32)
    weights, biases = -0.1 * drop[:, None] * r, -0.1 * drop
    (target,) = head_means(weights, biases, np.array([1]))
    np.testing.assert_allclose(target.vector, r, rtol=1e-5)
    assert (target.output, target.truth.tolist()) == (REPRESENTATION, [0])
    assert head_means(weights, biases, np.array([0])) == []  # nothing to compare with


def test_a_decoder_learns_an_invertible_extractor() -> None:
    generator = np.random.default_rng(0)
    basis = generator.normal(size=(6, 64))
    codes = generator.normal(size=(400, 6))
    images = np.clip(128 + 30 * codes @ basis, 0, 255).astype(np.uint8).reshape(-1, *SHAPE)
    vectors = torch.from_numpy(images).flatten(1) / 127.5 - 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Decoder(epochs=25).train(
            vectors[:350], torch.from_numpy(images[:350]), torch.Generator().manual_seed(0)
        )
    with torch.no_grad():
        found = network(vectors[350:]).numpy() * 255
    error = np.square(found - images[350:]).mean()
    assert error < 0.1 * np.square(images[350:] - images[:350].mean(axis=0)).mean()


def test_areas_under_the_curve() -> None:
    assert area_under_curve(np.ones(4), np.ones(4)) == 0.5
    assert area_under_curve(np.array([0.1, 0.2]), np.array([0.3, 0.4])) == 1.0
    assert area_under_curve(np.array([0.3]), np.array([0.1, 0.4])) == 0.5


def test_distances_are_to_vectors_of_the_class_where_it_has_any() -> None:
    model = SplitModel("flat", nn.Flatten(), nn.Identity(), raw_dim=2, feature_dim=2, num_classes=3)
    vectors, classes = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    images = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]).reshape(3, 1, 1, 2)
    loss = Distance(model, REPRESENTATION, vectors, classes)
    torch.testing.assert_close(loss(images, torch.tensor([0, 1, 2])), torch.tensor([1.0, 0.0, 4.0]))
    nearest = Distance(model, REPRESENTATION, vectors, None)
    torch.testing.assert_close(
        nearest(images, torch.tensor([0, 0, 0])), torch.tensor([0.0, 0.0, 4.0])
    )


def test_what_is_not_ahead_is_said() -> None:
    assert ahead_of([0.6, 0.8], [0.5, 0.5]) == (pytest.approx(0.2), pytest.approx(0.1))
    assert "does not beat its controls: chance guess" in verdict_on(
        {"chance": (0.2, 0.1)}, "guess as well"
    )
    assert "beats all controls" in verdict_on({"chance": (0.3, 0.1)}, "guess as well")
    assert "with a single value" in verdict_on({"chance": (0.3, None)}, "guess as well")


def test_weights_of_a_run(tmp_path: Path) -> None:
    """A network that is linear in the image tells of clients' images; FedAvg keeps no model."""
    run = run_kept(tmp_path, method="fedavg", batch_size=500, lr=0.5)
    scene = Scene.of(run.path)
    victim = scene.victim(0)
    torch.testing.assert_close(  # the model is the one that was sent
        victim.model.state_dict()["head.bias"], torch.from_numpy(victim.uplink["weights/head.bias"])
    )
    plan = Plan(attacker=UpdateInversion(steps=3, images=3))
    findings = attack(scene, plan)
    assert len(findings.results) == 6
    assert lines_of(findings.results)[0].found_by == ATTACK
    assert all(item.inferred for item in findings.labels)
    with pytest.raises(ConfigError, match="--attacker update seeks images in weights"):
        attack(scene, Plan())


def test_a_small_model_that_travels(tmp_path: Path) -> None:
    run = run_kept(tmp_path, method="fml", fml__small_model="cnn5")
    scene = Scene.of(run.path)
    victim = scene.victim(0)
    assert victim.shared is not None
    assert victim.shared.model is not victim.model
    torch.testing.assert_close(
        victim.shared.model.state_dict()["head.bias"],
        torch.from_numpy(victim.uplink["theta/head.bias"]),
    )
    findings = attack(scene, Plan(vectors=2, attacker=UpdateInversion(steps=2, images=1)))
    assert len(findings.results) == 2
    assert all(item.areas[RECEIVED] >= 0 for item in infer_membership(scene, 0))


def test_a_prototype_and_its_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_kept(tmp_path, method="fedproto", test_split="personal")
    scene = Scene.of(run.path)
    sent = sum(len(scene.payloads.read(1, client)["class_ids"]) for client in (0, 1))
    findings = attack(scene, Plan(attacker=Decoder(images=20, epochs=1)))
    assert len(findings.results) == findings.sent == sent
    rows = comparable(scene.victim(0), np.random.default_rng(0))
    assert rows is not None
    np.testing.assert_array_equal(rows[1], rows[3])  # the same classes on both sides
    found = infer_membership(scene, 0)
    assert "members and as many others" in text_of(found)
    write_csv(tmp_path / "m.csv", found)
    assert (tmp_path / "m.csv").read_text().splitlines()[
        0
    ] == "client,members,area_attack,area_next"
    assert main(["attack", str(run.path), "--attacker", "membership"]) == 0
    assert "area under the curve" in capsys.readouterr().out
    assert main(["attack", str(run.path), "--attacker", "update"]) == 2
    assert "--attacker update needs weights" in capsys.readouterr().err


def test_what_was_memorised_is_found(tmp_path: Path) -> None:
    """A representation that was sent is at distance 0 from its own image's."""
    run = run_kept(tmp_path, method="fedallrep", test_split="personal")
    for item in infer_membership(Scene.of(run.path), 0):
        assert item.areas[ATTACK] > 0.95


def test_heads_and_features_of_runs(tmp_path: Path) -> None:
    heads = run_kept(tmp_path, method="lg-fedavg", run_name="heads", num_rounds=2, keep_payloads=2)
    scene = Scene.of(heads.path)
    victim = scene.victim(0)
    assert victim.received["head_bias"].any()  # of the checkpoint after round 1
    targets = vectors_of(victim)
    assert {t.output for t in targets} == {REPRESENTATION}
    assert infer_membership(scene, 0)
    maps = run_kept(tmp_path, method="fedin", run_name="maps", models="resnet10-w4", feature_dim=32)
    victim = Scene.of(maps.path).victim(1)
    targets = vectors_of(victim)
    truth = victim.images[[t.truth[0] for t in targets]]
    with torch.no_grad():  # the draw of examples is FedIN's own
        own = victim.model.stem(torch.from_numpy(truth) / 127.5 - 1).numpy()  # type: ignore[operator]
    np.testing.assert_allclose(own, np.stack([t.vector for t in targets]), atol=1e-4)
    assert targets[0].output == STEM
    found = attack(Scene.of(maps.path), Plan(vectors=2, attacker=WhiteBox(steps=2)))
    assert len(found.results) == 2


def test_total_variation_takes_single_pixels() -> None:
    assert total_variation(torch.zeros(2, 1, 1, 1)).item() == 0
