"""FedMuscle: who is aligned with whom on what, what a step changes, and what is sent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Error, Message
from numpy.typing import NDArray

from server_app.rounds.in_process import FIRST_NODE, InProcessGrid
from strategies.base.messages import ClientUpdate
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.base.server import RegistrationError
from strategies.common.losses import muscle_loss
from strategies.common.public import PublicInputs
from strategies.fedmuscle.alignment import PRETRAINED_RATE, SCRATCH_RATE, Alignment, public_rate
from strategies.fedmuscle.draws import public_batches
from strategies.fedmuscle.fedmuscle import Client, Downlink, Uplink
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

BATCH, WIDTH, PUBLIC = 8, 16, 48
FAST: dict[str, Any] = {
    "method": "fedmuscle", "image_size": 16, "models": "five-cnns", "feature_dim": WIDTH,
    "fedmuscle__batch_size": BATCH, "fedmuscle__public_lr": 1e-3,
}  # fmt: skip


def a_server(clients: int, **keys: Any) -> ServerAtWork:
    values = {"method": "fedmuscle", "feature-dim": WIDTH, "public-size": PUBLIC}
    config = {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}
    server = ServerAtWork(parse_run_config({**values, "fedmuscle.batch-size": BATCH, **config}))
    server.admit(a_client_info(i, feature_dim=WIDTH, public_hash="p") for i in range(clients))
    return server


def units(rows: int, seed: int) -> NDArray[np.float32]:
    z = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    return F.normalize(z, dim=1).numpy()


def updates(arrays: dict[int, NDArray[np.float32]]) -> Iterable[ClientUpdate]:
    for client, z in arrays.items():
        yield ClientUpdate(client, 5, Uplink(z), [], 0.0, 0, 0, "w")


def test_public_batches_are_passes_over_the_public_set() -> None:
    keys = {"method": "fedmuscle", "public-size": 50, "fedmuscle.batch-size": BATCH}
    one_pass = public_batches(parse_run_config(keys), 1)
    assert one_pass.shape == (6, BATCH)  # 2 items of 50 are left out
    assert len(set(one_pass.flat)) == 48
    longer = public_batches(parse_run_config({**keys, "fedmuscle.steps": 8}), 1)
    assert longer.shape == (8, BATCH)
    assert (longer[:6] == one_pass).all()
    assert not (longer[6:] == one_pass[:2]).all()  # a new order in the second pass
    assert not (public_batches(parse_run_config(keys), 2) == one_pass).all()


def test_a_round_of_batches_is_two_exchanges() -> None:
    server = a_server(5)
    assert server.exchanges_in(1) == 2
    first = server.downlink_for(0, 1)
    assert (first.encode_indices == public_batches(server.run, 1).ravel()).all()
    assert len(first.others) == len(first.update_indices) == 0
    sent = {i: units(48, i) for i in range(5)}
    server.aggregate_in(1, updates(sent))
    server.exchange = 2
    second = server.downlink_for(0, 1)
    assert (second.update_indices == first.encode_indices).all()
    assert len(second.encode_indices) == 0
    assert count_scalars(second)[0] == 6 * 3 * BATCH * WIDTH
    server.aggregate_in(1, updates({}))
    assert len(server.downlink_for(0, 2).others) == 0  # nothing is kept


def test_partners_are_others_distinct_and_drawn_anew_for_every_batch() -> None:
    server = a_server(6)
    sent = {i: np.full((48, WIDTH), float(i), np.float32) for i in range(6)}
    server.aggregate_in(1, updates(sent))
    server.exchange = 2
    chosen = server.downlink_for(2, 1).others[:, ::BATCH, 0]  # (M, T)
    for batch in chosen.T:
        assert len(set(batch)) == 3
        assert 2.0 not in batch
    assert len({tuple(sorted(batch)) for batch in chosen.T}) > 1
    again = server.downlink_for(2, 1).others[:, ::BATCH, 0]
    assert (again == chosen).all()


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_partners_are_clipped_to_those_that_answered(clients: int) -> None:
    server = a_server(6)
    server.aggregate_in(1, updates({i: units(48, i) for i in range(clients)}))
    server.exchange = 2
    assert len(server.downlink_for(0, 1).others) == clients - 1
    absent = server.downlink_for(5, 1)
    assert len(absent.others) == len(absent.update_indices) == 0


def test_a_round_of_steps_sends_one_batch_ahead() -> None:
    """T + 1 exchanges: message t updates on I_t and asks for I_{t+1}."""
    server = a_server(3, fedmuscle__exchange="step", fedmuscle__steps=2)
    batches = public_batches(server.run, 4)
    assert server.exchanges_in(4) == 3
    asked, updated = [], []
    for exchange in (1, 2, 3):
        server.exchange = exchange
        downlink = server.downlink_for(0, 4)
        asked.append(downlink.encode_indices.tolist())
        updated.append(downlink.update_indices.tolist())
        rows = len(downlink.encode_indices)
        server.aggregate_in(4, updates({i: units(rows, i) for i in range(3)}))
    assert asked == [*batches.tolist(), []]
    assert updated == [[], *batches.tolist()]


@pytest.mark.parametrize("exchange", ["batch", "step"])
def test_what_was_received_serves_the_exchange_after_it_alone(exchange: str) -> None:
    """An exchange without anybody to ask is not aggregated: what came before it is out of date."""
    server = a_server(3, fedmuscle__exchange=exchange, fedmuscle__steps=2)
    rows = len(server.downlink_for(0, 1).encode_indices)
    server.aggregate_in(1, updates({i: units(rows, i) for i in range(3)}))
    places = {"batch": [(2, 1), (2, 2)], "step": [(1, 3), (2, 1), (2, 2)]}[exchange]
    for number, server.exchange in places:  # exchange 2 of round 1 had nobody
        downlink = server.downlink_for(0, number)
        assert len(downlink.others) == len(downlink.update_indices) == 0
    server.exchange = 2
    assert len(server.downlink_for(0, 1).others) == 2


@pytest.mark.parametrize("exchange", ["batch", "step"])
def test_a_round_cut_short_does_not_spoil_the_next(exchange: str, tmp_path: Path) -> None:
    """All are away in exchange 2 of round 1 and back right after it; nobody refuses anything."""

    class Away(InProcessGrid):
        asked: ClassVar[list[tuple[Any, Any]]] = []

        def get_node_ids(self) -> Iterable[int]:
            if self.asked[-1:] == [(1, 1)]:
                self.asked.append(("away", "once"))
                return []
            return super().get_node_ids()

        def _answer(self, message: Message) -> Message:
            control: Any = message.content.config_records.get("control", {})
            self.asked.append((control.get("round"), control.get("exchange")))
            return super()._answer(message)

    run = rounds(
        tmp_path, 2, grid_class=Away, fedmuscle__exchange=exchange, fedmuscle__steps=2,
        models="cnn5", subset=0.1,
    )  # fmt: skip
    assert (1, 2) not in Away.asked
    assert run.rows("failures") == []
    aligned_in = {(r["round"], r["client"]) for r in run.metrics(metric="loss_alignment")}
    assert aligned_in == {("2", "0"), ("2", "1")}


def test_both_exchanges_draw_the_same_partners() -> None:
    sent = {i: np.full((16, WIDTH), float(i), np.float32) for i in range(5)}
    batch = a_server(5, fedmuscle__steps=2)
    batch.aggregate_in(1, updates(sent))
    batch.exchange = 2
    whole = batch.downlink_for(1, 1).others
    step = a_server(5, fedmuscle__steps=2, fedmuscle__exchange="step")
    for t in (0, 1):
        step.exchange = t + 1
        step.aggregate_in(1, updates({i: z[:BATCH] for i, z in sent.items()}))
        step.exchange = t + 2
        part = step.downlink_for(1, 1).others
        assert (part == whole[:, t * BATCH : (t + 1) * BATCH]).all()


def test_representations_must_be_asked_for_and_of_length_one() -> None:
    server = a_server(2)
    z = units(48, 0)
    server.check_uplink(next(iter(updates({0: z}))))
    with pytest.raises(PayloadError, match="8 rows, 48 were asked for"):
        server.check_uplink(next(iter(updates({0: z[:8]}))))
    z[3] *= 2
    with pytest.raises(PayloadError, match="row 3 is 2 long"):
        server.check_uplink(next(iter(updates({0: z}))))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"fedmuscle.temperature-others": 0.2}, "below fedmuscle.temperature, 0.2"),
        ({"fedmuscle.loss": "gramian", "fedmuscle.temperature-others": 0.2}, None),
        ({"public-size": 7}, "at least one batch"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(keys: dict[str, Any], said: str | None) -> None:
    values = {"method": "fedmuscle", "fedmuscle.batch-size": BATCH, **keys}
    if said is None:
        ServerAtWork(parse_run_config(values))
        return
    with pytest.raises(ConfigError, match=said):
        ServerAtWork(parse_run_config(values))


def aligned(
    batches: int, seed: int = 0, **keys: Any
) -> tuple[Any, Any, NDArray[np.int32], NDArray[np.float32], dict[str, Any]]:
    values = {"fedmuscle.batch-size": BATCH, "feature_dim": WIDTH, "public_size": PUBLIC, **keys}
    context = a_context(12, method="fedmuscle", optimizer="adamw", **values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        state = Client().build(context)
    before = {name: item.clone() for name, item in state.model.state_dict().items()}
    indices = np.arange(batches * BATCH, dtype=np.int32)
    others = np.stack([units(len(indices), seed) for seed in range(3)])
    return context, state, indices, others, before


def test_a_step_changes_the_representation_model_alone() -> None:
    """The head phi^n stays, and so do BatchNorm's statistics, which are local."""
    context, state, indices, others, before = aligned(2)
    Alignment(context, state.model, PublicInputs(context)).towards(indices, others, {})
    changed = {k for k, v in state.model.state_dict().items() if not torch.equal(v, before[k])}
    names = [name for name, _ in state.model.named_parameters()]
    assert changed == {name for name in names if not name.startswith("head")}
    assert any("running_mean" in name for name in before)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_step_is_adamw_on_the_mean_muscle_loss(decay: float) -> None:
    """With the run's weight decay, which is none by default, not torch's 0.01."""
    context, state, indices, others, _ = aligned(1, weight_decay=decay)
    _, twin, _, _, _ = aligned(1)
    metrics = Alignment(context, state.model, PublicInputs(context)).towards(indices, others, {})
    model = twin.model.eval()
    parameters = model.representation_parameters()
    optimizer = torch.optim.AdamW(parameters, lr=SCRATCH_RATE, weight_decay=decay)
    z = model.represent(PublicInputs(context).batch(indices))
    loss = muscle_loss(z, torch.from_numpy(others)).mean()
    loss.backward()
    optimizer.step()
    assert metrics["loss_alignment"] == pytest.approx(loss.item())
    assert metrics["mutual_information"] == pytest.approx(3 * np.log(BATCH) - loss.item())
    for own, expected in zip(state.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def test_moments_carry_over_exchanges() -> None:
    """Two calls of a batch each, with AdamW's moments in between, are one call of two batches."""
    context, whole, indices, others, _ = aligned(2)
    Alignment(context, whole.model, PublicInputs(context)).towards(indices, others, {})
    _, parts, _, _, _ = aligned(2)
    moments: dict[str, torch.Tensor] = {}
    for part in (slice(0, BATCH), slice(BATCH, 2 * BATCH)):
        steps = Alignment(context, parts.model, PublicInputs(context))
        steps.towards(indices[part], others[:, part], moments)
    for one, two in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("loss", ["pairwise", "gramian"])
def test_alternatives_bring_representations_together(loss: str) -> None:
    keys = {"fedmuscle.loss": loss, "fedmuscle.public-lr": 3e-3}
    context, state, indices, _, _ = aligned(4, **keys)
    other = aligned(4, seed=1)[1].model
    public = PublicInputs(context)
    target = np.stack([public.represent(other, indices)])
    values = [
        Alignment(context, state.model, public).towards(indices, target, {})["loss_alignment"]
        for _ in range(4)
    ]
    assert values[-1] < values[0]


def rounds(directory: Path, clients: int = 4, **keys: Any) -> Outcome:
    return run_federation(directory, clients, **{**FAST, **keys})


def test_one_step_is_the_same_in_either_exchange(tmp_path: Path) -> None:
    """With T = 1 nothing is stale, so how the messages are cut makes no difference."""
    batch = rounds(tmp_path / "a", fedmuscle__steps=1)
    step = rounds(tmp_path / "b", fedmuscle__steps=1, fedmuscle__exchange="step")
    assert batch.text("metrics.csv") == step.text("metrics.csv")
    assert batch.metrics(metric="loss_alignment")


@pytest.mark.parametrize("exchange", ["batch", "step"])
def test_traffic_is_m_matrices_a_step(tmp_path: Path, exchange: str) -> None:
    """U08: and as many bytes from a large model as from a small one."""
    run = rounds(
        tmp_path, fedmuscle__exchange=exchange, fedmuscle__steps=3, num_rounds=1,
        models="cnn5, resnet10-w4",
    )  # fmt: skip
    size = 3 * BATCH * WIDTH
    messages = 2 if exchange == "batch" else 4
    for way, factor in (("uplink", 1), ("downlink", 3)):
        rows = [r for r in run.rows("traffic") if r["direction"] == way]
        assert {int(r["scalars"]) for r in rows} == {factor * size}
        assert {int(r["messages"]) for r in rows} == {messages}
        sizes = [int(r["bytes"]) for r in rows]
        assert max(sizes) <= 1.01 * min(sizes)


def test_one_user_alone_skips_the_alignment(tmp_path: Path) -> None:
    """And is then the same as Local with the same optimiser."""
    alone = rounds(tmp_path / "a", sample_fraction=0.25, tasks="classification")
    assert alone.metrics(metric="loss_alignment") == []
    local = {"optimizer": "adamw", "lr": 1e-3, "evaluate_when": "post", "method": "local"}
    settings = {key: value for key, value in FAST.items() if not key.startswith("fedmuscle")}
    reference = run_federation(
        tmp_path / "b", 4, **{**settings, **local}, sample_fraction=0.25, tasks="classification"
    )
    mine, theirs = (run.metrics(phase="post") for run in (alone, reference))
    assert mine == theirs


def test_a_user_that_misses_an_exchange_skips_it(tmp_path: Path) -> None:
    """Client 1 fails in the first exchange of round 1; it answers the second, without a part."""

    class Failing(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            control: Any = message.content.config_records.get("control", {})
            place = message.metadata.dst_node_id, control.get("round"), control.get("exchange")
            if place == (FIRST_NODE + 1, 1, 1):
                return Message(Error(1, "cable unplugged"), reply_to=message)
            return super()._answer(message)

    run = rounds(tmp_path, grid_class=Failing, fedmuscle__evaluate_after="alignment")
    aligned_in = {(r["round"], r["client"]) for r in run.metrics(metric="loss_alignment")}
    assert aligned_in == {(t, c) for t in "12" for c in "0123"} - {("1", "1")}
    assert run.metrics(round=1, client=1, metric="accuracy")
    assert [(r["round"], r["client"]) for r in run.rows("failures")] == [("1", "1")]


def test_simclr_sends_nothing(tmp_path: Path) -> None:
    run = rounds(tmp_path, fedmuscle__loss="simclr")
    assert {int(r["scalars"]) for r in run.rows("traffic")} == {0}
    assert {int(r["messages"]) for r in run.rows("traffic")} == {1}
    # Aligned between local trainings: with evaluation after the last of them, once in two rounds.
    assert len(run.metrics(metric="loss_alignment")) == 4
    after = rounds(tmp_path / "b", fedmuscle__loss="simclr", fedmuscle__evaluate_after="alignment")
    assert len(after.metrics(metric="loss_alignment")) == 8


def test_unlike_public_data_is_refused_at_the_roll_call() -> None:
    """A device whose public items are others than its peers' would align apples with pears."""
    server = a_server(3)
    with pytest.raises(RegistrationError, match=r"client 7: its public data .* is not that of"):
        server.admit([a_client_info(7, feature_dim=WIDTH, public_hash="q")])


def test_downlink_indices_must_be_public_items() -> None:
    bad = Downlink(np.array([PUBLIC], np.int32), np.zeros((1, 1, WIDTH), np.float32), np.empty(0))
    bad.encode_indices = np.empty(0, np.int32)
    with pytest.raises(PayloadError, match="update_indices: value 48 is not below 48"):
        unpack(Downlink, pack(bad), {"d": WIDTH, "C": 10, "P": PUBLIC})


@pytest.mark.parametrize(
    ("name", "given", "rate"),
    [
        ("lite0", "auto", PRETRAINED_RATE),
        ("lite0@64", "auto", PRETRAINED_RATE),
        ("minilm", "auto", PRETRAINED_RATE),
        ("timm/resnet18d@/path/model.safetensors", "auto", PRETRAINED_RATE),
        ("timm/resnet18d", "auto", SCRATCH_RATE),
        ("hf-vit", "auto", SCRATCH_RATE),
        ("cnn5", "auto", SCRATCH_RATE),
        ("lite0", 0.5, 0.5),
    ],
)
def test_the_alignments_rate_follows_the_first_weights(
    name: str, given: float | str, rate: float
) -> None:
    assert public_rate(given, name) == rate
