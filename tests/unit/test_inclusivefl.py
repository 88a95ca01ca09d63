"""InclusiveFL: distillation by hand, aggregation against a naive one, what groups keep."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars
from strategies.base.state import load_state, save_state
from strategies.common.layerwise_server import layout_for
from strategies.inclusivefl import (
    Group,
    Uplink,
    depths_of,
    distilled,
    in_last_block,
    next_deeper,
)
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info

NESTED = ("resnet10-w4", "resnet14-w4", "resnet18-w4")
BETA = 0.2


def a_server(*models: str, method: str = "inclusivefl", **options: Any) -> Any:
    """Return a server whose client k has the k-th of these models."""
    keys = {f"{method}.{k.replace('_', '-')}": v for k, v in options.items()}
    run = parse_run_config({"method": method, "feature-dim": 8, **keys})
    infos = [
        a_client_info(i, model=model, num_classes=3, channels=1, image_size=16, feature_dim=8)
        for i, model in enumerate(models)
    ]
    return ServerAtWork(run, infos)


def sent_to(server: Any, client_id: int) -> dict[str, NDArray[Any]]:
    down = server.downlink_for(client_id, 1)
    return {name: item.copy() for name, item in {**down.weights, **down.buffers}.items()}


def a_reply(server: Any, client_id: int, examples: int, seed: int) -> ClientUpdate:
    """Return an update that moves every entry by noise, counters by `examples`."""
    noise = np.random.default_rng(seed)
    down = server.downlink_for(client_id, 1)
    moved = [
        {
            name: item + noise.normal(0, 1, item.shape).astype(np.float32)
            if item.dtype == np.float32
            else item + examples
            for name, item in field.items()
        }
        for field in (down.weights, down.buffers)
    ]
    return ClientUpdate(client_id, examples, Uplink(*moved), [], 0.0, 0, 0, "")


def entries(update: ClientUpdate) -> dict[str, NDArray[Any]]:
    return {**update.uplink.weights, **update.uplink.buffers}


# Distillation by hand -----------------------------------------------------------------------------


def tensors(**values: Any) -> dict[str, torch.Tensor]:
    return {k.replace("_", "."): torch.tensor(v, dtype=torch.float32) for k, v in values.items()}


def test_distillation_by_hand() -> None:
    """A stage of one block below a stage of three: v is the mean of three updates.

    u = 3 - 1 = 2, v = (1 + 4 + 10) / 3 = 5, 1 + 0.75 * 2 + 0.25 * 5 = 3.75.
    """
    shallow = Group(tensors(layer1_0_w=[1.0]), tensors(layer1_0_w=[3.0]), 1.0)
    before = tensors(layer1_0_w=[7.0], layer1_1_w=[7.0], layer1_2_w=[7.0], head_w=[0.0])
    after = tensors(layer1_0_w=[8.0], layer1_1_w=[11.0], layer1_2_w=[17.0], head_w=[9.0])
    changed = distilled(shallow, Group(before, after, 1.0), 0.25)
    assert {name: item.tolist() for name, item in changed.items()} == {"layer1.0.w": [3.75]}
    assert shallow.after["layer1.0.w"].tolist() == [3.0]


def test_the_range_begins_at_the_last_block_of_the_shallow_one() -> None:
    """Two blocks below three: v = (4 + 10) / 2 = 7, and only block 1 changes: 2 + 0.5 (7 - 1)."""
    shallow = Group(
        tensors(layer1_0_w=[0.0], layer1_1_w=[1.0]), tensors(layer1_0_w=[5.0], layer1_1_w=[2.0]), 1
    )
    before = tensors(layer1_0_w=[0.0], layer1_1_w=[0.0], layer1_2_w=[0.0])
    after = tensors(layer1_0_w=[-90.0], layer1_1_w=[4.0], layer1_2_w=[10.0])
    changed = distilled(shallow, Group(before, after, 1), 0.5)
    assert {name: item.tolist() for name, item in changed.items()} == {"layer1.1.w": [5.0]}


def test_every_stage_is_its_own_and_unlike_shapes_are_left_alone() -> None:
    """Stage 2's first block has a wider conv1; equal depth in stage 1 means that one block's v."""
    zeros = tensors(layer1_0_w=[0.0], layer2_0_conv1=[0.0, 0.0], layer2_0_conv2=[0.0])
    zeros |= tensors(layer2_0_down=[0.0])
    ones = {name: item + 1 for name, item in zeros.items()}
    before = zeros | tensors(layer2_1_conv1=[0.0], layer2_1_conv2=[0.0])
    after = {name: torch.full_like(item, 3.0) for name, item in before.items()}
    changed = distilled(Group(zeros, ones, 1), Group(before, after, 1), 0.5)
    assert {name: item.tolist() for name, item in changed.items()} == {
        "layer1.0.w": [2.0],  # v = 3
        "layer2.0.conv2": [2.0],  # v = (3 + 3) / 2
    }


def test_depths_and_last_blocks_of_a_resnet() -> None:
    server = a_server(*NESTED)
    names = list(layout_for(server.context, "resnet14-w4").all)
    depths = depths_of(names)
    assert depths == {f"backbone.layer{s}": n for s, n in zip(range(1, 5), (1, 1, 2, 2))}  # noqa: B905
    last = {".".join(n.split(".")[1:3]) for n in names if in_last_block(n, depths)}
    assert last == {"layer1.0", "layer2.0", "layer3.1", "layer4.1"}
    assert depths_of(["backbone.conv.0.weight", "head.weight", "conv1.weight"]) == {}


def test_the_next_deeper_group() -> None:
    depths = {"a": (1, 1), "b": (1, 2), "c": (2, 2), "d": (3, 1), "same": (1, 2), "other": ()}
    stages = {m: {f"layer{s}": n for s, n in enumerate(d)} for m, d in depths.items()}
    found = {model: next_deeper(stages[model], stages) for model in stages}
    assert found == {"a": "b", "b": "c", "c": None, "d": None, "same": "c", "other": None}
    assert next_deeper(stages["a"], {m: stages[m] for m in ("a", "c", "d")}) == "c"


# The whole aggregation ----------------------------------------------------------------------------


def naive(
    held: dict[str, dict[str, NDArray[Any]]],
    replies: list[tuple[str, float, dict[str, NDArray[Any]]]],
    beta: float,
    own_head: bool,
    own_last: bool,
) -> dict[str, dict[str, NDArray[Any]]]:
    """Aggregate with everything in memory, by loops over stages and blocks of the three networks.

    `held` is every model's state before the round; returned is every model's state after it.
    """
    blocks = {"resnet10-w4": (1, 1, 1, 1), "resnet14-w4": (1, 1, 2, 2), "resnet18-w4": (2, 2, 2, 2)}
    parameter = re.compile(r".*(weight|bias)")
    present = [model for model in NESTED if any(m == model for m, _, _ in replies)]
    share = {model: sum(n for m, n, _ in replies if m == model) for model in present}
    mean: dict[str, dict[str, NDArray[Any]]] = {}
    for model in present:
        mean[model] = {}
        for name in held[model]:
            mine = [(n, e[name]) for m, n, e in replies if m == model]
            if name.endswith("num_batches_tracked"):
                mean[model][name] = np.max([e for _, e in mine], axis=0)
            else:
                mean[model][name] = sum(n * e.astype(float) for n, e in mine) / share[model]
    result = {model: dict(mean[model]) for model in present}
    for model, deeper in itertools.pairwise(present):
        for stage in range(4):
            last = blocks[model][stage] - 1
            prefix = f"backbone.layer{stage + 1}."
            for name in held[model]:
                if not name.startswith(f"{prefix}{last}.") or not parameter.fullmatch(name):
                    continue
                rest = name.removeprefix(f"{prefix}{last}.")
                terms = []
                for block in range(last, blocks[deeper][stage]):
                    source = f"{prefix}{block}.{rest}"
                    if (
                        source in held[deeper]
                        and held[deeper][source].shape == held[model][name].shape
                    ):
                        terms.append(mean[deeper][source] - held[deeper][source])
                if len(terms) == blocks[deeper][stage] - last:
                    u = mean[model][name] - held[model][name]
                    u = (1 - beta) * u + beta * sum(terms) / len(terms)
                    result[model][name] = held[model][name] + u

    def is_own(model: str, name: str) -> bool:
        lasts = [f"backbone.layer{s + 1}.{n - 1}." for s, n in enumerate(blocks[model])]
        return (own_head and name.startswith("head.")) or (
            own_last and any(name.startswith(last) for last in lasts)
        )

    after: dict[str, dict[str, NDArray[Any]]] = {}
    for model in NESTED:
        after[model] = {}
        for name, old in held[model].items():
            if is_own(model, name):
                after[model][name] = result[model][name] if model in present else old
                continue
            owners = [m for m in present if name in held[m] and not is_own(m, name)]
            if not owners:
                after[model][name] = old
            elif name.endswith("num_batches_tracked"):
                after[model][name] = np.max([result[m][name] for m in owners], axis=0)
            else:
                total = sum(share[m] for m in owners)
                after[model][name] = sum(share[m] * result[m][name] for m in owners) / total
    return after


@pytest.mark.parametrize(
    ("own_head", "own_last", "absent"),
    [
        (True, True, None),
        (True, True, "resnet10-w4"),
        (True, True, "resnet14-w4"),
        (True, True, "resnet18-w4"),
        (False, False, None),
        (False, False, "resnet14-w4"),
        (False, True, "resnet10-w4"),
        (True, False, "resnet18-w4"),
    ],
)
def test_two_rounds_equal_a_naive_aggregation(
    own_head: bool, own_last: bool, absent: str | None
) -> None:
    """Brute force on three nested networks, five clients, one group without a reply in round 2."""
    models = (*NESTED, "resnet14-w4", "resnet10-w4")
    server = a_server(*models, own_head=own_head, own_last_blocks=own_last, beta=BETA)
    for number in (1, 2):
        held = {model: sent_to(server, models.index(model)) for model in NESTED}
        replies = [
            a_reply(server, i, examples, 10 * number + i)
            for i, examples in enumerate((3, 5, 2, 7, 1))
            if number == 1 or models[i] != absent
        ]
        wanted = naive(
            held,
            [(models[r.client_id], r.num_examples, entries(r)) for r in replies],
            BETA, own_head, own_last,
        )  # fmt: skip
        server.aggregate_in(number, iter(replies))
        for i, model in enumerate(models):
            found = sent_to(server, i)
            assert found.keys() == wanted[model].keys()
            for name, item in found.items():
                np.testing.assert_allclose(
                    item, wanted[model][name], rtol=1e-5, atol=1e-6, err_msg=f"{model} {name}"
                )


def test_the_momentum_makes_a_difference_only_where_it_should() -> None:
    """Against beta = 0, only tensors of shallower groups' last blocks differ, buffers not."""
    after = []
    for beta in (0.0, BETA):
        server = a_server(*NESTED, beta=beta)
        replies = [a_reply(server, i, 4, i) for i in range(3)]
        metrics = server.aggregate_in(1, iter(replies))
        assert metrics == {"distilled_groups": 2.0}
        after.append([sent_to(server, i) for i in range(3)])
    for i, (plain, distilled_) in enumerate(zip(*after, strict=True)):
        depths = depths_of(plain)
        differing = {n for n in plain if not np.array_equal(plain[n], distilled_[n])}
        assert all(in_last_block(name, depths) for name in differing)
        assert not any("running" in name or "tracked" in name for name in differing)
        assert bool(differing) == (i < 2)
        if i == 0:
            assert "backbone.layer3.0.conv2.weight" in differing
            assert "backbone.layer3.0.conv1.weight" not in differing
            assert "backbone.layer3.0.downsample.0.weight" not in differing
            assert "backbone.layer1.0.conv1.weight" in differing


@pytest.mark.parametrize("mean", ["weighted", "uniform"])
def test_without_momentum_and_own_parts_it_is_layerwise_averaging(mean: str) -> None:
    """Group means weighted by their shares are the means over clients: FedAvg by layer."""
    models = (*NESTED, "resnet10-w4")
    plain = {"beta": 0.0, "own_head": False, "own_last_blocks": False, "mean": mean}
    server = a_server(*models, **plain)
    reference = a_server(*models, method="fedavg", mean=mean)
    replies = [a_reply(server, i, n, i) for i, n in enumerate((1, 2, 3, 9))]
    assert server.state.weights.keys() == reference.state.weights.keys()
    server.aggregate_in(1, iter(replies))
    reference.aggregate_in(1, iter(replies))
    for name, item in reference.state.weights.items():
        torch.testing.assert_close(server.state.weights[name], item, rtol=1e-6, atol=1e-6)


def test_what_nobody_in_the_round_has_is_unchanged() -> None:
    server = a_server(*NESTED, own_head=False, own_last_blocks=False)
    before = {name: item.clone() for name, item in server.state.weights.items()}
    server.aggregate_in(1, iter([a_reply(server, 0, 3, 1)]))
    shallow = set(layout_for(server.context, "resnet10-w4").all)
    for name, item in server.state.weights.items():
        assert torch.equal(item, before[name]) == (name not in shallow), name


def test_all_groups_start_alike_and_own_parts_then_differ() -> None:
    server = a_server(*NESTED)
    first, second = sent_to(server, 0), sent_to(server, 2)
    for name, item in first.items():
        np.testing.assert_array_equal(item, second[name])
    server.aggregate_in(1, iter([a_reply(server, i, 3, i) for i in range(3)]))
    first, second = sent_to(server, 0), sent_to(server, 2)
    depths = depths_of(first)
    for name, item in first.items():
        own = name.startswith("head.") or in_last_block(name, depths)
        equal = np.array_equal(item, second[name])
        assert equal != (own and "tracked" not in name), name


def test_own_parts_survive_a_checkpoint(tmp_path: Path) -> None:
    server, again = a_server(*NESTED), a_server(*NESTED)
    server.aggregate_in(1, iter([a_reply(server, i, 3, i) for i in range(3)]))
    save_state(tmp_path / "state.safetensors", server.state, {})
    again.state = load_state(tmp_path / "state.safetensors", again.state)
    for client_id in range(3):
        before, after = sent_to(server, client_id), sent_to(again, client_id)
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_depth_that_joins_late_gets_a_whole_model() -> None:
    server = a_server(*NESTED[:2])
    server.aggregate_in(1, iter([a_reply(server, i, 3, i) for i in range(2)]))
    server.clients[2] = a_client_info(2, model=NESTED[2], num_classes=3, channels=1, image_size=16)
    late = sent_to(server, 2)
    assert late.keys() == layout_for(server.context, NESTED[2]).all.keys()
    np.testing.assert_array_equal(
        late["backbone.conv1.weight"], sent_to(server, 0)["backbone.conv1.weight"]
    )
    metrics = server.aggregate_in(2, iter([a_reply(server, i, 3, i) for i in range(3)]))
    assert metrics == {"distilled_groups": 2.0}


def test_no_reply_is_kept() -> None:
    """Memory does not grow with the number of clients."""
    server = a_server(*(NESTED * 3))
    seen: list[weakref.ref[Any]] = []

    def stream() -> Iterator[ClientUpdate]:
        for client_id in range(9):
            assert all(reference() is None for reference in seen[:-1])
            update = a_reply(server, client_id, 2, client_id)
            seen.append(weakref.ref(update.uplink))
            yield update
            del update

    server.aggregate_in(1, stream())
    assert len(seen) == 9


def test_unlike_families_are_averaged_alone_without_momentum() -> None:
    models = ("cnn5", "cnn2", "resnet10-w4", "cnn5")
    server = a_server(*models)
    reference = a_server(*models, method="fedavg")
    replies = [a_reply(server, i, n, i) for i, n in enumerate((1, 2, 3, 9))]
    assert server.aggregate_in(1, iter(replies)) == {"distilled_groups": 0.0}
    reference.aggregate_in(1, iter(replies))
    assert server.state.weights.keys() == reference.state.weights.keys()
    for name, item in reference.state.weights.items():
        assert torch.equal(server.state.weights[name], item)


def test_scalars_are_the_models_parameters() -> None:
    server = a_server(*NESTED)
    for client_id in range(3):
        down = server.downlink_for(client_id, 1)
        parameters = sum(item.size for item in down.weights.values())
        assert count_scalars(down)[0] == parameters
        assert any(name.startswith("head.") for name in down.weights)


def test_a_run_with_local_buffers(tmp_path: Path) -> None:
    run = run_federation(
        tmp_path, 4, method="inclusivefl", models="resnet10-w4, resnet14-w4", num_rounds=2,
        inclusivefl__buffers="local", sample_fraction=0.5, subset=0.1,
    )  # fmt: skip
    assert run.config["status"] == "completed"
    assert run.rows("failures") == []
    assert run.metrics(metric="distilled_groups")
