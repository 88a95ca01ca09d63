"""FedKD: adaptive losses by hand, the schedule, equal references on both sides, who gets what."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import ConfigRecord, Message, MetricRecord
from torch import Tensor, nn

from client_app.state_store import state_directory
from server_app.rounds.in_process import InProcessGrid
from strategies.base.client import ClientContext
from strategies.base.messages import INFO, METRICS, ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import PayloadError, count_scalars, pack, unpack
from strategies.fedkd.fedkd import (
    Client,
    ClientState,
    Config,
    Downlink,
    Uplink,
    distillation_terms,
)
from strategies.fedkd.low_rank import compress, layout_of
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info
from tests.unit.test_training import a_context

SMALL = {"fedkd.small-model": "cnn5"}
TEACHER = [[0.0, 0.0, math.log(2)], [math.log(3), 0.0, 0.0]]
STUDENT = [[0.0, math.log(4), 0.0], [0.0, 0.0, 0.0]]
R_TEACHER, R_STUDENT = [[1.0, 2.0], [0.0, -1.0]], [[1.0, 0.0], [2.0, 1.0]]
LABELS = torch.tensor([2, 1])


def leaf(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def w_h() -> nn.Linear:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=torch.float64))
    return layer


def small_server(clients: int = 3, **options: Any) -> ServerAtWork:
    keys = {"feature-dim": 8, "num-rounds": 4, **SMALL, **options}
    server = ServerAtWork(parse_run_config({"method": "fedkd", **keys}))
    infos = [
        a_client_info(i, num_classes=3, image_size=16, train_examples=50) for i in range(clients)
    ]
    server.clients = {info.client_id: info for info in infos}
    server.state = server.initial_state()
    return server


def a_client(client_id: int, **options: Any) -> tuple[ClientContext, ClientState]:
    context = a_context(8, method="fedkd", num_rounds=4, **SMALL, **options)
    context = dataclasses.replace(context, client_id=client_id)
    torch.manual_seed(client_id)
    return context, Client().build(context)


def drawn(server: ServerAtWork, seed: int, scale: float = 0.01) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        name: (scale * generator.normal(size=item.shape)).astype(np.float32)
        for name, item in server.state.theta.items()
    }


def update(client_id: int, examples: int, sent: Any, energy: float | None = None) -> ClientUpdate:
    return ClientUpdate(client_id, examples, Uplink(**compress(sent, energy)), [], 0, 0, 0, "")


def downlink(server: ServerAtWork, client: int, server_round: int = 1) -> Downlink:
    """Return what a client receives, as it comes out of the wire."""
    sent = server.downlink_for(client, server_round)
    return unpack(Downlink, pack(sent), {})


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert list(first) == list(second)
    for name, item in first.items():
        assert torch.equal(item, second[name]), name


def test_terms_by_hand() -> None:
    """W_h r_s = (1, 0), (3, 2); squared differences 0, 4, 9, 9, mean 5.5."""
    teacher, student = (leaf(R_TEACHER), leaf(TEACHER)), (leaf(R_STUDENT), leaf(STUDENT))
    terms = distillation_terms(teacher, student, LABELS, w_h(), True)
    ce_t, ce_s = (math.log(2) + math.log(5)) / 2, (math.log(6) + math.log(3)) / 2
    p, q = F.softmax(torch.tensor(TEACHER), 1), F.softmax(torch.tensor(STUDENT), 1)
    s = ce_t + ce_s
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(
        {
            "loss_teacher_ce": ce_t,
            "loss_teacher_kl": (q * (q / p).log()).sum().item() / 2 / s,
            "loss_teacher_hidden": 5.5 / s,
            "loss_student_ce": ce_s,
            "loss_student_kl": (p * (p / q).log()).sum().item() / 2 / s,
            "loss_student_hidden": 5.5 / s,
        },
        rel=1e-6,
    )


@pytest.mark.parametrize("detach_scale", [True, False])
def test_each_loss_moves_its_own_model(detach_scale: bool) -> None:
    """The sum's gradient is that of L_t for the teacher, of L_s for the student and W_h."""
    teacher, student = (leaf(R_TEACHER), leaf(TEACHER)), (leaf(R_STUDENT), leaf(STUDENT))
    layer = w_h()
    terms = distillation_terms(teacher, student, LABELS, layer, detach_scale)
    torch.stack(list(terms.values())).sum().backward()
    for own, wanted in (("teacher", teacher), ("student", (*student, layer.weight))):
        t, s, map_ = (leaf(R_TEACHER), leaf(TEACHER)), (leaf(R_STUDENT), leaf(STUDENT)), w_h()
        ce_t, ce_s = F.cross_entropy(t[1], LABELS), F.cross_entropy(s[1], LABELS)
        p, q = F.log_softmax(t[1], 1), F.log_softmax(s[1], 1)
        a, b = (q, p) if own == "teacher" else (p, q)  # KL(a || b), a constant
        kl = (a.detach().exp() * (a.detach() - b)).sum() / 2
        hidden = (t[0] - s[0] @ map_.weight.T).square().mean()
        scale = (ce_t + ce_s).detach() if detach_scale else ce_t + ce_s
        ((ce_t if own == "teacher" else ce_s) + (kl + hidden) / scale).backward()
        leaves = t if own == "teacher" else (*s, map_.weight)
        for found, expected in zip(wanted, leaves, strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-6)


def test_energy_schedule() -> None:
    config = Config()
    assert [config.energy(t, 10) for t in (0, 5, 10)] == pytest.approx([0.95, 0.965, 0.98])
    five = Config(energy_rounds=5)
    assert [five.energy(t, 10) for t in (1, 5, 8)] == [Config().energy(t, 5) for t in (1, 5, 5)]
    server = small_server()
    metrics = server.aggregate_in(2, [update(0, 1, drawn(server, 1))])
    assert metrics["energy_threshold"] == pytest.approx(0.965)


def test_mean_of_two_updates_moves_theta() -> None:
    """(1 * first + 3 * second) / 4, added to theta; at full energy nothing is lost."""
    for mean, share in (("weighted", 0.75), ("uniform", 0.5)):
        full = {"fedkd.energy-start": 1.0, "fedkd.energy-end": 1.0, "fedkd.mean": mean}
        server = small_server(**full)
        before = server.state.theta
        first, second = drawn(server, 1), drawn(server, 2)
        server.aggregate_in(1, [update(0, 1, first), update(1, 3, second)])
        for name, item in server.state.theta.items():
            expected = before[name].numpy() + (1 - share) * first[name] + share * second[name]
            np.testing.assert_allclose(item.numpy(), expected, atol=1e-6)


def test_client_and_server_hold_equal_thetas_bit_for_bit() -> None:
    """Client 0 always takes part; 1 misses round 2; 2 is new in round 4. Then a lossy chain."""
    server, half = small_server(), Client()
    clients = {i: a_client(i) for i in range(3)}
    present: dict[int, list[int]] = {1: [0, 1], 2: [0], 3: [0, 1], 4: [0, 1, 2]}
    relative = {}
    for number, ids in present.items():
        updates = []
        for i in ids:
            context, state = clients[i]
            context = dataclasses.replace(context, server_round=number)
            down = downlink(server, i, number)
            relative[number, i] = bool(down.relative)
            half.receive(context, state, down)
            assert_same(state.theta, server.state.theta)
            assert_same(dict(state.student.state_dict()), server.state.theta)
            sent, _ = half.train(context, state, down)
            assert sent.is_factored.any()
            assert_same(state.theta, server.state.theta)  # training changes the student only
            received = unpack(Uplink, pack(sent), {})
            updates.append(ClientUpdate(i, 8, received, [], 0, 0, 0, ""))
        server.aggregate_in(number, updates)
    assert {key for key, is_relative in relative.items() if is_relative} == {
        (2, 0), (3, 0), (4, 0), (4, 1),
    }  # fmt: skip


def test_an_update_that_does_not_fit_is_refused_and_theta_comes_whole_next() -> None:
    server, half = small_server(), Client()
    context, state = a_client(0)
    half.receive(context, state, downlink(server, 0))
    server.aggregate_in(1, [update(0, 8, drawn(server, 1), 0.95)])
    fitting = downlink(server, 0)
    _, lost = a_client(0)
    with pytest.raises(PayloadError, match=r"number 0 reached client 0, which holds none; theta"):
        half.receive(context, lost, fitting)
    half.receive(context, state, fitting)
    with pytest.raises(PayloadError, match=r"number 0 reached client 0, which holds number 1"):
        half.receive(context, state, fitting)
    server.aggregate_in(2, [update(1, 8, drawn(server, 2), 0.95)])  # client 0 did not answer
    whole = downlink(server, 0)
    assert not whole.relative
    half.receive(context, lost, whole)
    assert_same(lost.theta, server.state.theta)
    assert (lost.number, int(whole.number), int(whole.base)) == (2, 2, 2)


def test_what_is_counted_is_what_is_sent() -> None:
    """Whole: all of theta. An update of rank one: rows + cols + 1 for each matrix."""
    server = small_server()
    size = sum(item.numel() for item in server.state.theta.values())
    assert count_scalars(downlink(server, 0))[0] == size
    sent = drawn(server, 1)
    expected = 0
    for name, item in sent.items():
        rows, cols = len(item), item.size // len(item)
        if item.ndim > 1:
            sent[name] = np.outer(np.ones(rows), np.ones(cols)).reshape(item.shape).astype("f4")
        expected += min(rows + cols + 1, item.size) if item.ndim > 1 else item.size
    one = update(0, 8, sent, 0.95)
    assert count_scalars(one.uplink)[0] == expected
    server.aggregate_in(1, [one])
    assert count_scalars(downlink(server, 0))[0] == expected
    assert count_scalars(downlink(server, 1))[0] == size
    assert downlink(server, 0).relative
    tensors = len(server.state.theta)
    assert count_scalars(one.uplink)[1] == expected + 2 * tensors


def test_a_downlink_is_made_once_for_all_who_get_it() -> None:
    server = small_server()
    server.aggregate_in(1, [update(i, 8, drawn(server, i), 0.95) for i in (0, 2)])
    made = {i: id(server.downlink_for(i, 2)) for i in range(3)}
    assert made[0] == made[2] != made[1]
    server.aggregate_in(2, [update(1, 8, drawn(server, 3), 0.95)])
    assert server.downlink_for(0, 3).number == 2


def test_weights_option_sends_theta_itself() -> None:
    server = small_server(**{"fedkd.compress": "weights", "fedkd.energy-start": 0.5})
    half, (context, state) = Client(), a_client(0, **{"fedkd.compress": "weights"})
    theta = {k: v.clone() for k, v in server.state.theta.items()}
    down = downlink(server, 0)
    assert down.is_factored.any()
    assert not down.relative
    half.receive(context, state, down)
    assert_same(state.theta, theta)
    sent, _ = half.train(context, state, down)
    server.aggregate_in(1, [ClientUpdate(0, 8, sent, [], 0, 0, 0, "")])
    trained = state.student.state_dict()
    distance = (server.state.theta["head.weight"] - trained["head.weight"]).norm()
    assert distance < 0.75 * trained["head.weight"].norm()
    again = downlink(server, 0)
    assert not again.relative
    half.receive(context, state, again)
    assert_same(state.theta, server.state.theta)


def test_nothing_is_aliased() -> None:
    server, half = small_server(), Client()
    context, state = a_client(0)
    down = downlink(server, 0)
    half.receive(context, state, down)
    sent = drawn(server, 1)
    server.aggregate_in(1, [update(0, 8, sent)])
    kept = {k: v.clone() for k, v in server.state.theta.items()}
    again = downlink(server, 0)
    for item in sent.values():
        item[:] = 9
    with torch.no_grad():
        for parameter in state.student.parameters():
            parameter.fill_(7)
    half.receive(context, state, again)
    assert_same(server.state.theta, kept)
    assert_same(state.theta, kept)


def test_contradicting_sizes_are_refused_before_anything_is_summed() -> None:
    server = small_server()
    good = update(0, 8, drawn(server, 1), 0.95).uplink
    ranks = good.ranks.copy()
    ranks[np.flatnonzero(ranks)[0]] += 1
    for bad, message in (
        (dataclasses.replace(good, ranks=ranks), "factors: "),
        (dataclasses.replace(good, raw=good.raw[:-1]), "raw: head.bias needs 3 values"),
        (dataclasses.replace(good, is_factored=~good.is_factored), "ranks: "),
    ):
        content = pack(bad)
        content[METRICS] = MetricRecord({"train/loss": [1.0, 8.0]})
        info = {
            "client-id": 0,
            "round": 1,
            "num-examples": 8,
            "compute-s": 0.1,
            "worker": "w",
            "rounds-trained": 0,
        }
        content[INFO] = ConfigRecord(info)  # type: ignore[arg-type]
        server.server_round = 1
        with pytest.raises(PayloadError, match=message):
            server.read(0, content)


def test_w_h_is_private_square_and_without_bias() -> None:
    _, state = a_client(0)
    assert tuple(state.projection.weight.shape) == (8, 8)
    assert state.projection.bias is None
    names = set(layout_of(state.student.state_dict()))
    assert names == set(small_server().state.theta)


def test_full_student_has_the_published_size() -> None:
    server = ServerAtWork(parse_run_config({"method": "fedkd"}))
    server.clients = {0: a_client_info(0, num_classes=100, channels=3)}
    server.state = server.initial_state()
    assert sum(v.numel() for v in server.state.theta.values()) == 924_708
    assert count_scalars(server.downlink_for(0, 1))[0] == 924_708


def scalars(rows: Iterable[dict[str, str]], direction: str, **wanted: Any) -> list[int]:
    return [
        int(row["scalars"])
        for row in rows
        if row["direction"] == direction and all(row[k] == str(v) for k, v in wanted.items())
    ]


def run_small(directory: Path, clients: int, **config: Any) -> Outcome:
    return run_federation(
        directory, clients, method="fedkd", fedkd__small_model="cnn5", feature_dim=64, **config
    )


def test_traffic_of_a_run(tmp_path: Path) -> None:
    """Round 1 starts with theta whole; then who trained last gets the update, others theta."""
    run = run_small(tmp_path, 3, num_rounds=3, sample_fraction=0.67)
    rows = [row for row in run.rows("traffic") if row["purpose"] != "closing"]
    (size,) = set(scalars(rows, "downlink", round=1))
    sent = scalars(rows, "uplink", purpose="train")
    assert len(sent) == 6
    assert all(0 < count < size for count in sent)
    trained = {(int(row["round"]), row["client"]) for row in rows if row["purpose"] == "train"}
    for row in rows:
        if row["direction"] == "downlink":
            took_part = (int(row["round"]) - 1, row["client"]) in trained
            assert (int(row["scalars"]) < size) == took_part
    assert run.rows("failures") == []
    assert run.metrics(metric="accuracy_student", phase="pre", round=2)


class Forgetful(InProcessGrid):
    """Client 1 loses its disk before round 3."""

    def _answer(self, message: Message) -> Message:
        client = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if client == 1 and message.metadata.group_id == "3":
            run = next(iter(self.contexts.values())).run_config
            root = Path(str(run["output-dir"])) / str(run["run-name"]) / "clients"
            shutil.rmtree(state_directory(root, 1))
        return super()._answer(message)


def test_a_client_that_lost_its_state_comes_back(tmp_path: Path) -> None:
    run = run_small(tmp_path, 3, num_rounds=4, evaluate_when="post", grid_class=Forgetful)
    assert run.config["status"] == "completed"
    failure, noticed = run.rows("failures")
    assert (failure["client"], failure["round"]) == ("1", "3")
    assert (noticed["client"], noticed["round"], noticed["kind"]) == ("1", "4", "state")
    assert "its private state knows 0 of 2 rounds" in noticed["reason"]
    assert "holds none; theta comes whole the next time" in failure["reason"]
    rows = run.rows("traffic")
    (size,) = set(scalars(rows, "downlink", round=1))
    assert scalars(rows, "downlink", round=4, client=1) == [size]
    assert all(count < size for count in scalars(rows, "downlink", round=4, client=0))
    assert run.metrics(phase="train", metric="loss", client=1, round=4)
