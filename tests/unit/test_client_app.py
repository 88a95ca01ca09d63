"""The ClientApp as a simulation sees it."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from client_app.app import app, make_client_app
from client_app.first_state import initial_state
from strategies.base.method import get_method
from strategies.base.rng import derive_seed, isolated_torch_rng
from tests.unit.test_training import a_context


def test_the_app_is_pickled_by_name() -> None:
    """Flower's simulation does it for every message; plain pickle refuses functions by value."""
    for one in (app, make_client_app(get_method("fedre"))):
        text = pickle.dumps(one)
        assert len(text) < 2000
        assert pickle.loads(text) is not one


@pytest.mark.parametrize("weights", ["own", "shared"])
def test_first_weights_are_the_clients_own_or_those_of_its_architecture(weights: str) -> None:
    """Of clients 4 and 5 of one architecture and client 6 of another; by hand for client 4."""
    context = a_context(6, method="local", initial_weights=weights)
    half = get_method("local").client()
    who = {4: "resnet10-w4", 5: "resnet10-w4", 6: "cnn5"}
    first = {
        client: initial_state(
            half, dataclasses.replace(context, client_id=client, model_name=name)
        ).model.head.weight
        for client, name in who.items()
    }
    owner = 4 if weights == "own" else "model resnet10-w4"
    with isolated_torch_rng(derive_seed(0, owner, 0, "init")):
        assert torch.equal(first[4], context.build_model().head.weight)
    assert torch.equal(first[4], first[5]) == (weights == "shared")
    assert not torch.equal(first[4], first[6])
