"""Messages: what they carry, what they cost, and metrics as records."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from server_app.rounds.message_factory import MessageFactory
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import (
    CONTROL,
    Control,
    MetricRow,
    count_bytes,
    metrics_record,
)
from strategies.base.method import get_method
from strategies.base.parsing import parse_run_config
from strategies.base.payload import ARRAYS, MANIFEST, PayloadError, unpack
from strategies.base.replies import read_metrics
from tests.unit.test_roster import a_client_info

DIMS = {"d": 2, "C": 10}


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def a_control(number: int = 1, **changes: Any) -> Control:
    return Control(run_name="r", token="t", session="s", round=number, **changes)


def a_head(value: float = 1.0) -> object:
    return get_method("fedre").downlink(
        np.full((10, 2), value, np.float32), np.zeros(10, np.float32)
    )


def test_a_message_carries_control_and_payload_and_nothing_else() -> None:
    factory = MessageFactory("my-run", {3: 77}, ttl=90.0)
    control = a_control(5, evaluate=True, phase="pre")
    message = factory.build("train", 3, control, a_head())
    assert set(message.content) == {ARRAYS, MANIFEST, CONTROL}
    assert dict(message.content[CONTROL]) == {
        "run-name": "r", "token": "t", "session": "s", "round": 5, "exchange": 1, "resumed-at": 0,
        "keep-from": 0, "evaluate": True, "test": True, "phase": "pre", "final": False,
    }  # fmt: skip
    assert Control.from_record(message.content.config_records[CONTROL]) == control
    metadata = message.metadata
    assert (metadata.dst_node_id, metadata.message_type, metadata.group_id) == (77, "train", "5")
    assert metadata.ttl == 90.0
    assert factory.last_scalars == 30
    untested = factory.build("train", 3, a_control(5, test=False), a_head())
    assert untested.content[CONTROL]["test"] is False
    received: Any = unpack(get_method("fedre").downlink, message.content, DIMS)
    assert received.head_weight.tolist() == [[1, 1]] * 10


def test_a_common_downlink_is_packed_once_and_another_is_not() -> None:
    factory = MessageFactory("r", {0: 10, 1: 11}, ttl=1)
    head = a_head()
    first, second = (factory.build("train", k, a_control(), head) for k in (0, 1))
    assert first.content[ARRAYS] is second.content[ARRAYS]
    third = factory.build("train", 0, a_control(2), a_head(2.0))
    assert unpack(get_method("fedre").downlink, third.content, DIMS).head_weight[0, 0] == 2


def test_a_payload_alone_keeps_what_was_received() -> None:
    """Without Python's cyclic collector: a message is freed when it is let go of."""
    factory = MessageFactory("r", {0: 10}, ttl=1)
    content = factory.build("train", 0, a_control(), a_head(3.0)).content
    factory.forget()
    downlink = get_method("fedre").downlink
    gc.disable()
    try:
        watched = weakref.ref(content[ARRAYS])
        payload: Any = unpack(downlink, content, DIMS)
        assert unpack(downlink, content, DIMS).head_weight[0, 0] == 3  # it is left whole
        del content[ARRAYS]
        assert watched() is None
        with pytest.raises(PayloadError, match="head_weight: no array of dtype float32"):
            unpack(downlink, content, DIMS)
        received = weakref.ref(payload.head_weight)
        del payload
        assert received() is None
    finally:
        gc.enable()


def test_the_roll_call_names_the_run_only() -> None:
    message = MessageFactory("r", {}, ttl=5).query(42)
    assert message.metadata.message_type == "query"
    assert message.metadata.dst_node_id == 42
    assert dict(message.content[CONTROL]) == {"run-name": "r", "round": 0}


def test_bytes_are_those_of_all_records_but_control() -> None:
    content = RecordDict(
        {
            ARRAYS: ArrayRecord([np.zeros(100, np.float32)]),
            CONTROL: ConfigRecord({"run-name": "x" * 500}),
            "metrics": MetricRecord({"a": 1.0}),
        }
    )
    assert count_bytes(content) == content[ARRAYS].count_bytes() + content["metrics"].count_bytes()
    content[CONTROL] = ConfigRecord({"run-name": "y"})
    assert 400 < count_bytes(content) < 700


def test_metrics_come_back() -> None:
    rows = [MetricRow("train", "loss", 1.25, 40), MetricRow("final", "validation_accuracy", 0.0, 0)]
    assert read_metrics(metrics_record(rows)) == rows
    assert read_metrics(metrics_record([])) == []
    slashes = [MetricRow("pre", "a/b", 1.0, 1)]
    assert read_metrics(metrics_record(slashes)) == slashes


def test_metrics_of_two_kinds_under_one_name_are_refused() -> None:
    with pytest.raises(PayloadError, match="pre/accuracy"):
        read_metrics({"pre/accuracy": 0.5})


def test_messages_are_made_as_they_are_sent() -> None:
    """A large round is never held whole: one message exists at a time."""
    run = parse_run_config({"method": "local"})
    server = MethodServer(run)
    server.admit(a_client_info(i) for i in range(3))
    server.begin()
    factory = MessageFactory("r", {i: 100 + i for i in range(3)}, ttl=1)
    stream = server.messages(factory, "train", [0, 2], {2}, a_control())
    first = next(stream)
    assert (first.metadata.dst_node_id, first.content[CONTROL]["test"]) == (100, False)
    second = next(stream)
    assert (second.metadata.dst_node_id, second.content[CONTROL]["test"]) == (102, True)
    assert next(stream, None) is None
