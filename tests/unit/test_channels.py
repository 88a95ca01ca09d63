"""Parts of a network: windows of channels, and what a part computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models import InputShape, ModelError, SplitModel, build_model, count_parameters
from models.channels import (
    Part,
    channel_spans,
    indices_of,
    kept,
    narrow,
    part_shape,
    taken,
    window,
)
from models.skeleton import skeleton
from strategies.base.state import fill_module

SHAPE = InputShape(1, 16, 3)


@pytest.mark.parametrize(
    ("channels", "rate", "count"),
    [(64, 1, 64), (64, 0.5, 32), (10, 0.25, 3), (100, 0.07, 7), (16, 0.0625, 1), (2, 0.01, 1)],
)
def test_a_part_has_its_share_rounded_up(channels: int, rate: float, count: int) -> None:
    assert kept(channels, rate) == count
    assert len(window(channels, Part(rate, 7))) == count


def test_windows_wrap_around() -> None:
    assert window(5, Part(0.6, 0)).tolist() == [0, 1, 2]
    assert window(5, Part(0.6, 3)).tolist() == [0, 3, 4]
    assert window(5, Part(0.6, 9)).tolist() == [0, 1, 4]
    assert window(5, Part(1.0, 3)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rate", [0.0625, 0.25, 0.7, 1.0])
def test_a_cycle_of_windows_covers_every_channel_equally(rate: float) -> None:
    seen = np.zeros(24, dtype=int)
    for number in range(24):
        seen[window(24, Part(rate, number))] += 1
    assert set(seen) == {kept(24, rate)}


def test_flattened_maps_keep_the_values_of_a_channel_together() -> None:
    """A linear layer of 3 outputs on 4 channels of 2 pixels each; the part has 2 of 3 and of 4."""
    rows, columns = indices_of((3, 8), (1, 2), Part(0.5, 1))
    assert rows.tolist() == [1, 2]
    assert columns.tolist() == [2, 3, 4, 5]
    whole = np.arange(24).reshape(3, 8)
    assert taken(whole, (rows, columns)).tolist() == [[10, 11, 12, 13], [18, 19, 20, 21]]


def test_the_head_keeps_its_classes_and_the_first_layer_its_colours() -> None:
    spans = channel_spans(build_model("resnet10-w4", SHAPE, mapping="none"))
    assert spans["backbone.conv1.weight"] == (1, 0, 0, 0)
    assert spans["backbone.layer2.0.downsample.0.weight"] == (1, 1, 0, 0)
    assert spans["backbone.bn1.running_var"] == (1,)
    assert spans["backbone.bn1.num_batches_tracked"] == ()
    assert (spans["head.weight"], spans["head.bias"]) == ((0, 1), (0,))
    assert channel_spans(build_model("cnn5", SHAPE))["backbone.linear.0.weight"] == (1, 1)
    larger = build_model("cnn5", InputShape(1, 32, 3))
    assert channel_spans(larger)["backbone.linear.0.weight"] == (1, 25)


def test_a_network_without_channels_is_refused_by_name() -> None:
    with skeleton():
        model = build_model("vit-tiny", InputShape(1, 32, 3))
    with pytest.raises(ModelError, match=r"'vit-tiny' has no channels .* such as resnet18"):
        channel_spans(model)


def test_a_quarter_of_a_resnet_is_the_resnet_of_a_quarter_of_the_widths() -> None:
    with skeleton():
        part = build_model("resnet10", SHAPE, mapping="none")
        narrower = build_model("resnet10-w4", SHAPE, mapping="none")
    narrow(part, channel_spans(part), 0.25)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (part, narrower)]
    assert shapes[0] == shapes[1]
    assert (part.raw_dim, part.feature_dim, part.head.in_features) == (128, 128, 128)
    assert part.get_submodule("backbone.bn1").num_features == 16


@pytest.mark.parametrize("model", ["resnet18", "resnet152", "fedavgcnn"])
def test_a_part_of_rate_r_has_about_r_squared_of_the_parameters(model: str) -> None:
    with skeleton():
        whole = build_model(model, InputShape(3, 32, 10), mapping="none")
    spans = channel_spans(whole)
    counts = [
        sum(
            int(np.prod(part_shape(tuple(item.shape), spans[name], rate)))
            for name, item in whole.named_parameters()
        )
        for rate in (1, 0.5, 0.25, 0.125)
    ]
    assert counts[0] == count_parameters(whole)
    for half, double in zip(counts[1:], counts, strict=False):
        assert half / double == pytest.approx(0.25, rel=0.07)


def cut(whole: SplitModel, part: Part) -> tuple[SplitModel, SplitModel]:
    """Return a part, and the whole with 0 in place of all that is not in it."""
    spans, name = channel_spans(whole), whole.name
    with skeleton():
        narrower, padded = (build_model(name, SHAPE, mapping="none") for _ in range(2))
    narrow(narrower, spans, part.rate)
    entries, zeros = {}, {}
    for key, item in whole.state_dict().items():
        indices = indices_of(tuple(item.shape), spans[key], part)
        entries[key] = torch.tensor(taken(item.numpy(), indices))
        rest = np.zeros_like(item.numpy())
        rest[np.ix_(*indices)] = entries[key].numpy()
        zeros[key] = torch.from_numpy(rest)
    fill_module(narrower, entries)
    fill_module(padded, zeros)
    return narrower.eval(), padded.eval()


@pytest.mark.parametrize(
    ("model", "part"),
    [("cnn5", Part(0.5)), ("resnet10-w4", Part(0.5)), ("resnet50", Part(0.3, 13))],
)
def test_what_a_layer_leaves_out_the_next_one_does_not_read(model: str, part: Part) -> None:
    """A part computes what the whole does with zeros elsewhere, across shortcuts and flattening."""
    whole = build_model(model, SHAPE, mapping="none", seed=1)
    for module in whole.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # not all alike
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
    narrower, padded = cut(whole, part)
    images = torch.randn(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(narrower(images), padded(images), rtol=1e-4, atol=1e-5)
