"""What a run counts for Prometheus, and its lines as JSON."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from client_app.app import app as client_app
from deploy.flower.processes import free_port
from server_app.app import app
from server_app.log import logging_as, say
from server_app.metrics import Meter, PrometheusMeter, open_meter
from server_app.records.round_result import REFUSED, Failure, RoundResult, Traffic
from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import MetricRow
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.run_config import RunConfig

pytest.importorskip("prometheus_client")


def a_run(port: int, **keys: Any) -> RunConfig:
    return parse_run_config({"metrics-port": port, "num-rounds": 3, **keys})


def a_round() -> RoundResult:
    outcome = RoundResult(2, [0, 1], seconds=4.0, compute_s=6.0)
    outcome.rows = [(0, MetricRow("train", "loss", 1.0, 5)), (0, MetricRow("pre", "loss", 1.0, 5))]
    outcome.traffic = [Traffic(0, "uplink", 3, 40, "train"), Traffic(1, "uplink", 3, 2, "train")]
    outcome.failures = [
        Failure(1, "train", f"{REFUSED}: rep: 1 of 3 values are NaN"),
        Failure(None, "train", "\x1b[31mgone\n"),
    ]
    return outcome


@pytest.fixture
def meter() -> Iterator[tuple[PrometheusMeter, int]]:
    port = free_port()
    made = open_meter(a_run(port), "a-run")
    assert isinstance(made, PrometheusMeter)
    yield made, port
    made.close()


def scraped(port: int) -> dict[str, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_a_round_is_counted_and_served(meter: tuple[PrometheusMeter, int]) -> None:
    made, port = meter
    made.online(7)
    made.left_out(1)
    made.add(a_round())
    made.add(RoundResult(2, [], traffic=[Traffic(0, "downlink", 0, 9, "evaluate")]), closing=True)
    found = scraped(port)
    assert found['wildflower_run_info{dataset="digits",method="fedre",run="a-run"}'] == "1.0"
    expected = {
        "rounds_planned": 3, "round": 2, "rounds_total": 1, "round_seconds_total": 4,
        "compute_seconds_total": 6, "clients_online": 7, "clients_trained": 1, "refused_total": 1,
        'failures_total{kind="train"}': 2, "left_out_total": 1,
        'bytes_total{direction="uplink",purpose="train"}': 42,
        'bytes_total{direction="downlink",purpose="evaluate"}': 9,
    }  # fmt: skip
    assert {key: float(found[f"wildflower_{key}"]) for key in expected} == expected
    assert float(found["wildflower_round_end_timestamp_seconds"]) > 1.7e9
    assert not [key for key in found if "gone" in key]


def test_nothing_listens_after_the_run_or_by_default(
    meter: tuple[PrometheusMeter, int], capsys: pytest.CaptureFixture[str]
) -> None:
    made, port = meter
    made.close()
    with pytest.raises(urllib.error.URLError):
        scraped(port)
    capsys.readouterr()
    assert type(open_meter(a_run(0), "a-run")) is Meter
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid", "a..b"])
def test_a_port_that_cannot_be_had_is_said_and_ends_nothing(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        made = open_meter(a_run(port, **{"metrics-host": host}), "a-run")
    text = capsys.readouterr().out
    assert text.startswith(f"warning: no metrics at {host}:{port} (metrics-host, metrics-port): ")
    made.online(1)
    made.add(a_round())
    made.close()


def test_without_the_extra_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    open_meter(a_run(9464), "a-run").close()
    text = capsys.readouterr().out
    assert "pip install 'wildflower[metrics]'" in text
    assert text.count("\n") == 1


def test_every_line_is_a_json_object_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as("json"):
        say()
        say("warning: a\nb \x1b[31m", round=3)
    say("as ever")
    first, second, last = capsys.readouterr().out.splitlines()
    assert last == "as ever"
    assert (
        json.loads(first).items() >= {"level": "warning", "text": "warning: a", "round": 3}.items()
    )
    assert json.loads(second)["level"] == "info"
    assert second.isprintable()


def test_a_run_that_cannot_start_says_so_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"log-format": "json", "lr": -1.0}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with pytest.raises(ConfigError):
        app(grid=InProcessGrid(client_app, 1, config), context=context)
    line = json.loads(capsys.readouterr().out)
    assert line["level"] == "warning"
    assert "lr = -1" in line["text"]
