"""Low-rank payloads: ranks on diagonal matrices, complete reconstruction, refusal of bad sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.fedkd.low_rank import LowRank, compress, decompress, pieces, smallest_rank

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def diagonal(*values: float, shape: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    matrix = np.zeros(shape, np.float32)
    for i, value in enumerate(values):
        matrix[i, -1 - i] = value
    return matrix


def of_rank(rank: int, rows: int, cols: int, seed: int = 0) -> Any:
    draw = np.random.default_rng(seed).normal
    return (draw(size=(rows, rank)) @ draw(size=(rank, cols))).astype(np.float32)


def there_and_back(tensors: Arrays, energy: float | None) -> tuple[LowRank, Arrays]:
    layout = {name: item.shape for name, item in tensors.items()}
    sent = unpack(LowRank, pack(LowRank(**compress(tensors, energy))), {})
    return sent, decompress(sent, layout)


@pytest.mark.parametrize(
    ("sigma", "energy", "rank"),
    [
        ([4, 2, 1], 16 / 21, 1),  # exactly reached
        ([4, 2, 1], 0.77, 2),
        ([4, 2, 1], 0.95, 2),  # 20 / 21
        ([4, 2, 1], 0.96, 3),
        ([4, 2, 1], 1.0, 3),  # all of them, not none
        ([1, 1, 1, 1], 0.99, 4),  # only all together reach it: both public codes keep 0
        ([1, 1, 1, 1], 0.5, 2),
        ([5], 0.95, 1),
        ([3, 0, 0], 1.0, 1),
        ([0, 0], 0.95, 1),
    ],
)
def test_smallest_rank(sigma: list[float], energy: float, rank: int) -> None:
    assert smallest_rank(np.array(sigma, np.float32), energy) == rank


def test_rank_is_the_brute_force_one() -> None:
    for seed in range(20):
        sigma = np.sort(np.random.default_rng(seed).exponential(size=12))[::-1].astype(np.float32)
        squares = sigma.astype(np.float64) ** 2
        for energy in (0.3, 0.95, 0.98):
            shares = [squares[:q].sum() / squares.sum() for q in range(13)]
            expected = min(q for q, share in enumerate(shares) if share >= energy)
            assert smallest_rank(sigma, energy) == expected


def test_a_diagonal_matrix_by_hand() -> None:
    """diag(4, 2, 1) in 8x9 at 0.95: rank 2, 2 (8 + 9 + 1) = 36 scalars; the 1 is cut off."""
    sent, back = there_and_back({"w": diagonal(4, 2, 1, shape=(8, 9))}, 0.95)
    assert sent.ranks.tolist() == [2]
    assert sent.is_factored.tolist() == [True]
    assert count_scalars(sent) == (36, 38)
    np.testing.assert_allclose(back["w"], diagonal(4, 2, shape=(8, 9)), atol=1e-6)


def test_sigma_scales_columns_of_u_as_a_diagonal_matrix() -> None:
    """The truncated SVD is the best approximation; a wrong use of sigma is far from it."""
    matrix = of_rank(6, 30, 20)
    sent, back = there_and_back({"w": matrix}, 0.9)
    rank = int(sent.ranks[0])
    assert 1 < rank < 6
    u, sigma, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(back["w"], u[:, :rank] * sigma[:rank] @ v[:rank], atol=1e-4)
    lost = np.square(matrix - back["w"]).sum() / np.square(matrix).sum()
    assert lost == pytest.approx(np.square(sigma[rank:]).sum() / np.square(sigma).sum(), rel=1e-3)
    assert lost <= 0.1


@pytest.mark.parametrize("shape", [(6, 6), (3, 40), (40, 3), (1, 5), (5, 1), (2, 3, 5, 5)])
def test_a_tensor_of_full_energy_is_sent_completely(shape: tuple[int, ...]) -> None:
    """Equal singular values: only all of them reach 0.98. Nothing may be dropped."""
    size = shape[0], int(np.prod(shape[1:]))
    tensor = diagonal(*[2.0] * min(size), shape=size).reshape(shape)
    sent, back = there_and_back({"w": tensor}, 0.98)
    assert sent.is_factored.tolist() == [False]
    np.testing.assert_array_equal(back["w"], tensor)


def test_kernels_are_matrices_of_their_outputs() -> None:
    """(8, 4, 3, 3) of rank 1 as (8, 36): 8 + 36 + 1 scalars instead of 288."""
    kernel = of_rank(1, 8, 36).reshape(8, 4, 3, 3)
    sent, back = there_and_back({"conv": kernel}, 0.95)
    assert sent.factors.size == 45
    assert back["conv"].shape == kernel.shape
    np.testing.assert_allclose(back["conv"], kernel, rtol=1e-4, atol=1e-5)


def test_vectors_and_what_is_not_smaller_are_sent_as_they_are() -> None:
    tensors = {
        "bias": np.arange(3, dtype=np.float32),
        "thin": of_rank(1, 2, 2),  # 5 scalars of factors for 4
        "low": of_rank(1, 10, 10),
        "count": np.array(7, np.float32),
    }
    sent, back = there_and_back(tensors, 0.95)
    assert sent.is_factored.tolist() == [False, False, True, False]
    assert sent.ranks.tolist() == [0, 0, 1, 0]
    assert (sent.raw.size, sent.factors.size) == (8, 21)
    for name in ("bias", "thin", "count"):
        np.testing.assert_array_equal(back[name], tensors[name])
    sent, back = there_and_back(tensors, None)
    assert not sent.is_factored.any()
    for name, item in tensors.items():
        np.testing.assert_array_equal(back[name], item)


def test_an_update_of_zero_is_zero() -> None:
    _, back = there_and_back({"w": np.zeros((9, 9), np.float32)}, 0.95)
    assert not back["w"].any()


def test_nothing_is_aliased() -> None:
    tensors = {"b": np.ones(4, np.float32), "w": of_rank(1, 9, 9)}
    fields = compress(tensors, 0.95)
    back = decompress(LowRank(**fields), {"b": (4,), "w": (9, 9)})
    kept = {name: item.copy() for name, item in back.items()}
    for item in (*tensors.values(), fields["raw"], fields["factors"]):
        item[:] = 9
    for name, item in back.items():
        np.testing.assert_array_equal(item, kept[name])
        assert item.flags.writeable


def test_not_finite_is_not_sent() -> None:
    with pytest.raises(PayloadError, match=r"^w: NaN or infinite"):
        compress({"w": np.array([[np.nan]], np.float32)}, 0.95)


LAYOUT = {"w": (6, 6), "b": (3,)}
GOOD = LowRank(**compress({"w": of_rank(1, 6, 6), "b": np.ones(3, np.float32)}, 0.95))
HUGE = np.full(13, 1e30, np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [1], "is_factored": [True]}, "ranks: 1 tensors, expected 2"),
        ({"ranks": [0, 0]}, "ranks: 0 of w"),  # factored, but nothing: not a way to drop it
        ({"is_factored": [False, False]}, "ranks: 1 of w"),
        ({"ranks": [7, 0]}, "ranks: 7 of w"),
        ({"ranks": [2**62, 0]}, "ranks: 4611686018427387904 of w"),
        ({"ranks": [1, 1], "is_factored": [True, True]}, "ranks: 1 of b"),
        ({"ranks": [2, 0]}, "factors: w needs 2 values, 1 are left"),
        ({"ranks": [0, 0], "is_factored": [False, False]}, "raw: w needs 36 values, 3 are left"),
        ({"factors": np.ones(12, np.float32)}, "factors: w needs 6 values, 5 are left"),
        ({"factors": np.ones(14, np.float32)}, "factors: 1 values belong to no tensor"),
        ({"raw": np.ones(2, np.float32)}, "raw: b needs 3 values, 2 are left"),
        ({"raw": np.ones(4, np.float32)}, "raw: 1 values belong to no tensor"),
        ({"factors": HUGE}, "factors: the product for w is not finite"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    bad = dataclasses.replace(GOOD, **{name: np.array(item) for name, item in changes.items()})
    received = unpack(LowRank, pack(bad), {})
    with pytest.raises(PayloadError, match=message):
        list(pieces(received, LAYOUT))
    with pytest.raises(PayloadError, match=message):
        decompress(received, LAYOUT)


def test_a_negative_rank_is_refused_on_arrival() -> None:
    bad = dataclasses.replace(GOOD, ranks=np.array([-1, 0]))
    with pytest.raises(PayloadError, match="ranks: value -1 is below 0"):
        unpack(LowRank, pack(bad), {})
