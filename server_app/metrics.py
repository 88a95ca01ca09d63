"""What a run counts while it runs, for Prometheus: `metrics-port`, with the extra `metrics`.

The ServerApp serves it for as long as the run lasts, on this machine alone unless `metrics-host`
says otherwise. Nothing here ever ends a run or waits for anything: where it cannot be served, one
line says why. No text from a device becomes a label.
"""

from __future__ import annotations

import time
from typing import Any

from server_app.console import say
from server_app.records.round_result import REFUSED, RoundResult
from strategies.base.run_config import RunConfig


class Meter:
    """Counts nothing; `PrometheusMeter` does."""

    def online(self, clients: int) -> None:
        """Note how many clients are there for the round that begins."""

    def left_out(self, clients: int) -> None:
        """Note how many nodes could not join, or not any more."""

    def add(self, outcome: RoundResult, *, closing: bool = False) -> None:
        """Count a round, or with `closing` the evaluation after the last one."""

    def close(self) -> None:
        """End serving."""


class PrometheusMeter(Meter):
    """Counts a run in a registry of its own and serves it over HTTP.

    Parameters
    ----------
    run : RunConfig
        Says where to listen, and names method and data set.
    name : str
        Of the run; a label of `wildflower_run_info`.

    Raises
    ------
    ImportError
        Without prometheus-client.
    OSError, UnicodeError
        If the port or the host cannot be listened on.
    """

    def __init__(self, run: RunConfig, name: str) -> None:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()

        def made(kind: Any, key: str, text: str, *labels: str) -> Any:
            return kind(f"wildflower_{key}", text, labels, registry=registry)

        counter, gauge = prometheus.Counter, prometheus.Gauge
        info = made(prometheus.Info, "run", "The run that is going on")
        info.info({"run": name, "method": run.method, "dataset": run.dataset})
        made(gauge, "rounds_planned", "Rounds of the run").set(run.num_rounds)
        self._round = made(gauge, "round", "Number of the last finished round")
        self._ended = made(gauge, "round_end_timestamp_seconds", "When it finished; 0 before")
        self._rounds = made(counter, "rounds", "Rounds finished since this start of the run")
        self._seconds = made(counter, "round_seconds", "Wall seconds of those rounds")
        self._compute = made(counter, "compute_seconds", "Seconds that clients worked for them")
        self._online = made(gauge, "clients_online", "Clients there when the round began")
        self._trained = made(gauge, "clients_trained", "Clients that trained in the last round")
        self._refused = made(counter, "refused", "Payloads that were not as declared")
        self._failed = made(counter, "failures", "Clients missing from a round, by kind", "kind")
        self._left_out = made(counter, "left_out", "Nodes that could not join the run")
        self._bytes = made(counter, "bytes", "Of the records that crossed", "direction", "purpose")
        self._server, _ = prometheus.start_http_server(run.metrics_port, run.metrics_host, registry)

    def online(self, clients: int) -> None:
        """Note how many clients are there."""
        self._online.set(clients)

    def left_out(self, clients: int) -> None:
        """Count nodes that could not join."""
        self._left_out.inc(clients)

    def add(self, outcome: RoundResult, *, closing: bool = False) -> None:
        """Count a round."""
        for t in outcome.traffic:
            self._bytes.labels(t.direction, t.purpose).inc(t.num_bytes)
        for failure in outcome.failures:
            self._failed.labels(failure.kind).inc()
            self._refused.inc(failure.reason.startswith(REFUSED))
        self._compute.inc(outcome.compute_s)
        if closing:
            return
        self._rounds.inc()
        self._seconds.inc(outcome.seconds)
        self._round.set(outcome.server_round)
        self._ended.set(time.time())
        self._trained.set(len({client for client, row in outcome.rows if row.phase == "train"}))

    def close(self) -> None:
        """End serving."""
        self._server.shutdown()
        self._server.server_close()


def open_meter(run: RunConfig, name: str) -> Meter:
    """Return what counts a run, and say where it is served or why it is not."""
    if not run.metrics_port:
        return Meter()
    where = f"{run.metrics_host}:{run.metrics_port}"
    try:
        meter = PrometheusMeter(run, name)
    except ImportError:
        say(
            f"warning: no metrics at {where}: prometheus-client is not installed beside the "
            "ServerApp; `pip install 'wildflower[metrics]'` installs it"
        )
    except (OSError, UnicodeError) as error:  # UnicodeError: of a name that is none
        say(
            f"warning: no metrics at {where} (metrics-host, metrics-port): {error}; the "
            "run goes on without"
        )
    else:
        say(f"metrics: http://{where}/metrics while the run lasts")
        return meter
    return Meter()
