"""The roster: who answers the registration, who fits, who comes later and who comes back."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from models import ModelError
from server_app.rounds import roster as roster_module
from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from server_app.rounds.roster import Roster
from server_app.rounds.transport import Answer, Sent, Transport
from strategies.base.messages import CLIENT_INFO, ClientInfo
from strategies.base.parsing import parse_run_config
from strategies.base.server import RegistrationError


def a_client_info(client: int, **changes: Any) -> ClientInfo:
    info = ClientInfo(
        client_id=client, model="cnn5", parameters=10, raw_dim=500, feature_dim=512, num_classes=10,
        channels=1, image_size=32, class_hash="aa", classes=[0, 2], class_counts=[4, 1],
        train_examples=5, validation_examples=0, test_examples=2, device="cpu", data_hash="x",
    )  # fmt: skip
    return dataclasses.replace(info, **changes)


class FakeGrid:
    """Nodes that come and go; `answers` says what each one replies to the registration."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.nodes = list(answers)
        self.names: dict[int, str] = {}
        self.asked: list[int] = []
        self._replies: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=n, name=self.names.get(n, "")) for n in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            ids.append(f"{node}/{len(self.asked)}")
            answer = self.answers.get(node)
            if answer is not None:
                self._replies.append(self._reply(ids[-1], node, answer))
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        wanted, there = set(ids), self._replies
        self._replies = [r for r in there if r.metadata.reply_to_message_id not in wanted]
        return [r for r in there if r.metadata.reply_to_message_id in wanted]

    def _reply(self, to: str, node: int, answer: Any) -> Any:
        error = isinstance(answer, Exception)
        record = answer.to_record() if isinstance(answer, ClientInfo) else answer
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=to, src_node_id=node),
            has_error=lambda: error,
            error=SimpleNamespace(code=2, reason=str(answer)),
            content=None if error else RecordDict({CLIENT_INFO: record}),
        )


@pytest.fixture(autouse=True)
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    short = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: time.sleep(min(seconds, 0.005))
    )
    monkeypatch.setattr(roster_module, "time", short)


def a_roster(answers: dict[int, Any], **config: Any) -> tuple[Roster, FakeGrid]:
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    run = parse_run_config({"wait-timeout": 0.1, "round-timeout": 0.4, **keys})
    grid = FakeGrid(answers)
    messages = MessageFactory("run", {}, ttl=10)
    return Roster(MethodServer(run), Transport(cast(Grid, grid)), messages), grid


def join(roster: Roster) -> None:
    """What a round does with the nodes that came and the client information that arrived."""
    roster.invite()
    for answer in roster.transport.arrived():
        roster.take(answer)


def test_clients_are_known_by_their_own_ids() -> None:
    roster, grid = a_roster({71: a_client_info(2), 35: a_client_info(0), 58: a_client_info(1)})
    roster.assemble()
    assert list(roster.server.clients) == [0, 1, 2]
    assert roster.messages.nodes == {0: 35, 1: 58, 2: 71}
    assert roster.online() == [0, 1, 2]
    assert sorted(grid.asked) == [35, 58, 71]
    grid.nodes.remove(58)
    assert roster.online() == [0, 2]


def test_too_few_nodes_end_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """U51."""
    roster, _ = a_roster({35: a_client_info(0)}, min_clients=2)
    started = time.monotonic()
    with pytest.raises(
        RegistrationError, match=r"^1 of 2 clients after 0\.1 s \(min-clients, wait-t"
    ):
        roster.assemble()
    assert time.monotonic() - started < 2
    assert "waiting for 2 clients, 1 here" in capsys.readouterr().out


def test_one_node_is_enough_if_the_run_says_so() -> None:
    roster, _ = a_roster({35: a_client_info(0)}, min_clients=1)
    roster.assemble()
    assert roster.online() == [0]


def test_nodes_that_come_in_time_are_waited_for() -> None:
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)}, wait_timeout=5.0)
    grid.nodes = [35]
    looks = iter(range(100))
    grid.get_node_ids = lambda: [35] if next(looks) < 3 else [35, 36]  # type: ignore[method-assign]
    roster.assemble()
    assert list(roster.server.clients) == [0, 1]


def test_a_silent_node_does_not_block_for_ever() -> None:
    roster, _ = a_roster({35: a_client_info(0), 36: a_client_info(1), 37: None})
    started = time.monotonic()
    roster.assemble()
    assert time.monotonic() - started < 2
    assert list(roster.server.clients) == [0, 1]
    assert roster.transport.outstanding("query") == 1  # its client information is still welcome


def test_silence_of_too_many_is_an_error() -> None:
    roster, _ = a_roster({35: a_client_info(0), 36: None})
    started = time.monotonic()
    with pytest.raises(RegistrationError, match=r"^1 of 2 clients answered the registration"):
        roster.assemble()
    assert time.monotonic() - started < 3


def test_failures_are_named_when_too_few_are_left() -> None:
    roster, _ = a_roster({35: a_client_info(0), 36: ValueError("no disk")})
    with pytest.raises(RegistrationError, match=r"1 of 2 clients answered.*; node 36: no disk"):
        roster.assemble()


def test_a_failing_client_is_left_out_or_stops_the_run() -> None:
    answers = {35: a_client_info(0), 36: a_client_info(1), 37: ValueError("no disk")}
    roster, _ = a_roster(answers)
    roster.assemble()
    assert roster.problems == [(None, "node 37: no disk")]
    roster, _ = a_roster(answers, on_client_error="stop")
    with pytest.raises(RegistrationError, match=r"^node 37: no disk"):
        roster.assemble()


BROKEN = {
    "a problem": (
        ConfigRecord({"problem": "ModelError: model 'cnn99' is unknown", "who": "2"}),
        r"client 2: ModelError: model 'cnn99' is unknown$",
    ),
    "a contradiction": (
        ConfigRecord({**a_client_info(2).to_record(), "classes": [0, 99]}),
        r"node 37: client information: classes .* contradict num_classes",
    ),
    "nothing": (ConfigRecord(), r"node 37: client information: client_id = None"),
    "an unknown field": (
        ConfigRecord({**a_client_info(2).to_record(), "x": 1}),
        r"node 37: client information: 'x': key is not declared$",
    ),
    "too much": (
        ConfigRecord({**a_client_info(2).to_record(), "class_counts": [1] * 2_000_000}),
        r"node 37: client information: class_counts = \[1, 1, 1, \.\.\.\] \(2000000 values\), exp",
    ),
    "an id that is taken": (a_client_info(1), r"client 1: two connected nodes have this id"),
    "another width": (
        a_client_info(2, feature_dim=64),
        r"client 2: model cnn5 has representation width 64, fedre needs 512",
    ),
    "other classes": (
        a_client_info(2, class_hash="bb"),
        r"client 2: class_hash is bb, the others have aa",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_wrong_device_is_left_out_by_name(case: str) -> None:
    answer, reason = BROKEN[case]
    good = {35: a_client_info(0), 36: a_client_info(1)}
    roster, grid = a_roster({**good, 37: answer})
    roster.assemble()
    assert roster.messages.nodes == {0: 35, 1: 36}
    ((_, text),) = roster.problems
    assert re.match(reason, text), text
    assert len(text) < 300
    join(roster)  # asked again in the first round, and complained about only once
    assert grid.asked.count(37) == 2
    assert len(roster.problems) == 1


@pytest.mark.parametrize("case", BROKEN)
def test_one_wrong_device_ends_a_run_that_wants_everyone(case: str) -> None:
    answer, reason = BROKEN[case]
    roster, _ = a_roster(
        {35: a_client_info(0), 36: a_client_info(1), 37: answer}, on_client_error="stop"
    )
    with pytest.raises(RegistrationError, match="^" + reason):
        roster.assemble()


@pytest.mark.parametrize("case", BROKEN)
def test_a_run_that_cannot_do_without_says_why(case: str) -> None:
    answer, reason = BROKEN[case]
    roster, _ = a_roster({35: a_client_info(0), 36: a_client_info(1), 37: answer}, min_clients=3)
    with pytest.raises(RegistrationError, match=f"^2 of 3 clients answered .*; {reason}"):
        roster.assemble()


def test_another_takes_the_place_of_a_wrong_device() -> None:
    """The node that makes the number up comes while the server waits."""
    wrong = ConfigRecord({"problem": "DataError: no such folder", "who": "1"})
    roster, grid = a_roster({35: a_client_info(0), 36: wrong, 37: a_client_info(2)}, wait_timeout=5)
    looks = iter(range(100))
    grid.get_node_ids = lambda: [35, 36] if next(looks) < 5 else [35, 36, 37]  # type: ignore[method-assign]
    roster.assemble()
    assert roster.messages.nodes == {0: 35, 2: 37}
    assert [text for _, text in roster.problems] == ["client 1: DataError: no such folder"]


def test_a_device_with_a_key_is_named_by_it() -> None:
    """What it says of itself is not believed: it might name another as the culprit."""
    lies = ConfigRecord({"problem": "DataError: no such folder", "who": "0"})
    roster, grid = a_roster(
        {35: a_client_info(0), 36: a_client_info(1), 37: lies, 38: ConfigRecord()}
    )
    grid.names = {35: "client-0", 36: "client-1", 37: "client-2", 38: "client-3"}
    roster.assemble()
    assert [text.partition(":")[0] for _, text in roster.problems] == ["client 2", "client 3"]


def test_models_that_do_not_go_together_cost_the_fewest_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 0 comes first, and yet it is the one that the others do without."""

    def check(self: Any, context: Any, state: Any, client: ClientInfo) -> str | None:
        models = {info.model for info in context.clients.values()}
        return f"{', '.join(sorted(models))} do not go together" if len(models) > 1 else None

    roster, _ = a_roster(
        {35: a_client_info(0, model="cnn1"), 36: a_client_info(1), 37: a_client_info(2)}
    )
    monkeypatch.setattr(type(roster.server.half), "check", check)
    roster.assemble()
    assert roster.messages.nodes == {1: 36, 2: 37}
    assert roster.problems == [(0, "cnn1, cnn5 do not go together")]


def test_a_model_that_the_server_cannot_build_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Any, context: Any, state: Any, client: ClientInfo) -> str | None:
        if client.model == "no\u00e9":
            raise ModelError("model 'no\u00e9' is unknown")
        return None

    answers = {35: a_client_info(0), 36: a_client_info(1), 37: a_client_info(2, model="no\u00e9")}
    roster, _ = a_roster(answers)
    monkeypatch.setattr(type(roster.server.half), "check", check)
    roster.assemble()
    ((client, text),) = roster.problems
    assert (client, "cannot be built here: model" in text) == (2, True)


def test_in_a_simulation_a_mistake_in_the_set_up_stops_the_run() -> None:
    """All clients are one person's there: the mistake is in the run's settings."""
    for case in ("a problem", "an id that is taken", "other classes"):
        answer, reason = BROKEN[case]
        roster, _ = a_roster({35: a_client_info(0), 36: a_client_info(1), 37: answer})
        roster._one_machine = True
        with pytest.raises(RegistrationError, match="^" + reason):
            roster.assemble()


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_classes", 12), ("class_hash", "bb"), ("channels", 3), ("image_size", 28)],
)
def test_contradicting_data_sets_are_named(field: str, value: Any) -> None:
    """U07: the client, what it has, and what the others have."""
    usual = getattr(a_client_info(0), field)
    roster, _ = a_roster(
        {35: a_client_info(0, **{field: value}), 36: a_client_info(1), 37: a_client_info(2)},
        on_client_error="stop",
    )
    with pytest.raises(RegistrationError) as caught:
        roster.assemble()
    assert str(caught.value).startswith(
        f"client 0: {field} is {value}, the others have {usual}; all clients need the same classes"
    )
    assert "client 1" not in str(caught.value)
    assert roster.server.clients == {}


def test_a_late_joiner_with_other_classes_is_left_out() -> None:
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.answers[37] = a_client_info(2, class_hash="bb")
    grid.nodes.append(37)
    join(roster)
    assert [client for client, _ in roster.problems] == [2]
    assert "class_hash is bb, the others have aa" in roster.problems[0][1]
    assert roster.online() == [0, 1]
    assert roster.server.context.dims == {"d": 512, "C": 10}


def test_a_wrong_width_names_client_model_and_both_widths() -> None:
    """U01."""
    wide = a_client_info(1, model="my.nets:wide", feature_dim=768)
    roster, _ = a_roster({35: a_client_info(0), 36: wide})
    with pytest.raises(RegistrationError) as caught:
        roster.assemble()
    text = str(caught.value)
    for part in ("client 1", "my.nets:wide", "768", "512", "fedre", "feature-dim"):
        assert part in text
    roster, _ = a_roster({35: a_client_info(0), 36: wide}, method="local")
    roster.assemble()  # needs no common width


def test_a_late_joiner_is_admitted() -> None:
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.answers[40] = a_client_info(7)
    grid.nodes.append(40)
    join(roster)
    assert roster.online() == [0, 1, 7]
    assert roster.server.clients[7].client_id == 7
    assert roster.problems == []
    asked = len(grid.asked)
    join(roster)
    assert len(grid.asked) == asked  # nobody is asked twice


def test_a_client_that_failed_the_roll_call_is_noted_and_the_run_goes_on() -> None:
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.answers[40] = ConfigRecord({"problem": "DataError: no images", "who": "4"})
    grid.nodes.append(40)
    join(roster)
    assert roster.problems == [(None, "client 4: DataError: no images")]


def test_a_restarted_client_replaces_its_old_node() -> None:
    """U54: the same client id under a new node id."""
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.nodes.remove(36)
    assert roster.online() == [0]
    grid.answers[90] = a_client_info(1)
    grid.nodes.append(90)
    join(roster)
    assert roster.messages.nodes == {0: 35, 1: 90}
    assert roster.online() == [0, 1]


def test_a_client_back_before_its_old_node_is_noticed_gone_joins_later() -> None:
    """U54: Flower takes up to a minute to notice; the client must not be lost for the run."""
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.answers[90] = a_client_info(1)
    grid.nodes.append(90)
    join(roster)
    join(roster)
    assert [client for client, _ in roster.problems] == [1]  # complained about once
    assert roster.messages.nodes[1] == 36
    grid.nodes.remove(36)
    join(roster)
    assert roster.messages.nodes[1] == 90
    assert roster.online() == [0, 1]


def test_who_is_away_is_waited_for_and_named() -> None:
    roster, grid = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.assemble()
    grid.nodes.remove(36)
    with pytest.raises(RegistrationError, match=r"^1 of 2 clients after 0\.1 s"):
        roster.wait_online()
    grid.answers[91] = a_client_info(1)
    grid.nodes.append(91)
    assert roster.wait_online() == [0, 1]


def test_the_roster_passes_over_who_is_barred() -> None:
    roster, _ = a_roster({35: a_client_info(0), 36: a_client_info(1), 37: a_client_info(2)})
    roster.assemble()
    roster.barred = {1}
    assert roster.online() == [0, 2]
    roster.barred = {1, 2}
    with pytest.raises(RegistrationError, match=r"1 of 2 clients .*; in quarantine: clients 1, 2$"):
        roster.wait_online()


def test_an_error_answer_at_the_wrong_time_is_noted() -> None:
    roster, _ = a_roster({35: a_client_info(0), 36: a_client_info(1)})
    roster.take(Answer(Sent("query", 99, None), None, "ValueError: late"))
    assert roster.problems == [(None, "node 99: ValueError: late")]


def test_the_name_of_a_key_decides_who_a_client_is() -> None:
    """A device with the key of client 1 that says it is client 0 would get what is client 0's."""
    roster, grid = a_roster(
        {35: a_client_info(0), 58: a_client_info(0), 71: a_client_info(2)}, min_clients=2
    )
    grid.names = {35: "client-0", 58: "client-1", 71: "client-2"}
    roster.assemble()
    assert roster.messages.nodes == {0: 35, 2: 71}
    ((client, reason),) = roster.problems
    assert client is None
    assert reason.startswith("client 1: says that it is client 0, but has the key that was regist")
    assert "client-id=1" in reason


def test_a_client_with_the_key_of_another_stops_a_run_that_wants_everyone() -> None:
    roster, grid = a_roster(
        {35: a_client_info(0), 58: a_client_info(2)}, min_clients=1, on_client_error="stop"
    )
    grid.names = {35: "client-0", 58: "client-1"}
    with pytest.raises(RegistrationError, match=r"^client 1: says that it is client 2, but has"):
        roster.assemble()


def test_a_late_joiner_is_held_to_its_key_too() -> None:
    roster, grid = a_roster({35: a_client_info(0)}, min_clients=1)
    grid.names = {35: "client-0", 58: "client-1", 71: "by hand"}
    roster.assemble()
    grid.nodes += [58, 71]
    grid.answers |= {58: a_client_info(7), 71: a_client_info(1)}
    join(roster)
    assert list(roster.server.clients) == [0]
    reasons = sorted(reason for _, reason in roster.problems)
    assert reasons[0].startswith("client 1: says that it is client 7, but has the key")
    assert reasons[1].startswith("node 71: says that it is client 1, but its key was registered as")
    assert "'by hand'; register it under the name client-1" in reasons[1]


def test_names_that_are_no_clients_bind_nobody() -> None:
    """As in fleets that somebody else set up, and in simulations, where there are none."""
    roster, grid = a_roster({35: a_client_info(0), 58: a_client_info(1)})
    grid.names = {35: "site-a", 58: "client-01"}
    roster.assemble()
    assert roster.messages.nodes == {0: 35, 1: 58}


def test_a_client_that_goes_before_its_key_is_known_is_asked_again() -> None:
    roster, grid = a_roster({35: a_client_info(0)}, min_clients=1)
    roster.assemble()
    grid.nodes.append(58)
    grid.answers[58] = a_client_info(1)
    roster.invite()
    grid.nodes.remove(58)
    for answer in roster.transport.arrived():
        roster.take(answer)
    assert [reason for _, reason in roster.problems] == [
        "node 58: went away before it was known whose key it has"
    ]
    grid.nodes.append(58)
    join(roster)
    assert list(roster.server.clients) == [0, 1]
