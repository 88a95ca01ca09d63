"""One round over a Grid whose replies can be changed, delayed, lost or turned round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from server_app.records.round_result import RoundResult
from server_app.rounds.exchange import Exchange, RunError
from server_app.rounds.in_process import InProcessGrid
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.roster import Roster
from server_app.rounds.transport import Transport
from strategies.base.messages import (
    INFO,
    METRICS,
    ClientUpdate,
    Control,
    MetricRow,
    count_bytes,
    metrics_record,
)
from strategies.base.method import get_method
from strategies.base.parsing import parse_run_config
from strategies.base.payload import ARRAYS, PayloadError, pack
from tests.support import run_federation
from tests.unit.test_roster import a_client_info

CLIENTS = 4


def a_reply(client: int, server_round: int, kind: str = "train") -> RecordDict:
    content = RecordDict()
    if kind == "train":
        rep = np.full(512, client + 1, np.float32)
        label = np.zeros(10, np.float32)
        label[client] = 1
        content = pack(get_method("fedre").uplink(rep, label))
    content[METRICS] = metrics_record([MetricRow("pre", "accuracy", 0.1 * client, 2)])
    content[INFO] = ConfigRecord(
        {
            "client-id": client, "round": server_round, "worker": "w", "rounds-trained": 0,
            "num-examples": 5 if kind == "train" else 0, "compute-s": 0.25,
        }
    )  # fmt: skip
    return content


class StubGrid:
    """Answers with `a_reply`; `change` may alter a reply's content or return None to be silent."""

    def __init__(
        self, change: Callable[[int, RecordDict], RecordDict | Exception | None], *, seed: int = 0
    ) -> None:
        self.change = change
        self.draw = random.Random(seed)
        self.waiting: dict[str, Any] = {}
        self.sent: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return [100 + client for client in range(CLIENTS)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            self.sent.append(message)
            client = message.metadata.dst_node_id - 100
            kind = message.metadata.message_type
            number = int(message.metadata.group_id)
            answer = self.change(client, a_reply(client, number, kind))
            if answer is not None:
                self.waiting[ids[-1]] = FakeReply(ids[-1], answer)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        """Hand out one reply at a time, in a random order."""
        there = [i for i in ids if i in self.waiting]
        return [self.waiting.pop(self.draw.choice(there))] if there else []


class FakeReply:
    def __init__(self, to: str, answer: RecordDict | Exception) -> None:
        self.metadata = type("M", (), {"reply_to_message_id": to, "src_node_id": 1})()
        self._error = answer if isinstance(answer, Exception) else None
        self.error = type("E", (), {"code": 2, "reason": str(answer)})()
        self.content = answer

    def has_error(self) -> bool:
        return self._error is not None


def as_it_is(client: int, content: RecordDict) -> RecordDict:
    return content


def a_round(
    change: Callable[[int, RecordDict], RecordDict | Exception | None] = as_it_is,
    *,
    participants: tuple[int, ...] = (0, 1, 2),
    others: tuple[int, ...] = (3,),
    seed: int = 0,
    **config: Any,
) -> tuple[RoundResult, list[ClientUpdate]]:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    run = parse_run_config({"method": "fedre", "round-timeout": 0.3, **keys})
    server = MethodServer(run)
    server.admit(a_client_info(client) for client in range(CLIENTS))
    server.begin()
    server.server_round = 2
    messages = MessageFactory("run", {c: 100 + c for c in range(CLIENTS)}, ttl=10)
    transport = Transport(StubGrid(change, seed=seed))  # type: ignore[arg-type]
    seen: list[ClientUpdate] = []
    inner = server.aggregate

    def aggregate(updates: Iterable[ClientUpdate]) -> dict[str, float]:
        seen.extend(updates)
        return inner(iter(seen))

    server.aggregate = aggregate  # type: ignore[method-assign]
    exchange = Exchange(
        server,
        transport,
        Roster(server, transport, messages),
        a_control(),
        list(participants),
        list(others),
    )
    return exchange.run(), seen


def a_control(server_round: int = 2) -> Control:
    return Control(run_name="run", token="t", session="s", round=server_round)


@pytest.mark.parametrize("seed", range(8))
def test_updates_come_in_client_order_whoever_answers_first(seed: int) -> None:
    result, seen = a_round(participants=(3, 0, 2, 1), others=(), seed=seed)
    assert [u.client_id for u in seen] == [0, 1, 2, 3]
    assert [float(u.uplink.entangled_rep[0]) for u in seen] == [1, 2, 3, 4]
    first, _ = a_round(participants=(0, 1, 2, 3), others=())
    assert result.server_metrics == first.server_metrics
    assert sorted(client for client, _ in result.rows) == [0, 1, 2, 3]
    assert result.failures == []


def test_a_round_counts_its_traffic_and_time() -> None:
    result, _ = a_round()
    down = [t for t in result.traffic if t.direction == "downlink"]
    up = sorted((t for t in result.traffic if t.direction == "uplink"), key=lambda t: t.client_id)
    assert [(t.client_id, t.purpose) for t in down] == [
        (0, "train"), (1, "train"), (2, "train"), (3, "evaluate")
    ]  # fmt: skip
    assert {t.scalars for t in down} == {10 * 512 + 10}
    assert [t.scalars for t in up] == [512, 512, 512, 0]
    assert up[0].num_bytes == count_bytes(a_reply(0, 2))
    # U45: within 2 % of the arrays themselves, plus small metadata
    assert 0 <= down[0].num_bytes - 4 * 5130 < 0.02 * 4 * 5130
    assert result.compute_s == 1.0
    assert result.workers == {"w"}
    assert result.seconds > 0


def test_nobody_to_train_is_an_evaluation_only() -> None:
    result, seen = a_round(participants=(), others=(0, 1, 2, 3))
    assert seen == []
    assert len(result.rows) == 4
    assert result.server_metrics == {}


def damaged(content: RecordDict, case: str) -> RecordDict:
    if case == "nan":
        rep = np.full(512, np.nan, np.float32)
        content.update(pack(get_method("fedre").uplink(rep, np.ones(10, np.float32))))
    elif case == "bytes":
        array = content[ARRAYS]["float32"]
        content[ARRAYS]["float32"] = Array("float32", (1,), "numpy.ndarray", array.data[:200])
    elif case == "examples":
        content[INFO]["num-examples"] = 10**12
    elif case == "test examples":
        content[METRICS]["pre/accuracy"] = [1.0, 1e12]
    elif case == "round":
        content[INFO]["round"] = 1
    elif case == "client":
        content[INFO]["client-id"] = 2
    return content


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("nan", "entangled_rep: 512 of 512 values are NaN"),
        ("bytes", "float32: header says"),
        (
            "examples",
            "num-examples: rests on 1000000000000 examples, at the registration",
        ),
        ("test examples", "pre/accuracy: rests on"),
        ("round", "round: the reply says 1, expected 2"),
        ("client", "client-id: the reply says 2, expected 1"),
    ],
)
def test_a_bad_payload_is_named_and_left_out(
    case: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """U06: the round completes with the rest."""
    result, seen = a_round(lambda c, content: damaged(content, case) if c == 1 else content)
    assert [u.client_id for u in seen] == [0, 2]
    (failure,) = result.failures
    assert (failure.client_id, failure.kind) == (1, "train")
    assert failure.reason.startswith(f"refused payload: {key}")
    assert {client for client, _ in result.rows} == {0, 2, 3}
    assert f"round 2: client 1 (train): refused payload: {key}" in capsys.readouterr().out


def test_all_bad_ends_the_run() -> None:
    with pytest.raises(RunError) as caught:
        a_round(lambda c, content: damaged(content, "nan"))
    text = str(caught.value)
    assert text.startswith("round 2: none of 3 participants answered validly (client ")
    for client in (0, 1, 2):
        assert f"client {client}: refused payload: entangled_rep" in text


def test_all_clients_raising_ends_the_run() -> None:
    with pytest.raises(RunError, match="none of 3 participants answered validly"):
        a_round(lambda c, content: ValueError("boom"))


def test_an_error_is_named_and_skipped_or_stops() -> None:
    """U50."""

    def change(client: int, content: RecordDict) -> RecordDict | Exception:
        return ValueError("ValueError: boom") if client == 0 else content

    result, seen = a_round(change)
    assert [u.client_id for u in seen] == [1, 2]
    assert [(f.client_id, f.reason) for f in result.failures] == [(0, "ValueError: boom")]
    with pytest.raises(
        RunError, match=r"round 2: client 0: ValueError: boom \(on-client-error = stop"
    ):
        a_round(change, on_client_error="stop")


def test_a_bad_payload_stops_the_run_that_says_so() -> None:
    with pytest.raises(RunError, match=r"client 1: refused payload: entangled_rep"):
        a_round(
            lambda c, content: damaged(content, "nan") if c == 1 else content,
            on_client_error="stop",
        )


def test_who_does_not_answer_in_time_is_named() -> None:
    result, seen = a_round(lambda c, content: None if c in (1, 3) else content)
    assert [u.client_id for u in seen] == [0, 2]
    assert [(f.client_id, f.kind) for f in result.failures] == [(1, "train"), (3, "evaluate")]
    assert {f.reason for f in result.failures} == {"no answer within 0.3 s (round-timeout)"}
    assert 0.25 < result.seconds < 3


def test_silence_of_all_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"none of 3 .*no answer within 0\.3 s"):
        a_round(lambda c, content: None)


def test_a_client_without_examples_is_skipped_even_where_errors_stop() -> None:
    """U30."""

    def change(client: int, content: RecordDict) -> RecordDict:
        if client == 1:
            del content[ARRAYS], content["manifest"]
            content[INFO]["num-examples"] = 0
        return content

    result, seen = a_round(change, on_client_error="stop")
    assert [u.client_id for u in seen] == [0, 2]
    assert [(f.client_id, f.kind, f.reason) for f in result.failures] == [
        (1, "skipped", "no training examples")
    ]
    assert {client for client, _ in result.rows} == {0, 1, 2, 3}


def test_an_evaluating_client_that_fails_does_not_cost_the_round() -> None:
    result, seen = a_round(lambda c, content: OSError("OSError: disk") if c == 3 else content)
    assert len(seen) == 3
    assert [(f.client_id, f.kind) for f in result.failures] == [(3, "evaluate")]


def test_a_method_that_reads_only_the_first_still_gets_all_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = get_method("fedre").server
    inner = server.aggregate
    monkeypatch.setattr(
        server, "aggregate", lambda self, c, s, updates: inner(self, c, s, [next(iter(updates))])
    )
    result, _ = a_round()
    assert {client for client, _ in result.rows} == {0, 1, 2, 3}


def test_a_reply_of_another_round_is_refused() -> None:
    server = MethodServer(parse_run_config({"method": "fedre"}))
    server.admit([a_client_info(0)])
    server.begin()
    server.server_round = 2
    with pytest.raises(PayloadError, match="round"):
        server.read(0, a_reply(0, 1))


class BreakingGrid(InProcessGrid):
    """Client 1's representation is NaN in round 2."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        messages = list(super().pull_messages(message_ids))
        for message in messages:
            content = message.content
            info = content.get(INFO)
            if info and info["client-id"] == 1 and info["round"] == 2 and ARRAYS in content:
                damaged(content, "nan")
        return messages


def test_a_run_goes_on_without_a_bad_payload(tmp_path: Path) -> None:
    """U06, through the whole loop: refused, recorded, counted."""
    run = run_federation(
        tmp_path,
        3,
        grid_class=BreakingGrid,
        models="five-cnns",
        subset=0.1,
        num_rounds=3,
        evaluate_every=3,
    )
    assert run.config["status"] == "completed"
    (row,) = run.rows("failures")
    assert (row["round"], row["client"], row["kind"]) == ("2", "1", "train")
    assert row["reason"].startswith("refused payload: entangled_rep")
    assert run.summary["clients_failed"] == 1
    assert len(run.metrics(round=3, phase="train", metric="loss")) == 3
