"""FedIN's server: the pool and its draws, means, unlike clients in a common space; whole runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Message

from models import InputShape, build_model
from server_app.inprocess import InProcessGrid
from strategies.base.client import ClientContext
from strategies.base.features import FeatureShape
from strategies.base.payload import ARRAYS, PayloadError
from strategies.base.projections import Projections, projections_for, semi_orthogonal
from strategies.base.server import RosterError
from strategies.base.state import load_state, save_state
from strategies.fedin import Client, Uplink
from tests.support import Outcome, run_federation
from tests.unit.test_fedin import MAPS, WIDTH, context_of
from tests.unit.test_layerwise import a_server, card_of, play, server_for, states_of, update

FAMILY = {0: "resnet10-w4", 1: "resnet10-w4", 2: "resnet14-w4"}


def server_of(models: Mapping[int, str] = FAMILY, **config: Any) -> Any:
    return a_server(models, "fedin", **{f"fedin__{key}": value for key, value in config.items()})


def uplink_of(client: int, pairs: int, seed: int = 0, model: str = "resnet10-w4") -> Any:
    """An update whose pairs hold 100 * client + their number in every element."""
    weights, buffers = states_of(model, 10 * seed + client)
    marks = (100 * client + np.arange(pairs, dtype=np.float32)).reshape(-1, 1)
    s_in = np.broadcast_to(marks.reshape(-1, 1, 1, 1), (pairs, *MAPS)).copy()
    s_out = np.broadcast_to(marks, (pairs, WIDTH)).copy()
    return update(client, pairs, Uplink(weights, buffers, s_in, s_out))


def marks_of(downlink: Any) -> list[float]:
    """Return which pairs a downlink holds, after checking that s_in and s_out belong together."""
    marks = [float(row[0]) for row in downlink.s_out]
    assert [float(row.flat[0]) for row in downlink.s_in] == marks
    return marks


# The pool -----------------------------------------------------------------------------------------


def test_first_downlink_has_no_pairs_and_later_ones_come_from_others() -> None:
    server = server_of(feature_batch_size=4)
    first = server.make_downlink(server.cards[0], 1)
    assert first.s_in.shape == (0, *MAPS)
    assert first.s_out.shape == (0, WIDTH)
    server.aggregate(1, iter([uplink_of(0, 3), uplink_of(1, 4), uplink_of(2, 4, 0, FAMILY[2])]))
    assert server.state.sender.tolist() == [0] * 3 + [1] * 4 + [2] * 4
    draws = {}
    for client in FAMILY:
        marks = marks_of(server.make_downlink(server.cards[client], 2))
        assert len(marks) == len(set(marks)) == 4
        assert client not in {int(mark // 100) for mark in marks}
        draws[client] = marks
        assert marks == marks_of(server.make_downlink(server.cards[client], 2))
    assert draws[0] != draws[1]
    assert draws[0] != marks_of(server.make_downlink(server.cards[0], 3))


def test_own_pairs_are_better_than_none() -> None:
    server = server_of(feature_batch_size=4)
    server.aggregate(1, iter([uplink_of(1, 3)]))
    assert sorted(marks_of(server.make_downlink(server.cards[1], 2))) == [100, 101, 102]
    assert sorted(marks_of(server.make_downlink(server.cards[0], 2))) == [100, 101, 102]


def test_draws_are_uniform_over_others() -> None:
    """1 of 4 pairs in 400 rounds: each about 100 times, standard deviation 8.7."""
    server = server_of(feature_batch_size=1)
    server.state.sender = torch.tensor([0, 0, 1, 1, 1, 1])
    counts = np.zeros(6)
    for server_round in range(400):
        counts[server.draw(0, server_round)] += 1
    assert counts[:2].sum() == 0
    assert (abs(counts[2:] - 100) < 35).all()


def test_a_shared_draw_is_one_for_all() -> None:
    server = server_of(draw="shared", feature_batch_size=4)
    server.aggregate(1, iter([uplink_of(0, 4), uplink_of(1, 4)]))
    draws = [marks_of(server.make_downlink(card, 2)) for card in server.cards.values()]
    assert draws[0] == draws[1] == draws[2]
    assert len(set(draws[0])) == 4


def test_the_pool_is_of_the_round_or_the_latest_of_every_client() -> None:
    for pool, expected in (("round", [0, 0, 200]), ("latest", [0, 0, 100, 101, 200])):
        server = server_of(pool=pool)
        server.aggregate(1, iter([uplink_of(0, 3), uplink_of(1, 2)]))
        server.aggregate(2, iter([uplink_of(0, 2, 1), uplink_of(2, 1, 1, FAMILY[2])]))
        held = server.state.s_out[:, 0].tolist()
        assert held == [0.0, 1.0, *expected[2:]]
        assert (server.state.sender == server.state.s_out[:, 0] // 100).all()
        assert (server.state.s_in[:, 0, 0, 0] == server.state.s_out[:, 0]).all()


def test_more_batches_go_both_ways() -> None:
    server = server_of(feature_batch_size=2, feature_batches=3)
    server.aggregate(1, iter([uplink_of(0, 6), uplink_of(1, 6), uplink_of(2, 6, 0, FAMILY[2])]))
    assert len(set(marks_of(server.make_downlink(server.cards[0], 2)))) == 6


@pytest.mark.parametrize(("pairs", "examples"), [(3, 4), (5, 4), (5, 9), (0, 2)])
def test_a_wrong_number_of_pairs_is_refused(pairs: int, examples: int) -> None:
    server = server_of(feature_batch_size=4)
    wrong = dataclasses.replace(uplink_of(0, pairs), num_examples=examples)
    with pytest.raises(PayloadError, match=f"s_in: {pairs} pairs, expected {min(4, examples)}"):
        server.check_uplink(wrong)
    server.check_uplink(dataclasses.replace(uplink_of(0, 3), num_examples=3))


def test_without_in_training_nothing_is_pooled() -> None:
    server = server_of(alleviation="none")
    server.check_uplink(dataclasses.replace(uplink_of(0, 0), num_examples=9))
    server.aggregate(1, iter([dataclasses.replace(uplink_of(0, 0), num_examples=9)]))
    assert len(server.make_downlink(server.cards[1], 2).s_in) == 0


def test_the_pool_survives_a_checkpoint(tmp_path: Path) -> None:
    server = server_of()
    server.aggregate(1, iter([uplink_of(0, 3), uplink_of(1, 2)]))
    save_state(tmp_path / "state", server.state, {})
    again = server_of()
    load_state(tmp_path / "state", again.state)
    for field in ("s_in", "s_out", "sender"):
        assert torch.equal(getattr(again.state, field), getattr(server.state, field))
    assert marks_of(again.make_downlink(again.cards[2], 2)) == marks_of(
        server.make_downlink(server.cards[2], 2)
    )


# Means --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "mean", "share"),
    [
        ("layerwise", "auto", 1 / 2), ("architecture", "auto", 1 / 4),
        ("layerwise", "weighted", 1 / 4), ("architecture", "uniform", 1 / 2),
    ],
)  # fmt: skip
def test_means_are_equal_by_layer_and_by_examples_within_architectures(
    aggregation: str, mean: str, share: float
) -> None:
    """Clients 0 and 1, of one architecture, have 1 and 3 examples; Eq. 19 and Eq. 20, 21."""
    server = server_of(aggregation=aggregation, mean=mean)
    sent = [uplink_of(0, 1), uplink_of(1, 3)]
    server.aggregate(1, iter(sent))
    name = "backbone.layer3.0.conv2.weight"
    expected = sum(
        part * item.uplink.weights[name]
        for part, item in zip((share, 1 - share), sent, strict=True)
    )
    received = server.weights_for(server.cards[0])["weights"][name]
    np.testing.assert_allclose(received, expected, rtol=1e-6, atol=1e-7)
    deeper = server.weights_for(server.cards[2])["weights"][name]
    assert np.allclose(deeper, expected, atol=1e-6) is (aggregation == "layerwise")


# Unlike clients -----------------------------------------------------------------------------------


def test_projections_are_semi_orthogonal() -> None:
    for rows, columns in ((5, 3), (3, 5)):
        matrix = semi_orthogonal(rows, columns, torch.Generator().manual_seed(0))
        product = matrix.T @ matrix if rows > columns else matrix @ matrix.T
        torch.testing.assert_close(product, torch.eye(3))


def test_an_architecture_gets_back_what_it_sent_and_draws_by_its_name() -> None:
    own, common = FeatureShape(4, 3, 5), FeatureShape(6, 3, 9)
    first, same, other = (Projections(own, common, 0, name, False) for name in ("a", "a", "b"))
    x, r = torch.randn(2, 4, 3, 3), torch.randn(2, 5)
    sent, vector = first.send_maps(x), first.send_features(r)
    assert sent.shape == (2, 6, 3, 3)
    assert vector.shape == (2, 9)
    torch.testing.assert_close(same.take_maps(sent), x)
    torch.testing.assert_close(same.take_features(vector), r)
    torch.testing.assert_close(sent.square().sum(), x.square().sum())
    assert torch.equal(same.send_maps(x), sent)
    assert not torch.allclose(other.send_maps(x), sent)
    assert not torch.allclose(Projections(own, common, 1, "a", False).send_maps(x), sent)


def test_sizes_are_pooled_and_equal_widths_stay_as_they_are() -> None:
    there = Projections(FeatureShape(2, 4, 5), FeatureShape(2, 2, 5), 0, "a", True)
    x, r = torch.randn(3, 2, 4, 4), torch.randn(3, 5)
    torch.testing.assert_close(there.send_maps(x), F.avg_pool2d(x, 2))
    back = there.take_maps(F.avg_pool2d(x, 2))
    torch.testing.assert_close(back, F.interpolate(F.avg_pool2d(x, 2), scale_factor=2))
    assert there.send_features(r) is r
    assert not there.trainable
    assert not list(there.parameters())


def test_the_detour_trains_projections_and_not_the_model() -> None:
    context = context_of(4, fedin__projection="trainable")
    model: Any = context.build_model().eval()
    there = projections_for(context, model, FeatureShape(32, 4, 12), {})
    assert there.trainable
    assert {name for name, _ in there.named_parameters()} == {
        "maps_out", "maps_in", "features_out", "features_in",
    }  # fmt: skip
    logits = there.detour(model, torch.randn(2, *MAPS))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in there.parameters())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


UNLIKE = {0: "cnn5", 1: "resnet10-w4", 2: "resnet14-w4", 3: "resnet10", 4: "resnet10-w4"}


def unlike_contexts() -> dict[int, ClientContext]:
    return {
        client: dataclasses.replace(context_of(6 + client, server_round=1), client_id=client,
                                    model_name=model)
        for client, model in UNLIKE.items()
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fixed", "trainable"])
def test_cnns_and_resnets_of_two_widths_train_each_other(kind: str) -> None:
    """Raw widths 500, 128 and 512; stems 16x6x6, 16x4x4 and 64x4x4: common 64x4x4 and 512."""
    contexts = unlike_contexts()
    keys = {"fedin__projection": kind, "fedin__local_width": "raw", "fedin__feature_batch_size": 5}
    server = server_for(contexts, "fedin", batch_size=6, lr=0.01, **keys)
    assert server.common_shape() == FeatureShape(64, 4, 512)
    assert server.shape_of("cnn5") == FeatureShape(16, 6, 500)
    assert server.shape_of("resnet14-w4") == FeatureShape(16, 4, 128)
    assert not server.state.layerwise
    states: dict[int, Any] = {}
    play(server, contexts, states, 1, UNLIKE)
    kept = {client: dict(state.projections) for client, state in states.items()}
    updates = play(server, contexts, states, 2, UNLIKE)
    for item in updates.values():
        assert item.uplink.s_in.shape == (5, 64, 4, 4)
        assert item.uplink.s_out.shape == (5, 512)
    # Two clients of one architecture share a mean; others have none of it.
    name = "resnet10-w4/backbone.layer1.0.conv1.weight"
    pair = [
        (updates[i].uplink.weights[name.split("/")[1]], updates[i].num_examples) for i in (1, 4)
    ]
    mean = sum(w * n for w, n in pair) / sum(n for _, n in pair)
    np.testing.assert_allclose(server.state.weights[name].numpy(), mean, rtol=1e-5, atol=1e-7)
    for client, state in states.items():
        trains = kind == "trainable" and client != 3  # resnet10's own space is the common one
        assert bool(state.projections) is trains
        for key, matrix in state.projections.items():
            assert not torch.equal(matrix, kept[client][key]), key


def test_fixed_projections_of_a_client_are_those_of_its_architecture() -> None:
    contexts = unlike_contexts()
    common = FeatureShape(64, 4, 8)
    first, other = (
        projections_for(contexts[i], Client().build(contexts[i]).model, common, {}) for i in (1, 4)
    )
    assert first.maps_out is not None
    assert other.maps_out is not None
    assert torch.equal(first.maps_out, other.maps_out)
    torch.testing.assert_close(first.maps_out.T @ first.maps_out, torch.eye(16))


def test_a_common_space_of_ones_own_makes_the_payload_smaller() -> None:
    server = server_of(common_channels=4, common_size=2, common_width=6)
    downlink = server.make_downlink(server.cards[0], 1)
    assert downlink.s_in.shape == (0, 4, 2, 2)
    assert downlink.s_out.shape == (0, 6)
    assert not server.state.layerwise
    assert {k: server.dims[k] for k in ("channels", "size", "width")} == {
        "channels": 4, "size": 2, "width": 6,
    }  # fmt: skip


def test_a_family_of_one_stem_is_averaged_by_layer() -> None:
    assert server_of().state.layerwise
    assert not server_of({0: "cnn5", 1: "resnet10-w4"}).state.layerwise


def test_unfit_clients_are_named_at_the_roll_call() -> None:
    with pytest.raises(RosterError, match=r"client 1: model mobilenetv2 cannot be cut .*ResNet or"):
        server_of({0: "resnet10-w4", 1: "mobilenetv2"})
    with pytest.raises(
        RosterError,
        match=r"client 1: model cnn5 gives 16x6x6 .* client 0's resnet10-w4 16x4x4 .*'fixed'",
    ):
        server_of({0: "resnet10-w4", 1: "cnn5"}, projection="none")
    server = server_of(projection="none", aggregation="architecture")
    with pytest.raises(RosterError, match=r"client 7: model resnet10 gives 64x4x4"):
        server.admit([card_of(7, "resnet10")])
    assert 7 not in server.cards


def test_a_late_joiner_takes_the_common_space_as_it_is() -> None:
    server = server_of({0: "cnn5", 1: "resnet10-w4"})
    before = server.common_shape()
    server.admit([card_of(2, "resnet10")])
    assert server.common_shape() == before == FeatureShape(16, 4, 8)
    downlink = server.make_downlink(server.cards[2], 2)
    assert downlink.s_in.shape == (0, 16, 4, 4)
    with torch.device("meta"):
        parameters = build_model("resnet10", InputShape(1, 16, 3), 8).named_parameters()
        assert set(downlink.weights) == {name for name, _ in parameters}


# Whole runs ---------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "method": "fedin", "subset": 0.06, "batch_size": 16, "models": "resnet10-w4, resnet14-w4",
}  # fmt: skip


def train_scalars(run: Outcome, server_round: int) -> dict[tuple[str, str], int]:
    return {
        (row["client"], row["direction"]): int(row["scalars"])
        for row in run.rows("traffic")
        if row["purpose"] == "train" and row["round"] == str(server_round)
    }


def test_traffic_and_metrics_of_a_run(tmp_path: Path) -> None:
    """32x32 images: 16 pairs of 16x8x8 maps and 512 features, from round 2 on also down."""
    run = run_federation(tmp_path, 2, **SETTINGS)
    features = 16 * (16 * 8 * 8 + 512)
    for row in run.rows("clients"):
        client, parameters = row["client"], int(row["parameters"])
        first, second = train_scalars(run, 1), train_scalars(run, 2)
        assert first[client, "uplink"] == second[client, "uplink"] == parameters + features
        assert first[client, "downlink"] == parameters
        assert second[client, "downlink"] == parameters + features
    assert not run.metrics(metric="loss_in", round=1)
    assert len(run.metrics(metric="loss_in", round=2)) == 2
    assert len(run.metrics(metric="loss_prox")) == 4
    shares = [float(row["value"]) for row in run.metrics(metric="constraint_active", round=2)]
    assert len(shares) == 2
    assert all(0 < share < 1 for share in shares)


def test_two_clients_get_each_others_pairs_over_the_wire(tmp_path: Path) -> None:
    """The flat float arrays end with the pairs, in the order of the payload's fields."""
    seen: dict[tuple[str, int], set[bytes]] = {}

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            reply = super()._answer(message)
            if message.metadata.message_type == "train":
                client = int(reply.content["info"]["client-id"])
                number = message.metadata.group_id
                for way, content in (("down", message.content), ("up", reply.content)):
                    flat = max(
                        (item.numpy() for item in content[ARRAYS].values()), key=lambda x: x.size
                    )
                    rows = flat[-16 * 512 :].reshape(16, 512)
                    seen[f"{way}{number}", client] = {row.tobytes() for row in rows}
            return reply

    run_federation(tmp_path, 2, grid_class=Tapped, **SETTINGS)
    assert len(seen["up1", 0]) == 16
    assert seen["down2", 0] == seen["up1", 1]
    assert seen["down2", 1] == seen["up1", 0]


@pytest.mark.parametrize(
    "options",
    [
        {"pool": "latest", "anchor": "own", "alleviation": "exact", "scope": "body"},
        {"models": "cnn5, resnet10-w4, cnn2", "projection": "trainable", "noise": 0.2,
         "draw": "shared", "feature_batches": 2, "buffers": "local"},
    ],
)  # fmt: skip
def test_resumed_runs_are_exact_with_what_the_options_keep(
    options: dict[str, Any], tmp_path: Path
) -> None:
    own = {k if k == "models" else f"fedin__{k}": value for k, value in options.items()}
    settings = {**SETTINGS, "sample_fraction": 0.67, **own}
    whole = run_federation(tmp_path / "a", 3, **settings, num_rounds=3)
    run_federation(tmp_path / "b", 3, **settings, num_rounds=2)
    resumed = run_federation(tmp_path / "b", 3, **settings, num_rounds=3, resume="run")

    def rows(run: Outcome) -> list[dict[str, str]]:
        return [row for row in run.rows("metrics") if row["phase"] != "final"]

    assert rows(resumed) == rows(whole)
    assert {row["metric"] for row in rows(whole)} >= {"loss_in", "loss_prox", "constraint_active"}
