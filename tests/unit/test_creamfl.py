"""CreamFL: losses and aggregation by hand and by brute force, what is drawn, the server's score."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data import DataSpec, PublicData, Shares, load_public, parse_tasks
from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError
from strategies.base.server import NotScoredError, RegistrationError
from strategies.creamfl import server_model
from strategies.creamfl.contrast import inter_loss, intra_loss, margin_loss
from strategies.creamfl.creamfl import Server, Uplink
from strategies.creamfl.draws import drawn_features, public_batches
from strategies.creamfl.learning import Agreement
from tests.support import ServerAtWork, run_federation
from tests.unit.layerwise_support import card_of

SMALL: dict[str, Any] = {
    "public-size": 10,
    "image-size": 16,
    "feature-dim": 8,
    "creamfl.held-out": 6,
}

# Losses by hand -----------------------------------------------------------------------------------


def test_the_margin_and_the_centres_by_hand() -> None:
    """Logits (5, 0) of class 0 count as (1, 0); W = I gives CE of (1, 0) for each class."""
    model = nn.Sequential()
    model.head = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.head.weight)
    terms = margin_loss(model, 4.0, 0.5)(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))
    wanted = math.log(1 + math.exp(-1))
    assert terms["loss_ce"].item() == pytest.approx(wanted, rel=1e-5)
    assert terms["loss_centre"].item() == pytest.approx(wanted / 2, rel=1e-5)


def test_contrast_by_hand() -> None:
    """z = (1, 0), tau 1/2: three others at cosines 1, 0, -1; towards (0, 1), from (1, 0)."""
    z, others = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    inter = inter_loss(z, others, torch.tensor([1]), 0.5)
    assert inter.item() == pytest.approx(math.log(math.exp(2) + 1 + math.exp(-2)), rel=1e-5)
    intra = intra_loss(z, torch.tensor([[0.0, 1.0]]), z, 0.5)
    assert intra.item() == pytest.approx(-math.log(1 / (1 + math.exp(2))), rel=1e-5)


def units(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_who_finds_its_pair_counts_more() -> None:
    """Others (1, 0), (0, 1). Of item 0 the first client sends its pair, the second the other.

    p = e / (e + 1) and 1 / (e + 1), which are the weights.
    """
    agreement = Agreement(torch.eye(2))
    agreement.add(np.array([[1, 0], [0, 1]], dtype=np.float32))
    agreement.add(np.array([[0, 1], [0, 1]], dtype=np.float32))
    found = agreement.target()
    assert found is not None
    share = math.e / (1 + math.e)
    np.testing.assert_allclose(found, [[share, 1 - share], [0, 1]], rtol=1e-6)
    assert Agreement(torch.eye(2)).target() is None


def test_the_aggregation_equals_a_brute_force() -> None:
    """Four clients at once: softmax over clients of log softmax over pairs."""
    others, sent = units(7, 5), units(4, 7, 5, seed=1)
    agreement = Agreement(others)
    for z in sent:
        agreement.add(z.numpy())
    logs = torch.stack([torch.log_softmax(z @ others.T, dim=1).diagonal() for z in sent])
    wanted = (logs.softmax(dim=0)[:, :, None] * sent).sum(dim=0)
    torch.testing.assert_close(agreement.target(), wanted, rtol=1e-5, atol=1e-6)


# What is drawn ------------------------------------------------------------------------------------


def a_server(*tasks: str, **options: Any) -> Any:
    """Return a server whose clients, of these tasks, have its own public scenes."""
    values = {**SMALL, "method": "creamfl", **options}
    run = parse_run_config({k.replace("__", ".").replace("_", "-"): v for k, v in values.items()})
    shares = Shares(run.data_spec, parse_tasks(run.tasks), max(1, len(tasks)))
    mark = load_public("scenes", 10, 1, 16, "", shares).fingerprint
    kinds = {"text": (0, 0, 4096), "retrieval": (1, 16, 4096)}
    cards = []
    for client, task in enumerate(tasks):
        channels, side, words = kinds.get(task, (1, 16, 0))
        cards.append(dataclasses.replace(
            card_of(client, "cnn4"), feature_dim=8, public_hash=mark, task=f"{task}@scenes",
            channels=channels, image_size=side, vocabulary=words, text_length=32,
        ))  # fmt: skip
    return ServerAtWork(run, cards)


@pytest.mark.parametrize(("size", "rest"), [(4, 2), (3, 0), (10, 0)])
def test_every_pair_is_in_one_batch(size: int, rest: int) -> None:
    """10 pairs in batches of 4 leave 2; in batches of 3 they leave one alone, which is left out."""
    run = parse_run_config({**SMALL, "method": "creamfl", "creamfl.batch-size": size})
    batches = public_batches(run, 3)
    together = np.concatenate(batches)
    assert len(together) == len(set(together.tolist())) == (9 if size == 3 else 10)
    assert {len(batch) for batch in batches} == ({size, rest} if rest else {size})
    again = np.concatenate(public_batches(run, 4))
    assert not np.array_equal(together, again)


def test_features_are_drawn_batch_by_batch_from_others() -> None:
    server = a_server("classification", creamfl__batch_size=4, creamfl__users=2)
    server.server_round = 2
    pool = {name: torch.full((10, 8), float(i)) for i, name in enumerate("abc")}
    drawn = drawn_features(server.context, pool, "0")
    assert drawn.shape == (2, 10, 8)
    for rows in public_batches(server.run, 2):
        chosen = [set(drawn[m, rows].reshape(-1).tolist()) for m in range(2)]
        assert all(len(one) == 1 for one in chosen)
        assert chosen[0] != chosen[1]
    assert drawn_features(server.context, {"a": pool["a"]}, "0").shape == (1, 10, 8)


def test_with_muscle_a_client_gets_what_others_sent() -> None:
    """And the server's own two; nobody else's features, and none of its own, are among them."""
    server = a_server("multilabel", "text", creamfl__alignment="muscle", creamfl__users=9)
    assert len(server.downlink_for(0, 1).others) == 2
    own, other = units(10, 8, seed=1).numpy(), units(10, 8, seed=2).numpy()
    nothing = np.empty((0, 8), dtype=np.float32)
    server.aggregate_in(
        1, iter([answer(0, Uplink(own, nothing)), answer(1, Uplink(nothing, other))])
    )
    for client, theirs, mine in ((0, other, own), (1, own, other)):
        others = server.downlink_for(client, 2).others
        assert len(others) == 3
        found = {row.tobytes() for row in others[:, 0]}
        assert theirs[0].tobytes() in found
        assert mine[0].tobytes() not in found


# What is sent -------------------------------------------------------------------------------------


def answer(client: int, uplink: Uplink) -> ClientUpdate:
    return ClientUpdate(client, 4, uplink, [], 0.0, 0, 0, "worker", 0)


def test_a_client_sends_the_sides_that_its_task_reads() -> None:
    server = a_server("multilabel", "text", "retrieval")
    z, nothing = units(10, 8).numpy(), np.empty((0, 8), dtype=np.float32)
    for client, uplink in enumerate((Uplink(z, nothing), Uplink(nothing, z), Uplink(z, z))):
        server.check_uplink(answer(client, uplink))
    for client, uplink, said in (
        (0, Uplink(nothing, z), "images: 0 rows, 10 expected of task multilabel"),
        (1, Uplink(z, z), "images: 10 rows, 0 expected of task text"),
        (2, Uplink(z, z[:9]), "texts: 9 rows, 10 expected of task retrieval"),
        (2, Uplink(z, 2 * z), "texts: row 0 is 2 long, expected 1"),
    ):
        with pytest.raises(PayloadError, match=said):
            server.check_uplink(answer(client, uplink))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"public-dataset": "cifar10"},
            "'cifar10': its items are not images with captions.*scenes or coco",
        ),
        ({"creamfl.temperature-others": 0.3}, "expected a number below creamfl.temperature, 0.2"),
        (
            {"creamfl.server-text-model": "cnn5"},
            "reads image, the server needs one for text",
        ),
        ({"creamfl.server-image-model": "cnn55"}, "'cnn55' is unknown; did you mean cnn5"),
    ],
)
def test_wrong_use_is_named_before_data_is_loaded(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Server().check_run(parse_run_config({"method": "creamfl", **values}))


# The server's score -------------------------------------------------------------------------------


def test_held_out_pairs_follow_the_public_ones() -> None:
    server = a_server("multilabel")
    rows = server_model.held_out_pairs(server.context)
    every, public = (
        server_model.server_pairs(server.context, 6),
        server_model.server_pairs(server.context),
    )
    assert rows.tolist() == list(range(10, 16))
    assert len(every) == 16
    assert np.array_equal(every.images[:10], public.images)
    assert list(every.captions or ())[:10] == list(public.captions or ())
    assert "6 pairs: held-out public pairs" in server.score_basis()


def test_pictures_that_clients_train_on_are_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a picture set the clients' own rows are told from those that follow the public ones."""
    server = a_server("multilabel")
    rows = {10: np.arange(10), 16: np.arange(16)}
    empty = np.empty((16, 1, 8, 8), dtype=np.uint8)
    made = {n: PublicData(n, empty[:n], ["a"] * n, "", "coco", r, "coco") for n, r in rows.items()}
    shares = Shares(DataSpec(), (), 1)
    monkeypatch.setattr(server_model, "matching_public", lambda *_: (made[10], shares))
    monkeypatch.setattr(server_model, "load_public", lambda _, size, *rest: made[size])
    context = server.context
    context = dataclasses.replace(
        context, run=dataclasses.replace(context.run, public_dataset="coco")
    )
    held = np.array([0, 3, 11, 15])
    monkeypatch.setattr(Shares, "held", lambda *_: held)
    with pytest.raises(
        NotScoredError, match="clients train on 2 of the 6 held-out pictures of coco"
    ):
        server_model.held_out_pairs(context)
    monkeypatch.setattr(Shares, "held", lambda *_: held[:2])
    assert len(server_model.held_out_pairs(context)) == 6
    made[10] = dataclasses.replace(made[10], captions=None)
    with pytest.raises(RegistrationError, match="these files have no captions"):
        server_model.server_pairs(context)


def test_without_held_out_pairs_there_is_no_score() -> None:
    with pytest.raises(NotScoredError, match="held-out = 0"):
        a_server("multilabel", creamfl__held_out=0).score_basis()


# Whole runs ---------------------------------------------------------------------------------------

UNLIKE: dict[str, Any] = {
    "method": "creamfl", "tasks": "multilabel@scenes, text@scenes, retrieval@scenes",
    "models": "cnn4, text-small, cnn4+text-small", "partition": "iid", "subset": 0.02,
    "image_size": 16, "feature_dim": 16, "public_size": 24, "creamfl__held_out": 20,
    "creamfl__batch_size": 8,
}  # fmt: skip


def test_three_kinds_of_clients(tmp_path: Path) -> None:
    """Images, text and both; and the server's score beside theirs."""
    run = run_federation(tmp_path, 3, num_rounds=1, **UNLIKE)
    scored = run.metrics(client="server", phase="server", round=1)
    by_name = {row["metric"]: float(row["value"]) for row in scored}
    mean = (by_name["recall_i2t"] + by_name["recall_t2i"]) / 2
    assert by_name["recall"] == pytest.approx(mean)
    assert {row["examples"] for row in scored} == {"20"}
    assert run.summary["server"]["final"] == by_name["recall"]
    assert run.summary["scores"].keys() == {"multilabel", "text", "retrieval"}
    sent = [row for row in run.rows("traffic") if row["direction"] == "uplink"]
    assert [int(row["scalars"]) for row in sent] == [24 * 16, 24 * 16, 2 * 24 * 16]
    assert run.metrics(client=2, phase="train", metric="loss_inter")


def test_with_muscle_a_resume_is_exact(tmp_path: Path) -> None:
    """What clients sent in the last round lies in the checkpoint, for the next round's draws."""
    settings = {
        **UNLIKE, "creamfl__alignment": "muscle", "num_rounds": 2,
        "tasks": "text@scenes, retrieval@scenes", "models": "text-small, cnn4+text-small",
    }  # fmt: skip
    whole = run_federation(tmp_path, 2, **settings).text("metrics.csv")
    again = run_federation(tmp_path, 2, resume="run", resume_round=1, **settings)
    assert again.text("metrics.csv") == whole
    assert again.metrics(client="server", metric="server_loss_muscle", round=2)
