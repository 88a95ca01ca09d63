"""FedET: confidence, consensus and diversity by hand and by brute force, the head that returns."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from typing import Any

import numpy as np
import pytest
import torch

from data import load_public
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.fedet import Consensus, Server, Uplink, transfer_loss
from tests.support import ServerAtWork
from tests.unit.layerwise_support import a_server, card_of, states_of, update


def consensus_of(*logits: Any) -> Any:
    first = np.asarray(logits[0])
    with tempfile.TemporaryFile() as file:
        found = Consensus(file, *first.shape)
        for item in logits:
            found.add(np.asarray(item, dtype=np.float32))
        return found.targets()


def logits_with(*shares: float) -> list[float]:
    return [math.log(share) for share in shares]


def test_confidence_by_hand() -> None:
    """Variances 1/16 of (3/4, 1/4) and 1/100 of (2/5, 3/5).

    s is in proportion to 1/16 (3/4, 1/4) + 2/100 (2/5, 3/5) = (0.0549, 0.0276): y is class 0,
    though two of three clients say class 1. s_div is theirs.
    """
    sure, other = logits_with(0.75, 0.25), logits_with(0.4, 0.6)
    label, diverse, disagree = consensus_of([sure], [other], [other])
    assert label.tolist() == [0]
    assert disagree.tolist() == [True]
    assert diverse[0].tolist() == pytest.approx([0.4, 0.6], rel=1e-5)


def test_all_agree_or_nobody_knows() -> None:
    """Where all agree there is no diversity; where nobody knows anything all count alike."""
    label, diverse, disagree = consensus_of(
        [logits_with(0.9, 0.1), [0.0, 0.0]], [logits_with(0.6, 0.4), [0.0, 0.0]]
    )
    assert label.tolist() == [0, 0]
    assert disagree.tolist() == [False, False]
    assert diverse.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_targets_equal_a_brute_force() -> None:
    """Five clients, seven items, four classes, with everything in memory."""
    draw = np.random.default_rng(2)
    logits = 2 * draw.normal(size=(5, 7, 4)).astype(np.float32)
    label, diverse, disagree = consensus_of(*logits)
    shares = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    for item in range(7):
        confidence = [shares[k, item].var() for k in range(5)]
        mean = sum(v * shares[k, item] for k, v in enumerate(confidence)) / sum(confidence)
        wanted = int(mean.argmax())
        assert label[item] == wanted
        others = [k for k in range(5) if shares[k, item].argmax() != wanted]
        assert bool(disagree[item]) == bool(others)
        if others:
            total = sum(confidence[k] for k in others)
            left = sum(confidence[k] * shares[k, item] for k in others) / total
            np.testing.assert_allclose(diverse[item], left, rtol=1e-4)


def test_the_loss_by_hand() -> None:
    """Two items with logits (0, 0): CE is ln 2; one of them has s_div = (3/4, 1/4)."""
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    loss = transfer_loss(
        torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([[0.75, 0.25], [0.0, 0.0]]),
        torch.tensor([True, False]), 0.5,
    )  # fmt: skip
    assert loss.item() == pytest.approx(math.log(2) + 0.5 * divergence / 2, rel=1e-5)


# The whole aggregation ----------------------------------------------------------------------------


def a_federation(*models: str, **options: Any) -> Any:
    """Return a server at work whose clients have the same public digits as it has."""
    public = {"public_size": 12, "public_dataset": "digits", "public_overlap": "allowed"}
    settings = {**public, **{f"fedet__{name}": value for name, value in options.items()}}
    mark = load_public("digits", 12, 1, 16).fingerprint
    run = a_server({}, "fedet", **settings).run
    cards = [
        dataclasses.replace(card_of(i, m), public_hash=mark, feature_dim=8)
        for i, m in enumerate(models)
    ]
    return ServerAtWork(run, cards)


def replies_of(server: Any, *models: str) -> list[Any]:
    replies = []
    for client, model in enumerate(models):
        weights, buffers = states_of(model, client)
        buffers = {n: abs(x) + 1 if n.endswith("var") else x for n, x in buffers.items()}
        small = {name: item / 10 for name, item in weights.items()}
        replies.append(update(client, 2 + client, Uplink(small, buffers)))
    return replies


def test_the_server_learns_and_gives_its_head_back() -> None:
    """The server's model changes; bodies are means, and every architecture has the new head."""
    server = a_federation("cnn4", "cnn5", server_model="resnet10-w4", server_epochs=15)
    assert server.state.server_name == "resnet10-w4"
    first = {name: item.clone() for name, item in server.state.server_model.items()}
    replies = replies_of(server, "cnn4", "cnn5")
    metrics = server.aggregate_in(1, iter(replies))
    assert metrics["server_loss_after"] < metrics["server_loss_before"]
    assert 0 <= metrics["server_agreement"] <= 1
    head = server.state.server_model["head.weight"]
    assert not torch.equal(head, first["head.weight"])
    for client, sent in enumerate(replies):
        down = server.downlink_for(client, 2).weights
        for name, item in down.items():
            wanted = server.state.server_model[name].numpy() if name.startswith("head.") else None
            np.testing.assert_array_equal(
                item, sent.uplink.weights[name] if wanted is None else wanted
            )


def test_without_steps_models_are_averaged_alone() -> None:
    server = a_federation("cnn5", "cnn5", server_epochs=0)
    reference = a_server({0: "cnn5", 1: "cnn5"})
    for one in (server, reference):
        assert one.aggregate_in(1, iter(replies_of(one, "cnn5", "cnn5"))) == {}
    wanted, found = reference.downlink_for(0, 2).weights, server.downlink_for(0, 2).weights
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_the_largest_model_is_the_servers() -> None:
    run = a_federation("cnn5").run
    mark = load_public("digits", 12, 1, 16).fingerprint
    sizes = {"cnn5": 10, "cnn4": 30, "cnn2": 20}
    cards = [
        dataclasses.replace(card_of(i, m), public_hash=mark, feature_dim=8, parameters=n)
        for i, (m, n) in enumerate(sizes.items())
    ]
    assert ServerAtWork(run, cards).state.server_name == "cnn4"


def test_a_server_model_that_is_none_is_refused() -> None:
    run = parse_run_config({"method": "fedet", "fedet.server-model": "resnet99"})
    with pytest.raises(ConfigError, match=r"fedet.server-model = 'resnet99': .*resnet"):
        Server().check_run(run)
