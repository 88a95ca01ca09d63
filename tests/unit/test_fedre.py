"""FedRE: entangling, weights, the client's uplink and the server's head, worked out by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app import node
from data import ClientData, DataSpec, Split, load_client_data
from strategies.base.client import ClientContext
from strategies.base.messages import ClientUpdate
from strategies.base.method import get_method
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars
from strategies.common.training import collect_representations
from strategies.fedre import Client, Uplink, draw_weights, entangle, sample_weights
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import CLASSES, a_context

# Five samples of three classes out of four, d = 2; prototypes (2, 0), (0, 3), (5, 5).
R = torch.tensor([[1.0, 0], [3, 0], [0, 2], [0, 4], [5, 5]])
Y = torch.tensor([0, 0, 1, 1, 2])
C = 4
NOTHING: Any = None  # training does not look at the downlink again
PROTOTYPES = {0: [2.0, 0.0], 1: [0.0, 3.0], 2: [5.0, 5.0]}


def mix(mechanism: str, draws: list[float], seed: int = 0) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(seed)
    weights = sample_weights(Y.numpy(), C, mechanism, np.array(draws), generator)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    representation, label = entangle(R, Y, weights, C)
    assert representation.dtype == label.dtype == np.float32
    return representation.tolist(), label.tolist()


@pytest.mark.parametrize(
    ("mechanism", "draws", "representation", "label"),
    [
        # The draw 9 belongs to the class that is absent: 1, 2, 1 become 1/4, 1/2, 1/4.
        ("RAP", [1, 2, 1, 9], [1.75, 2.75], [0.25, 0.5, 0.25, 0]),
        ("RAP", [0.1, 0.1, 0.2, 0.6], [3.0, 3.25], [0.25, 0.25, 0.5, 0]),
        ("RAR", [0.1, 0.1, 0.2, 0.2, 0.4], [2.4, 3.2], [0.2, 0.4, 0.4, 0]),
        ("RAR", [1, 1, 2, 2, 4], [2.4, 3.2], [0.2, 0.4, 0.4, 0]),
        ("VAP", [0] * 4, [7 / 3, 8 / 3], [1 / 3, 1 / 3, 1 / 3, 0]),
        ("VAR", [0] * 5, [1.8, 2.2], [0.4, 0.4, 0.2, 0]),
    ],
)
def test_averages_by_hand(
    mechanism: str, draws: list[float], representation: list[float], label: list[float]
) -> None:
    got = mix(mechanism, draws)
    assert got[0] == pytest.approx(representation)
    assert got[1] == pytest.approx(label)


def test_one_prototype_is_selected_uniformly_over_classes() -> None:
    chosen: Counter[int] = Counter()
    for seed in range(600):
        representation, label = mix("RSP", [0] * C, seed)
        c = label.index(1.0)
        assert sum(label) == 1.0
        assert representation == pytest.approx(PROTOTYPES[c])
        chosen[c] += 1
    assert set(chosen) == {0, 1, 2}
    assert min(chosen.values()) > 150  # 200 expected, deviation 12


def test_one_sample_is_selected_uniformly_over_samples() -> None:
    chosen: Counter[tuple[float, ...]] = Counter()
    for seed in range(600):
        representation, label = mix("RSR", [0] * 5, seed)
        (i,) = [i for i in range(5) if R[i].tolist() == representation]
        assert label == [float(c == Y[i]) for c in range(C)]
        chosen[tuple(representation)] += 1
    assert len(chosen) == 5
    assert min(chosen.values()) > 80  # 120 expected, deviation 10


@pytest.mark.parametrize("seed", range(20))
def test_prototypes_are_the_general_formula(seed: int) -> None:
    """Golden property 2: RAP with w_c equals the mean with w_i = w_c / n_c."""
    generator = np.random.default_rng(seed)
    n, classes, d = int(generator.integers(1, 40)), 6, 3
    labels = generator.integers(0, generator.integers(1, classes + 1), n)
    features = generator.normal(size=(n, d)).astype(np.float32)
    draws = draw_weights(classes, "uniform", "normalise", generator)
    weights = sample_weights(labels, classes, "RAP", draws, generator)
    got, label = entangle(torch.from_numpy(features), torch.from_numpy(labels), weights, classes)
    present = sorted(set(labels.tolist()))
    w = {c: draws[c] / draws[present].sum() for c in present}
    wanted = sum(w[c] * features[labels == c].mean(axis=0, dtype=np.float64) for c in present)
    assert got == pytest.approx(wanted, abs=1e-6)
    assert sum(label) == pytest.approx(1, abs=1e-6)
    assert np.flatnonzero(label).tolist() == present
    assert label[present] == pytest.approx([w[c] for c in present], abs=1e-6)


@pytest.mark.parametrize("mechanism", ["RAP", "VAP", "RSP"])
def test_a_one_class_client_gives_its_prototype(mechanism: str) -> None:
    labels = torch.full((3,), 2)
    features = torch.tensor([[1.0, 2], [3, 4], [8, 0]])
    draws = np.array([0.3, 0.3, 0.2, 0.2])
    weights = sample_weights(labels.numpy(), C, mechanism, draws, np.random.default_rng(0))
    representation, label = entangle(features, labels, weights, C)
    assert representation.tolist() == [4, 2]
    assert label.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("mechanism", ["RAP", "RAR", "VAP", "VAR", "RSP", "RSR"])
def test_a_one_example_client_gives_its_example(mechanism: str) -> None:
    draws = np.array([1.0]) if mechanism == "RAR" else np.full(C, 0.25)
    weights = sample_weights(np.array([1]), C, mechanism, draws, np.random.default_rng(0))
    representation, label = entangle(torch.tensor([[7.0, -1]]), torch.tensor([1]), weights, C)
    assert representation.tolist() == [7, -1]
    assert label.tolist() == [0, 1, 0, 0]


# Weights ------------------------------------------------------------


def many(distribution: str, weight_map: str, count: int = 4, draws: int = 6000) -> NDArray[Any]:
    generator = np.random.default_rng(11)
    return np.stack(
        [draw_weights(count, distribution, weight_map, generator) for _ in range(draws)]
    )


@pytest.mark.parametrize("distribution", ["uniform", "gaussian", "laplacian"])
@pytest.mark.parametrize("weight_map", ["normalise", "softmax"])
def test_weights_are_a_distribution(distribution: str, weight_map: str) -> None:
    w = many(distribution, weight_map, draws=500)
    assert (w >= 0).all()
    assert w.sum(axis=1) == pytest.approx(1)
    assert w.mean(axis=0) == pytest.approx(0.25, abs=0.03)
    assert draw_weights(1, distribution, weight_map, np.random.default_rng(0)) == pytest.approx([1])


def test_laplacian_weights_are_uniform_on_the_simplex() -> None:
    """Dirichlet(1, 1, 1, 1): variance 3/80, mean product 1/20, P(w > 1/2) = (1/2)^3."""
    w = many("laplacian", "normalise")
    assert w.mean(axis=0) == pytest.approx(1 / 4, abs=0.01)
    assert w.var(axis=0) == pytest.approx(3 / 80, abs=0.003)
    assert (w[:, 0] * w[:, 1]).mean() == pytest.approx(1 / 20, abs=0.002)
    assert (w > 0.5).mean() == pytest.approx(1 / 8, abs=0.01)


def test_distributions_and_maps_differ() -> None:
    spread = {
        (d, m): many(d, m, draws=800).var()
        for d in ("uniform", "gaussian", "laplacian")
        for m in ("normalise", "softmax")
    }
    order = [spread[d, "normalise"] for d in ("uniform", "gaussian", "laplacian")]
    assert order == sorted(order)
    assert spread["uniform", "softmax"] < spread["uniform", "normalise"]


def test_softmax_is_of_the_signed_draws() -> None:
    draws = np.random.default_rng(5).normal(size=3)
    wanted = np.exp(draws) / np.exp(draws).sum()
    assert draw_weights(3, "gaussian", "softmax", np.random.default_rng(5)) == pytest.approx(wanted)


# The client half ------------------------------------------------------------


def a_client(server_round: int, **config: Any) -> ClientContext:
    context = a_context(12, server_round=server_round, **config)
    return dataclasses.replace(context, model_name="cnn5")


def train_rounds(rounds: list[int], **config: Any) -> list[Uplink]:
    half = Client()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = half.build(a_client(1, **config))
    uplinks = []
    for number in rounds:
        uplink, metrics = half.train(a_client(number, **config), state, NOTHING)
        assert metrics["examples_seen"] == 12
        uplinks.append(uplink)
    return uplinks


@pytest.mark.parametrize("mechanism", ["RAP", "RAR"])
def test_fixed_weights_stay_and_resampled_ones_do_not(mechanism: str) -> None:
    """Golden property 2; y~ holds the weights of the classes."""
    keys = {"fedre.mechanism": mechanism}
    fixed = train_rounds([1, 2, 7], **{**keys, "fedre.resample": False})
    assert all(np.array_equal(u.entangled_label, fixed[0].entangled_label) for u in fixed)
    late = train_rounds([7], **{**keys, "fedre.resample": False})
    assert np.array_equal(late[0].entangled_label, fixed[0].entangled_label)
    drawn = train_rounds([1, 2, 1], **keys)
    assert not np.allclose(drawn[0].entangled_label, drawn[1].entangled_label)
    assert np.array_equal(drawn[0].entangled_label, drawn[2].entangled_label)


@pytest.mark.parametrize("mechanism", ["VAP", "VAR"])
def test_equal_weights_are_the_same_every_round(mechanism: str) -> None:
    first, second = train_rounds([1, 2], **{"fedre.mechanism": mechanism})
    assert np.array_equal(first.entangled_label, second.entangled_label)


def test_the_uplink_is_made_of_the_representations_after_training() -> None:
    half = Client()
    context = a_client(1, **{"fedre.mechanism": "VAR"})
    state = half.build(context)
    uplink, _ = half.train(context, state, None)  # type: ignore[arg-type]
    representations, labels = collect_representations(context, state.model)
    assert uplink.entangled_rep == pytest.approx(representations.mean(dim=0).numpy(), abs=1e-6)
    counts = np.bincount(labels.numpy(), minlength=CLASSES)
    assert uplink.entangled_label == pytest.approx(counts / 12, abs=1e-6)


def test_the_uplink_counts_as_in_the_paper() -> None:
    """Ten clients, C = 100: 5,120 scalars, labels not counted; 612 a client on the wire."""
    uplink = Uplink(np.zeros(512, np.float32), np.zeros(100, np.float32))
    assert count_scalars(uplink) == (512, 612)


# The server half ------------------------------------------------------------


def a_server(**config: Any) -> Any:
    run = parse_run_config({"method": "fedre", "feature-dim": 2, **config})
    infos = [a_client_info(i, feature_dim=2, num_classes=C, classes=[0, 2]) for i in range(2)]
    strategy = ServerAtWork(run, infos)
    strategy.state.head_weight.zero_()
    strategy.state.head_bias.zero_()
    return strategy


def an_update(client: int, rep: list[float], label: list[float]) -> ClientUpdate:
    uplink = Uplink(np.array(rep, np.float32), np.array(label, np.float32))
    return ClientUpdate(client, 5, uplink, [], 0.0, 0, 2, "w")


UPDATES = [an_update(0, [1, 0], [0.5, 0, 0.5, 0]), an_update(1, [0, 2], [1, 0, 0, 0])]


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.5)])
def test_the_head_takes_one_step_by_hand(reduction: str, share: float) -> None:
    """W = 0: p = 1/4 for each class, the gradient is sum_k (p - y~_k) r~_k."""
    strategy = a_server(**{"fedre.server-lr": 0.1, "fedre.reduction": reduction})
    metrics = strategy.aggregate_in(1, iter(UPDATES))
    gradient = torch.tensor([[-0.25, -1.5], [0.25, 0.5], [-0.25, 0.5], [0.25, 0.5]])
    assert torch.allclose(strategy.state.head_weight, -0.1 * share * gradient)
    bias = torch.tensor([-1.0, 0.5, 0.0, 0.5])
    assert torch.allclose(strategy.state.head_bias, -0.1 * share * bias)
    assert metrics["server_loss"] == metrics["server_loss_before"] == pytest.approx(np.log(4))
    logits = torch.tensor([[1.0, 0], [0, 2]]) @ strategy.state.head_weight.T
    labels = torch.from_numpy(np.stack([u.uplink.entangled_label for u in UPDATES]))
    after = torch.nn.functional.cross_entropy(logits + strategy.state.head_bias, labels)
    assert metrics["server_loss_after"] == pytest.approx(after.item())


def test_absent_classes_can_be_left_out() -> None:
    strategy = a_server(**{"fedre.mask-absent": True, "fedre.server-lr": 0.1})
    strategy.aggregate_in(1, iter(UPDATES))
    weight = strategy.state.head_weight
    assert weight[[1, 3]].abs().sum() == 0
    # Two classes left: p = 1/2.
    assert torch.allclose(weight[[0, 2]], -0.1 * torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
    assert strategy.state.head_bias[[1, 3]].abs().sum() == 0


def test_a_downlink_is_not_changed_by_later_training() -> None:
    from strategies.base.payload import pack, unpack

    strategy = a_server()
    strategy.state.head_weight.fill_(1)
    content = pack(strategy.downlink_for(0, 1))
    strategy.aggregate_in(1, iter(UPDATES))
    strategy.state.head_weight.zero_()
    received = unpack(get_method("fedre").downlink, content, {"d": 2, "C": C})
    assert received.head_weight.tolist() == [[1, 1]] * C


def test_the_first_head_depends_on_the_seed_alone() -> None:
    def first(seed: int) -> torch.Tensor:
        run = parse_run_config({"method": "fedre", "feature-dim": 2, "seed": seed})
        strategy = ServerAtWork(run, [a_client_info(0, feature_dim=2)])
        weight: torch.Tensor = strategy.state.head_weight
        return weight

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


# Whole runs ------------------------------------------------------------


@pytest.mark.parametrize(("mapping", "extra"), [("AP", 0), ("MP", 0), ("FC", 500 * 64 + 64)])
def test_every_mapping_runs(mapping: str, extra: int, tmp_path: Path) -> None:
    run = run_federation(
        tmp_path,
        2,
        models="five-cnns",
        subset=0.1,
        num_rounds=1,
        feature_dim=64,
        fedre__mapping=mapping,
    )
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    # The table's CNN-1 and CNN-2 without their heads 500 -> 10 and without two of three input
    # channels; with a head 64 -> 10 and the mapping.
    for row, published in zip(run.rows("clients"), (2_621_558, 1_815_142), strict=True):
        backbone = published - (500 * 10 + 10) - 2 * 16 * 25
        assert (row["raw_dim"], row["feature_dim"]) == ("500", "64")
        assert int(row["parameters"]) == backbone + 64 * 10 + 10 + extra
    up = [r for r in run.rows("traffic") if (r["direction"], r["purpose"]) == ("uplink", "train")]
    assert [row["scalars"] for row in up] == ["64", "64"]


def test_a_client_without_examples_is_evaluated_and_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U30: one of three holds no training examples."""

    def load(spec: DataSpec, client: int, clients: int) -> ClientData:
        data = load_client_data(spec, client, clients)
        if client != 1:
            return data
        nothing = Split(data.dataset, data.train.indices[:0])
        return ClientData(data.dataset, nothing, data.validation, data.test)

    monkeypatch.setattr(node, "load_client_data", load)
    run = run_federation(tmp_path, 3, models="five-cnns", subset=0.1, num_rounds=2)
    assert run.config["status"] == "completed"
    assert {r["client"] for r in run.metrics(phase="train", metric="loss")} == {"0", "2"}
    assert {r["client"] for r in run.metrics(metric="accuracy")} == {"0", "1", "2"}
    assert run.rows("failures") == []
    assert run.summary["clients_failed"] == 0
