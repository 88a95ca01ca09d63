"""FedRE's representation mapping against the formula of its paper."""

from __future__ import annotations

import math

import pytest
import torch

from models import ModelError, build_mapping, count_parameters

WIDTHS = [(8, 4), (7, 3), (5, 4), (768, 512), (500, 512), (3, 7), (128, 512), (4, 4), (6, 1)]


def bins(raw_dim: int, feature_dim: int) -> list[slice]:
    return [
        slice(j * raw_dim // feature_dim, math.ceil((j + 1) * raw_dim / feature_dim))
        for j in range(feature_dim)
    ]


@pytest.mark.parametrize(("raw_dim", "feature_dim"), WIDTHS)
def test_pooling_equals_brute_force(raw_dim: int, feature_dim: int) -> None:
    v = torch.randn(3, raw_dim, generator=torch.Generator().manual_seed(0))
    average = torch.stack([v[:, b].mean(1) for b in bins(raw_dim, feature_dim)], dim=1)
    maximum = torch.stack([v[:, b].amax(1) for b in bins(raw_dim, feature_dim)], dim=1)
    torch.testing.assert_close(build_mapping("AP", raw_dim, feature_dim)(v), average)
    torch.testing.assert_close(build_mapping("MP", raw_dim, feature_dim)(v), maximum)


def test_hand_computed_bins() -> None:
    v = torch.tensor([[1.0, 2.0, 3.0, 6.0, 8.0]])
    # Bins of 5 entries in 3: 0..1, 1..3, 3..4.
    assert build_mapping("AP", 5, 3)(v).tolist() == [[1.5, pytest.approx(11 / 3), 7.0]]
    assert build_mapping("MP", 5, 3)(v).tolist() == [[2.0, 6.0, 8.0]]
    # A narrow vector is repeated.
    assert build_mapping("AP", 2, 4)(v[:, :2]).tolist() == [[1.0, 1.0, 2.0, 2.0]]


@pytest.mark.parametrize("kind", ["AP", "MP", "none"])
def test_equal_widths_change_nothing(kind: str) -> None:
    v = torch.randn(2, 6)
    assert torch.equal(build_mapping(kind, 6, 6)(v), v)


@pytest.mark.parametrize("kind", ["AP", "MP", "FC"])
def test_an_empty_batch_keeps_its_width(kind: str) -> None:
    assert tuple(build_mapping(kind, 6, 4)(torch.zeros(0, 6)).shape) == (0, 4)


def test_only_fc_has_parameters() -> None:
    assert count_parameters(build_mapping("AP", 6, 4)) == 0
    assert count_parameters(build_mapping("MP", 6, 4)) == 0
    assert count_parameters(build_mapping("FC", 6, 4)) == 6 * 4 + 4
    assert count_parameters(build_mapping("FC", 4, 4)) == 4 * 4 + 4


@pytest.mark.parametrize(
    ("kind", "feature_dim", "message"),
    [
        ("ap", 4, r"mapping='ap' is unknown; use one of AP, MP, FC, none"),
        ("AP", 0, r"feature-dim=0, must be 1 or more"),
        ("none", 4, r"mapping='none' cannot bring 6 raw features to feature-dim=4"),
    ],
)
def test_errors_name_the_value(kind: str, feature_dim: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_mapping(kind, 6, feature_dim)
