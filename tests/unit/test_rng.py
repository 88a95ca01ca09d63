"""Randomness: a function of seed, owner, round and purpose, and of nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from strategies.base.rng import (
    SERVER,
    derive_seed,
    isolated_torch_rng,
    numpy_generator,
    torch_generator,
)


def test_seeds_are_fixed_for_all_time() -> None:
    """SHA-256 of "0|3|7|batches": first 8 bytes, big endian, halved."""
    import hashlib

    digest = hashlib.sha256(b"0|3|7|batches").digest()
    assert derive_seed(0, 3, 7, "batches") == int.from_bytes(digest[:8], "big") // 2
    assert derive_seed(0, 3, 7, "batches") == derive_seed(0, 3, 7, "batches")


def test_neighbours_differ() -> None:
    owners: list[int | str] = [SERVER, *range(25)]
    purposes = ("batches", "batch", "init", "entangle", "select", "")
    cases = list(itertools.product(range(6), owners, range(12), purposes))
    assert len({derive_seed(*case) for case in cases}) == len(cases)
    assert all(0 <= derive_seed(*case) < 2**63 for case in cases[::50])
    # Digits do not run into each other.
    assert derive_seed(1, 11, 1, "x") != derive_seed(11, 1, 1, "x")
    assert derive_seed(1, 1, 11, "x") != derive_seed(1, 11, 1, "x")


def test_generators_repeat_and_do_not_touch_the_global_ones() -> None:
    torch_state = torch.get_rng_state()
    np.random.seed(4)  # noqa: NPY002 - whether the global one is left alone is the question
    first = torch.rand(4, generator=torch_generator(1, 2, 3, "a"))
    again = torch.rand(4, generator=torch_generator(1, 2, 3, "a"))
    other = torch.rand(4, generator=torch_generator(1, 2, 4, "a"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    draws = [numpy_generator(1, owner, 3, "a").random() for owner in (0, 1, SERVER)]
    assert len(set(draws)) == 3
    assert numpy_generator(1, 0, 3, "a").random() == draws[0]
    assert torch.equal(torch.get_rng_state(), torch_state)
    after = np.random.random()  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    assert np.random.random() == after  # noqa: NPY002


def test_isolation_restores_the_global_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with isolated_torch_rng(9):
        inside = torch.rand(2)
        torch.nn.functional.dropout(torch.ones(10))
    assert torch.equal(torch.rand(3), expected)
    with isolated_torch_rng(9):
        assert torch.equal(torch.rand(2), inside)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(2), inside)
    with isolated_torch_rng(10):
        assert not torch.equal(torch.rand(2), inside)


def test_isolation_restores_after_an_error() -> None:
    before = torch.get_rng_state()

    def fail() -> None:
        torch.rand(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), isolated_torch_rng(9):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_isolation_nests() -> None:
    with isolated_torch_rng(1):
        first = torch.rand(1)
        with isolated_torch_rng(2):
            torch.rand(5)
        second = torch.rand(1)
    with isolated_torch_rng(1):
        assert torch.equal(torch.rand(2), torch.cat([first, second]))
