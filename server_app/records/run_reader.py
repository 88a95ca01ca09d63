"""Reads a run directory back: one reader for summary, report, comparisons and costs.

Everything comes from the files of one run directory. A file that is absent, or has only its header,
gives an empty table, and a blank cell gives NaN or None: unknown stays unknown and is never turned
into a zero. This module loads pandas, so nothing on a client's way and nothing at a server's start
imports it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from server_app.records.client_tasks import ClientTask, client_task
from server_app.records.csv_tables import (
    Column,
    DamagedRecordError,
    damaged,
    integer,
    number,
    read_fields,
    read_table,
)
from server_app.records.round_result import QUARANTINE_KIND

SERVER = "server"


@dataclass(frozen=True)
class Client:
    """One row of clients.csv; None where a field is blank or an older version did not write it.

    Attributes
    ----------
    classes : tuple of int
        Labels of the classes it holds.
    class_counts : tuple of (int, int)
        Label and training examples of each class; empty where the client did not tell.
    task_text : str
        Its task with data set and classes: "multilabel@scenes".
    """

    client: int
    model: str
    parameters: int | None
    classes: tuple[int, ...]
    class_counts: tuple[tuple[int, int], ...]
    train_examples: int | None
    validation_examples: int | None
    test_examples: int | None
    device: str
    task_text: str
    task: ClientTask


@dataclass(frozen=True, eq=False)
class RunRecords:
    """A run directory, parsed.

    Attributes
    ----------
    info, summary : dict
        The content of config.json, and of summary.json, None while there is none.
    clients : list of Client
        By id.
    metrics : DataFrame
        What clients measured: round, client, phase, metric, value, examples. A row without a finite
        value is left out, and one without its number of examples counts as one example.
    server_metrics : DataFrame
        What the server measured: round, phase, metric, value, examples.
    rounds, closing : DataFrame
        round, seconds, client_compute_s, participants, failed, workers: the rounds, and apart from
        them the closing evaluation, which carries the last round's number but is no round.
    traffic : DataFrame
        round, client, direction, scalars, bytes, purpose.
    failures : DataFrame
        round, client (as text), kind, reason.
    """

    directory: Path
    info: dict[str, Any]
    summary: dict[str, Any] | None
    clients: list[Client]
    metrics: pd.DataFrame
    server_metrics: pd.DataFrame
    rounds: pd.DataFrame
    closing: pd.DataFrame
    traffic: pd.DataFrame
    failures: pd.DataFrame

    @property
    def settings(self) -> dict[str, Any]:
        """The flat run-config of config.json; empty if not recorded."""
        return section(self.info, "config")

    @cached_property
    def tasks(self) -> dict[int, ClientTask]:
        """The task of every client by id; one without a row has that of a run without tasks."""
        known = {card.client: card.task for card in self.clients}
        measured = dict.fromkeys(map(int, self.metrics["client"].unique()), ClientTask())
        return dict(sorted((measured | known).items()))

    @property
    def clients_failed(self) -> int:
        """How often a client was left out; those without anything to do are not counted."""
        return int((self.failures["kind"] != "skipped").sum())

    @property
    def quarantined(self) -> list[int]:
        """Clients that were refused too often to take part until the end, by id."""
        own = self.failures[self.failures["kind"] == QUARANTINE_KIND]
        return sorted({int(client) for client in own["client"]})

    def of_task(self, task: str) -> RunRecords:
        """Return the run with one task's clients and what they measured alone.

        Rounds, traffic and failures stay those of all clients.
        """
        own = {client for client, known in self.tasks.items() if known.task == task}
        return dataclasses.replace(
            self,
            clients=[card for card in self.clients if card.client in own],
            metrics=self.metrics[self.metrics["client"].isin(own)],
            server_metrics=self.server_metrics.iloc[:0],
        )


def section(holder: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the object `name` of `holder`, or an empty one if it is missing or null."""
    found = (holder or {}).get(name)
    return found if isinstance(found, dict) else {}


def read_run(directory: Path) -> RunRecords:
    """Parse the files of a run directory.

    Raises
    ------
    DamagedRecordError
        A file is malformed.
    """
    summary = directory / "summary.json"
    metrics = read_table(directory / "metrics.csv", METRICS)
    metrics = metrics[metrics["value"].abs() < float("inf")]
    of_server = metrics["client"] == SERVER
    own = metrics[~of_server]
    rounds = read_table(directory / "rounds.csv", ROUNDS).sort_values("round", kind="stable")
    return RunRecords(
        directory=directory,
        info=_read_json(directory / "config.json"),
        summary=_read_json(summary) if summary.exists() else None,
        clients=_read_clients(directory / "clients.csv"),
        metrics=own.assign(client=own["client"].astype(int), examples=own["examples"].fillna(1.0)),
        server_metrics=metrics[of_server].drop(columns="client"),
        rounds=rounds[~rounds["closing"]].drop(columns="closing"),
        closing=rounds[rounds["closing"]].drop(columns="closing"),
        traffic=read_table(directory / "traffic.csv", TRAFFIC),
        failures=read_table(directory / "failures.csv", FAILURES),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    remedy = "repair or remove it"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # covers both bad JSON and bad UTF-8
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DamagedRecordError(f"{path}{line}", f"not valid JSON ({error})", remedy) from error
    if not isinstance(content, dict):
        raise DamagedRecordError(f"{path}, line 1", "expected a JSON object", remedy)
    return content


def _client_id(text: str) -> int | str:
    return text if text == SERVER else int(text)


def _direction(text: str) -> str:
    if text not in ("uplink", "downlink"):
        raise ValueError(f"direction {text!r} is neither 'uplink' nor 'downlink'")
    return text


_TEXT, _WHOLE = Column(str, "object"), Column(int, "int64")
_AMOUNT = Column(number, "float64")
METRICS = {
    "value": _AMOUNT,
    "round": _WHOLE,
    "client": Column(_client_id, "object"),
    "phase": _TEXT,
    "metric": _TEXT,
    "examples": _AMOUNT,
}
ROUNDS = {
    "round": _WHOLE,
    **dict.fromkeys(("seconds", "client_compute_s", "participants", "failed"), _AMOUNT),
    # Runs of older versions have neither.
    "workers": Column(number, "float64", missing=""),
    "closing": Column(lambda text: text == "True", "bool", missing=""),
}
TRAFFIC = {
    "round": _WHOLE,
    "client": _WHOLE,
    "direction": Column(_direction, "object"),
    "scalars": _AMOUNT,
    "bytes": _AMOUNT,
    "purpose": _TEXT,
}
FAILURES = {
    "round": Column(integer, "object"),
    "client": _TEXT,
    "kind": _TEXT,
    "reason": _TEXT,
}


def _read_clients(path: Path) -> list[Client]:
    lines, rows = read_fields(path)
    found = []
    for line, row in zip(lines[1:], rows[1:], strict=True):
        try:
            found.append(_client(dict(zip(rows[0], row, strict=True))))
        except KeyError as error:
            raise damaged(path, line, f"column {error} is missing") from error
        except ValueError as error:
            raise damaged(path, line, str(error)) from error
    return sorted(found, key=lambda card: card.client)


def _client(row: dict[str, str]) -> Client:
    labels = [int(label) for label in row.get("classes", "").split()]
    counts = [int(count) for count in row.get("class_counts", "").split()]
    if counts and len(labels) != len(counts):
        raise ValueError(f"{len(labels)} classes but {len(counts)} class_counts")
    task = client_task(row)
    return Client(
        client=int(row["client"]),
        model=row["model"],
        parameters=integer(row.get("parameters", "")),
        classes=tuple(labels),
        class_counts=tuple(zip(labels, counts, strict=True)) if counts else (),
        train_examples=integer(row.get("train_examples", "")),
        validation_examples=integer(row.get("validation_examples", "")),
        test_examples=integer(row.get("test_examples", "")),
        device=row.get("device", ""),
        task_text=row.get("task") or task.task,
        task=task,
    )
