"""InCo: the mixed update by hand and by loops over kernels, what is left alone, states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.resnet import Bottleneck, ResNet
from strategies.inco import Config, Uplink, mixed, reference_of, with_cross_layer
from tests.unit.layerwise_support import NESTED, SHAPE, a_server, states_of, update

STAGES = {"resnet10-w4": (1, 1, 1, 1), "resnet14-w4": (1, 1, 2, 2), "resnet18-w4": (2, 2, 2, 2)}


def kernel(*rows: tuple[float, float, float]) -> torch.Tensor:
    """One kernel of one pair of channels, (1, 1, 3, 3)."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


# The formula by hand ------------------------------------------------------------------------------


def test_a_kernel_by_hand() -> None:
    """g = 0.03 e_11 + 0.04 e_12, |g| = 0.05; g0 = 0.1 e_11, |g0| = 0.1.

    theta = 0.003 / 0.01 = 0.3; g/|g| = (0.6, 0.8), theta g0/|g0| = (0.3, 0), times
    (0.05 + 0.1) / 2 = 0.075: (0.0675, 0.06).
    """
    g = kernel((0.03, 0.04, 0), (0, 0, 0), (0, 0, 0))
    g0 = kernel((-0.1, 0, 0), (0, 0, 0), (0, 0, 0))
    wanted = kernel((0.0675, 0.06, 0), (0, 0, 0), (0, 0, 0))
    torch.testing.assert_close(mixed(g, -g0, 5.0, 0.1), wanted, rtol=1e-4, atol=1e-9)
    # theta is an absolute value: against g0 the part along it is (0.6 - 0.3) 0.075.
    wanted[0, 0, 0, 0] = 0.0225
    torch.testing.assert_close(mixed(g, g0, 5.0, 0.1), wanted, rtol=1e-4, atol=1e-9)


def test_theta_is_limited() -> None:
    """g = 1 e_11, g0 = 0.1 e_11: theta = 0.1 / 0.01 = 10, limited to 5: (1 + 5) 0.55 = 3.3."""
    g, g0 = kernel((1, 0, 0), (0, 0, 0), (0, 0, 0)), kernel((0.1, 0, 0), (0, 0, 0), (0, 0, 0))
    assert mixed(g, g0, 5.0, 99.0)[0, 0, 0, 0].item() == pytest.approx(3.3, rel=1e-4)
    assert mixed(g, g0, 99.0, 99.0)[0, 0, 0, 0].item() == pytest.approx(11 * 0.55, rel=1e-4)
    assert mixed(g, g0, 0.0, 99.0)[0, 0, 0, 0].item() == pytest.approx(0.55, rel=1e-4)


def test_every_element_is_clipped() -> None:
    g = kernel((1, -1, 0.001), (0, 0, 0), (0, 0, 0))
    assert mixed(g, g, 5.0, 0.1)[0, 0, 0].tolist() == pytest.approx([0.1, -0.1, 0.002], rel=1e-4)


def test_zero_gradients_are_safe() -> None:
    """A kernel that did not move stays; beside a reference that did not, g is halved."""
    zero, g = torch.zeros(1, 1, 3, 3, dtype=torch.float64), kernel((0.06, 0, 0), (0,) * 3, (0,) * 3)
    assert mixed(zero, zero, 5.0, 0.1).eq(0).all()
    assert mixed(zero, g, 5.0, 0.1).eq(0).all()
    torch.testing.assert_close(mixed(g, zero, 5.0, 0.1), g / 2, rtol=1e-4, atol=1e-9)


def test_kernels_are_mixed_one_by_one() -> None:
    """The vectorised form equals loops over pairs of channels and over elements."""
    draw = torch.Generator().manual_seed(3)
    g, g0 = (torch.randn(3, 2, 3, 3, generator=draw, dtype=torch.float64) / 20 for _ in range(2))
    found = mixed(g, g0, 0.8, 0.1)
    for a in range(3):
        for b in range(2):
            one, first = g[a, b].flatten().tolist(), g0[a, b].flatten().tolist()
            size, size0 = math.hypot(*one) + 0.0, math.hypot(*first) + 0.0
            dot = sum(x * y for x, y in zip(one, first, strict=True))
            theta = min(abs(dot) / (size0**2 + 1e-7), 0.8)
            for i, (x, y) in enumerate(zip(one, first, strict=True)):
                value = (x / (size + 1e-7) + theta * y / (size0 + 1e-7)) * (size + size0) / 2
                wanted = max(-0.1, min(0.1, value))
                assert found[a, b].flatten()[i].item() == pytest.approx(wanted, rel=1e-9)


# Which entries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "reference"),
    [
        ("backbone.layer2.1.conv1.weight", "backbone.layer2.0.conv2.weight"),
        ("backbone.layer2.2.conv2.weight", "backbone.layer2.0.conv2.weight"),
        ("layer4.11.conv2.weight", "layer4.0.conv2.weight"),
        ("resnet14/backbone.layer3.1.conv1.weight", "resnet14/backbone.layer3.0.conv2.weight"),
        ("backbone.layer2.0.conv2.weight", None),
        ("backbone.layer2.1.bn1.weight", None),
        ("backbone.layer2.1.bn1.running_var", None),
        ("backbone.layer2.1.downsample.0.weight", None),
        ("backbone.conv1.weight", None),
        ("head.weight", None),
    ],
)
def test_references(key: str, reference: str | None) -> None:
    assert reference_of(key) == reference


def test_of_a_bottleneck_only_the_middle_convolution_changes() -> None:
    before = dict(ResNet(SHAPE, Bottleneck, (2, 1, 1, 1), width=4).state_dict())
    after = {name: item + 0.01 for name, item in before.items()}
    assert set(with_cross_layer(before, after, Config())) == {"layer1.1.conv2.weight"}


# The whole aggregation ----------------------------------------------------------------------------


def naive(
    held: dict[str, NDArray[Any]], replies: list[tuple[str, dict[str, NDArray[Any]]]]
) -> dict[str, NDArray[Any]]:
    """Aggregate by loops over stages, blocks and convolutions, a kernel a row."""
    after = dict(held)
    for name, old in held.items():
        sent = [entries[name] for _, entries in replies if name in entries]
        if name.endswith("tracked"):
            after[name] = np.max([*sent], axis=0) if sent else old
        elif sent:
            after[name] = np.mean([item.astype(float) for item in sent], axis=0)
    plain = dict(after)
    deepest = [max(STAGES[model][s] for model, _ in replies) for s in range(4)]
    for stage, depth in enumerate(deepest):
        first = f"backbone.layer{stage + 1}.0.conv2.weight"
        g0 = plain[first] - held[first]
        for block in range(1, depth):
            for conv in ("conv1", "conv2"):
                name = f"backbone.layer{stage + 1}.{block}.{conv}.weight"
                a, a0 = (x.reshape(-1, 9) for x in (plain[name] - held[name], g0))
                size, size0 = ((x**2).sum(1, keepdims=True) ** 0.5 for x in (a, a0))
                theta = np.minimum(abs((a * a0).sum(1, keepdims=True)) / (size0**2 + 1e-7), 5)
                step = (a / (size + 1e-7) + theta * a0 / (size0 + 1e-7)) * (size + size0) / 2
                after[name] = held[name] + step.clip(-0.1, 0.1).reshape(g0.shape)
    return after


@pytest.mark.parametrize("present", [(0, 1, 2, 3), (0, 1), (0,)])
def test_a_round_equals_a_naive_aggregation(present: tuple[int, ...]) -> None:
    """Whoever is away, nothing but convolutions of later blocks differs from FedAvg's means."""
    models = dict(enumerate((*NESTED, "resnet14-w4")))
    server = a_server(models, "inco")
    held = {name: item.numpy().copy() for name, item in server.state.weights.items()}
    sent = {client: states_of(models[client], client) for client in present}
    # Small changes, so that not all of them are clipped.
    for weights, _ in sent.values():
        for name, item in weights.items():
            weights[name] = held[name] + item / 50
    replies = [update(c, 3 + c, Uplink(*sent[c])) for c in present]
    wanted = naive(held, [(models[c], {**sent[c][0], **sent[c][1]}) for c in present])
    metrics = server.aggregate_in(1, iter(replies))
    blocks = [max(STAGES[models[c]][s] for c in present) - 1 for s in range(4)]
    assert metrics == {"cross_layer_convolutions": 2.0 * sum(blocks)}
    for name, item in server.state.weights.items():
        np.testing.assert_allclose(item.numpy(), wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("aggregation", ["layerwise", "architecture"])
def test_models_that_are_averaged_alone_are_mixed_alone(aggregation: str) -> None:
    server = a_server(dict(enumerate(NESTED)), "inco", inco__aggregation=aggregation)
    replies = [update(c, 3, Uplink(*states_of(NESTED[c], c))) for c in range(3)]
    metrics = server.aggregate_in(1, iter(replies))
    alone = 2.0 * (2 + 4)  # ResNet14 has two later blocks, ResNet18 four
    wanted = 8.0 if aggregation == "layerwise" else alone
    assert metrics == {"cross_layer_convolutions": wanted}


def test_models_without_such_blocks_are_fedavgs(capsys: pytest.CaptureFixture[str]) -> None:
    models = dict(enumerate(("cnn5", "cnn2", "resnet10-w4")))
    server, reference = a_server(models, "inco"), a_server(models, fedavg__mean="uniform")
    assert "averages as fedavg does" in capsys.readouterr().out
    for client, model in models.items():
        replies = [update(client, 3, Uplink(*states_of(model, client)))]
        assert server.aggregate_in(1, iter(replies)) == {"cross_layer_convolutions": 0.0}
        reference.aggregate_in(1, iter(replies))
    for name, item in reference.state.weights.items():
        assert torch.equal(server.state.weights[name], item)
