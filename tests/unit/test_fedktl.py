"""FedKTL: angles, kernels and centroids by hand; its generator, and what is refused by name."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from deploy.train_generator import main, trained
from models.image_generator import ImageGenerator, load_generator, small
from models.own_code import refusing, searching
from server_app.own_names import unnamed_by
from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError
from strategies.fedktl.alignment import (
    FeatureTransformer,
    align,
    latents_apart,
    mmd,
    with_class_means,
)
from strategies.fedktl.angles import arcface_loss, cosines, simplex_etf
from strategies.fedktl.fedktl import Client, ClientState, Config, Downlink, Uplink, pair_batches
from strategies.fedktl.generated import fitted
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info

HERE = f"{__name__}:"


class Grey(ImageGenerator):
    """The image of a latent (a, b) is all a, brought to [0, 1]."""

    def __init__(self, latent_dim: int = 2) -> None:
        super().__init__(latent_dim, channels=1, image_size=4)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, latents: Tensor) -> Tensor:
        level = (self.gain * latents[:, 0]).sigmoid()
        return level[:, None, None, None].expand(-1, 1, 4, 4)


class Signed(Grey):
    def forward(self, latents: Tensor) -> Tensor:
        return super().forward(latents) * 2 - 1


class Flat(Grey):
    def forward(self, latents: Tensor) -> Tensor:
        return super().forward(latents).flatten(1)


class Wide(Grey):
    def latents(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, 3, generator=rng)


def fails() -> ImageGenerator:
    raise RuntimeError("no network")


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def far() -> ImageGenerator:
    return Grey(latent_dim=2000)


# Angles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_etfs_columns_are_equally_long_and_apart(classes: int) -> None:
    etf = simplex_etf(classes, torch.Generator().manual_seed(1))
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    torch.testing.assert_close(etf.T @ etf, expected, atol=1e-6, rtol=0)


def test_one_class_has_no_simplex() -> None:
    with pytest.raises(ValueError, match="classes=1"):
        simplex_etf(1, torch.Generator())


def test_the_class_is_the_nearest_column_by_angle_whatever_the_length() -> None:
    """Columns (1, 0), (-1, 0): (3, 4) has the cosines 0.6 and -0.6, (-0.1, 9) leans left."""
    found = cosines(torch.tensor([[3.0, 4.0], [-0.1, 9.0]]), torch.tensor([[1.0, -1.0], [0, 0]]))
    torch.testing.assert_close(found[0], torch.tensor([0.6, -0.6]))
    assert found.argmax(dim=1).tolist() == [0, 1]


def test_arcface_by_hand() -> None:
    """An angle of 90 degrees to both columns: logits 2 cos(pi / 2 + 0.5) and 0."""
    loss = arcface_loss(torch.zeros(1, 2), torch.tensor([0]), margin=0.5, scale=2.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(2 * math.sin(0.5))), rel=1e-6)
    plain = arcface_loss(torch.tensor([[0.6, -0.6]]), torch.tensor([0]), margin=0.0, scale=2.0)
    assert plain.item() == pytest.approx(math.log(1 + math.exp(-2.4)), rel=1e-6)


def test_arcface_has_a_gradient_at_a_cosine_of_one_in_bfloat16() -> None:
    """Where the next smaller number is 0.996, so that no bound below 1 can be kept."""
    cosine = torch.tensor([[1.0, -1.0]], dtype=torch.bfloat16, requires_grad=True)
    arcface_loss(cosine, torch.tensor([0]), margin=0.5, scale=64.0).backward()
    assert cosine.grad is not None
    assert cosine.grad.isfinite().all()


def test_an_output_on_its_column_has_a_finite_gradient() -> None:
    cosine = torch.tensor([[1.0, -1.0]], requires_grad=True)
    arcface_loss(cosine, torch.tensor([0]), margin=0.5, scale=64.0).backward()
    assert cosine.grad is not None
    assert cosine.grad.isfinite().all()


# The server's alignment ---------------------------------------------------------------------------


def test_mmd_of_two_small_sets_by_hand() -> None:
    """{0, 0} and {2}: own pairs agree, 4 each; the others are 2 apart, exp(-2 / a)."""
    across = sum(math.exp(-2 / a) for a in (10, 15, 20, 50))
    found = mmd(torch.zeros(2, 1), torch.full((1, 1), 2.0))
    assert found.item() == pytest.approx(8 - 2 * across, rel=1e-5)
    # {0, 4} to itself: nothing is apart, whatever the own pairs are.
    same = torch.tensor([[0.0], [4.0]])
    assert mmd(same, same).item() == pytest.approx(0, abs=1e-6)


def plain_transformer() -> FeatureTransformer:
    """Two classes, and F(P) = (2 P_0, P_1) for positive P, but for BatchNorm's epsilon."""
    made = FeatureTransformer(2, 2).eval()
    with torch.no_grad():
        made.hidden.weight.copy_(torch.eye(2))
        made.output.weight.copy_(torch.tensor([[2.0, 0], [0, 1]]))
        for bias in (made.hidden.bias, made.output.bias):
            bias.zero_()
    return made


def test_a_centroid_is_the_mean_of_its_class_and_an_absent_one_stays() -> None:
    prototypes = torch.tensor([[1.0, 0], [0.5, 1]])
    held = torch.tensor([[9.0, 9], [7, 7]])
    found = with_class_means(plain_transformer(), held, prototypes, torch.tensor([0, 0]))
    torch.testing.assert_close(found, torch.tensor([[1.5, 0.5], [7, 7]]), rtol=1e-4, atol=1e-4)
    assert held.tolist() == [[9, 9], [7, 7]]


def test_alignment_brings_prototypes_to_the_latents() -> None:
    torch.manual_seed(0)
    prototypes = torch.eye(3).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    made = FeatureTransformer(3, 2).eval()
    rng = torch.Generator().manual_seed(2)
    metrics = align(
        made, torch.zeros(3, 2), prototypes, labels,
        lambda count: 5 + torch.randn(count, 2, generator=rng),
        Config(server_epochs=60, server_batch_size=12, server_lr=0.1), rng,
    )  # fmt: skip
    assert metrics["server_loss_after"] < 0.3 * metrics["server_loss_before"]
    assert (made(prototypes).mean(dim=0) > 3).all()


def test_a_single_prototype_trains_nothing() -> None:
    made = plain_transformer()
    before = {name: item.clone() for name, item in made.state_dict().items()}
    align(
        made, torch.zeros(2, 2), torch.eye(2)[:1], torch.tensor([0]), lambda n: torch.ones(n, 2),
        Config(), torch.Generator(),
    )  # fmt: skip
    assert all(torch.equal(item, before[name]) for name, item in made.state_dict().items())


def test_batches_of_pairs_visit_all_and_are_never_single() -> None:
    rng = torch.Generator().manual_seed(0)
    found = [batch.tolist() for batch in islice(pair_batches(5, 2, rng), 5)]
    assert all(len(batch) == 2 for batch in found)
    assert sorted(row for batch in found for row in batch) == sorted([*range(5)] * 2)
    assert next(pair_batches(1, 32, rng)).tolist() == [0, 0]
    assert sorted(next(pair_batches(3, 32, rng)).tolist()) == [0, 1, 2]


# The two halves -----------------------------------------------------------------------------------


def a_run(**options: Any) -> Any:
    keys = {"generator": f"{HERE}Grey", "server_epochs": 1, **options}
    own = {f"fedktl.{key.replace('_', '-')}": value for key, value in keys.items()}
    return parse_run_config({"method": "fedktl", "feature-dim": 4, "device": "cpu", **own})


def a_server(**options: Any) -> ServerAtWork:
    infos = [a_client_info(i, num_classes=3, channels=3, image_size=8) for i in range(2)]
    return ServerAtWork(a_run(**options), infos)


def update(client: int, rows: dict[int, list[float]]) -> ClientUpdate:
    sent = Uplink(np.array([*rows], np.int64), np.array([*rows.values()], np.float32))
    return ClientUpdate(client, 4, sent, [], 0, 0, 0, "")


def test_clients_get_one_image_of_their_own_kind_for_every_class_received() -> None:
    server = a_server()
    assert server.downlink_for(None, 1).images.shape == (0, 3, 8, 8)
    sent = [update(0, {0: [1, 0, 0], 2: [0, 0, 1]}), update(1, {0: [0, 1, 0]})]
    assert server.aggregate_in(1, sent)["classes_generated"] == 2
    told = server.downlink_for(None, 2)
    assert (told.images.shape, told.images.dtype) == ((2, 3, 8, 8), np.uint8)
    np.testing.assert_array_equal(told.latents, server.state.centroids[[0, 2]].numpy())
    levels = 255 / (1 + np.exp(-told.latents[:, 0]))
    np.testing.assert_array_equal(told.images[:, 2, 5, 1], np.rint(levels))


def test_colours_and_sizes_become_the_clients() -> None:
    colour = np.zeros((1, 3, 4, 4), np.uint8)
    colour[:, 0] = 200
    assert fitted(colour, 1, 2).tolist() == [[[[60, 60], [60, 60]]]]  # 0.299 of red
    grey = np.full((2, 1, 4, 4), 7, np.uint8)
    assert fitted(grey, 3, 8).tolist() == np.full((2, 3, 8, 8), 7).tolist()


class Data:
    """What of a client's data `receive` looks at."""

    channels, image_size, num_classes = 1, 4, 3


def test_a_client_refuses_other_images_and_latents() -> None:
    context = ClientContext(0, 1, a_run(), Data(), "cnn5", torch.device("cpu"))  # type: ignore[arg-type]
    state = ClientState(nn.Module())  # type: ignore[arg-type]
    state.model.feature_dim = 4

    def receive(images: tuple[int, ...], width: int) -> None:
        told = Downlink(np.zeros((1, *images), np.uint8), np.zeros((1, width), np.float32))
        Client().receive(context, state, told)

    receive((1, 4, 4), 2)
    first = {name: item.clone() for name, item in state.projection.items()}
    assert first["weight"].shape == (2, 4)
    receive((1, 4, 4), 2)  # what there is stays
    assert torch.equal(state.projection["weight"], first["weight"])
    with pytest.raises(PayloadError, match=r"images: shape \(3, 4, 4\), expected \(1, 4, 4\)"):
        receive((3, 4, 4), 2)
    with pytest.raises(PayloadError, match="latents: 5 wide, expected 2"):
        receive((1, 4, 4), 5)


def test_wrong_uplinks_and_clients_are_refused() -> None:
    server = a_server()
    with pytest.raises(PayloadError, match="prototypes: row 1 is 2 long"):
        server.check_uplink(update(0, {0: [1, 0, 0], 1: [0, 2, 0]}))
    assert "num_classes is 1" in str(server.check(a_client_info(7, num_classes=1)))
    assert server.check(a_client_info(7, num_classes=3, feature_dim=9)) is None


@pytest.mark.parametrize(
    "keys",
    [
        {"tasks": "segmentation@scenes"},
        {"tasks": "regression@tabular"},
        {"dataset": "tabular"},
        {"dataset": "tsv"},
    ],
)
def test_what_is_no_classification_of_images_is_refused(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"method.*fedktl"):
        parse_run_config({"method": "fedktl", **keys})


# The generator ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "needs a pretrained generator"),
        ("grey", "'grey': write it as 'module:name'"),
        (f"{HERE}Absent", "has no 'Absent'"),
        (f"{HERE}HERE", "is a str; expected a function"),
        (f"{HERE}fails", "failed: RuntimeError: no network"),
        (f"{HERE}linear", "returned a Linear"),
        (f"{HERE}Signed", r"images have values from .*\(images \+ 1\) / 2"),
        (f"{HERE}Flat", r"images have the shape \(16, 16\), expected \(16, 1, 4, 4\)"),
        (f"{HERE}Wide", r"latents have the shape \(16, 3\), expected \(16, 2\)"),
    ],
)
def test_a_generator_that_does_not_do_is_named_before_anything_is_loaded(
    name: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"fedktl.generator.*{said}"):
        ServerAtWork(a_run(generator=name))


def test_weights_come_from_a_file_that_holds_no_code(tmp_path: Path) -> None:
    file = tmp_path / "grey.safetensors"
    save_file({"gain": torch.full((1,), 3.0)}, file)
    generator = load_generator(f"{HERE}Grey", str(file))
    assert generator.state_dict()["gain"].item() == 3
    for weights, said in (
        (tmp_path / "g.pth", "can hold code"),
        (tmp_path / "none.safetensors", "there is no file"),
    ):
        with pytest.raises(ConfigError, match=said):
            ServerAtWork(a_run(generator_weights=str(weights)))
    with pytest.raises(ConfigError, match=r"the weights of 'models.*lack"):
        ServerAtWork(a_run(generator="models.image_generator:small", generator_weights=str(file)))


def test_the_small_generator_is_found_from_within_a_clone() -> None:
    with searching(Path(__file__).parents[2]):
        assert load_generator("models.image_generator:small").latent_dim == 32


def test_latents_that_kernels_cannot_see_are_remarked_on() -> None:
    assert ServerAtWork(a_run()).remarks == []
    (remark,) = ServerAtWork(a_run(generator=f"{HERE}far")).remarks
    assert "so far apart (width 2000)" in remark
    assert not latents_apart(torch.zeros(4, 2))


def test_other_weights_than_the_run_began_with_are_refused() -> None:
    server = a_server()
    server.state.fingerprint = "of others"
    with pytest.raises(ConfigError, match="not those that the run began with"):
        server.downlink_for(None, 2)


def test_the_server_may_import_the_generator_that_its_run_names() -> None:
    run = a_run()
    with refusing(unnamed_by(run)):
        ServerAtWork(run)
    assert unnamed_by(run)("weighted") is not None


def test_a_small_generator_can_be_trained(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    images = np.broadcast_to(rng.integers(0, 2, (64, 1, 1, 1)) * 255, (64, 1, 32, 32))
    made = trained(images.astype(np.uint8), epochs=2, seed=0)
    first, last = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert last < first
    assert made.state_dict().keys() == small().state_dict().keys()
    with pytest.raises(SystemExit):
        main(["--dataset", "digits", "--out", str(tmp_path / "g.pth")])
    assert "ends in .safetensors" in capsys.readouterr().err


def test_a_run_learns_from_pairs_from_the_second_round_on(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 2, method="fedktl", models="cnn4, resnet10-w4", feature_dim=8, num_rounds=2,
        image_size=16, subset=0.08, fedktl__generator="models.image_generator:small",
        fedktl__server_epochs=1, fedktl__transfer_weight=1.0,
    )  # fmt: skip
    assert run.rows("failures") == []
    assert len(run.metrics(metric="loss_arcface")) == 4
    assert {row["round"] for row in run.metrics(metric="loss_transfer")} == {"2"}
    down = [r for r in run.rows("traffic") if r["direction"] == "downlink" and r["round"] == "2"]
    generated = int(float(run.metrics(metric="classes_generated", round=1)[0]["value"]))
    assert {int(r["scalars"]) for r in down} == {generated * (16 * 16 + 32)}
