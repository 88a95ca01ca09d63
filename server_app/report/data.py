"""Read a run directory for the report.

Everything the report shows comes from the files of one run directory. A file that is absent, or has
only its header, gives an empty table or ``None``: unknown stays unknown and is never turned into a
zero.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from server_app.records.scores import ClientTask

SERVER = "server"
Row = TypeVar("Row")


@dataclass(frozen=True)
class Client:
    """One card of the registration; ``None`` where the card left a field blank.

    Cards from before there were tasks mean classification, measured by accuracy.
    """

    client: int
    model: str
    parameters: int | None
    class_counts: tuple[tuple[int, int], ...]
    train_examples: int | None
    validation_examples: int | None
    test_examples: int | None
    device: str
    task: str = ClientTask.task
    metric: str = ClientTask.metric


class Metric(NamedTuple):
    """One measured value; ``client`` is None for the server, ``examples`` None if not given."""

    round: int
    client: int | None
    phase: str
    metric: str
    value: float
    examples: float | None


class Round(NamedTuple):
    """Wall time and attendance of one round."""

    round: int
    seconds: float | None
    client_compute_s: float | None
    participants: int | None
    failed: int | None


class Traffic(NamedTuple):
    """What one client sent or received in one round for one purpose."""

    round: int
    client: int
    direction: str
    scalars: float
    bytes: float
    purpose: str


class Failure(NamedTuple):
    """A client left out of a round, and why."""

    round: int | None
    client: str
    kind: str
    reason: str


@dataclass(frozen=True)
class RunData:
    """A run directory, parsed."""

    directory: Path
    info: dict[str, Any]
    summary: dict[str, Any] | None
    clients: list[Client]
    metrics: list[Metric]
    rounds: list[Round]
    traffic: list[Traffic]
    failures: list[Failure]

    @property
    def settings(self) -> dict[str, Any]:
        """The flat run-config of ``config.json``; empty if not recorded."""
        return section(self.info, "config")


def section(holder: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the object ``name`` of ``holder``, or an empty one if it is missing or null."""
    found = (holder or {}).get(name)
    return found if isinstance(found, dict) else {}


def read_run(run_dir: Path) -> RunData:
    """Parse every file of ``run_dir`` the report uses; absent files give empty tables.

    Raises
    ------
    ValueError
        A file is malformed; the message names file, line and what to do.
    """
    summary = run_dir / "summary.json"
    return RunData(
        directory=run_dir,
        info=_read_json(run_dir / "config.json"),
        summary=_read_json(summary) if summary.exists() else None,
        clients=sorted(_read(run_dir / "clients.csv", _client), key=lambda row: row.client),
        metrics=_read(run_dir / "metrics.csv", _metric),
        rounds=sorted(_read(run_dir / "rounds.csv", _round), key=lambda row: row.round),
        traffic=_read(run_dir / "traffic.csv", _traffic),
        failures=_read(run_dir / "failures.csv", _failure),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # covers both bad JSON and bad UTF-8
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{path}{line}: not valid JSON ({error}); repair or remove it") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}, line 1: expected a JSON object; repair or remove the file")
    return content


def _read(path: Path, parse: Callable[[dict[str, str]], Row | None]) -> list[Row]:
    """Parse each data row of a CSV file; `parse` returns None for a row with nothing measured."""
    if not path.exists():
        return []
    found: list[Row] = []
    with path.open(newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle, strict=True)
        try:
            for row in _complete(reader):
                if (parsed := parse(row)) is not None:
                    found.append(parsed)
        except (ValueError, KeyError, csv.Error) as error:
            if _cut_off(path) and not handle.read(1):
                return found  # the process was killed, or is still writing, in its last line
            what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{path}, line {max(reader.line_num, 1)}: {what}; "
                "repair or delete that line, then write the report again"
            ) from error
    return found


def _cut_off(path: Path) -> bool:
    return not path.read_bytes().endswith(b"\n")


def _complete(reader: "csv.DictReader[str]") -> Iterator[dict[str, str]]:
    """Refuse rows with too few or too many fields, which DictReader would paper over."""
    width = len(reader.fieldnames or ())
    for row in reader:
        got = sum(value is not None for key, value in row.items() if key is not None)
        got += len(row.get(None, ()))  # surplus fields
        if got != width:
            raise ValueError(f"expected {width} fields, got {got}")
        yield row


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


def _integer(text: str) -> int | None:
    return int(text) if text.strip() else None


def _client(row: dict[str, str]) -> Client:
    labels = [int(label) for label in row["classes"].split()]
    counts = [int(count) for count in row["class_counts"].split()]
    if len(labels) != len(counts):
        raise ValueError(f"{len(labels)} classes but {len(counts)} class_counts")
    return Client(
        client=int(row["client"]),
        model=row["model"],
        parameters=_integer(row["parameters"]),
        class_counts=tuple(zip(labels, counts, strict=True)),
        train_examples=_integer(row["train_examples"]),
        validation_examples=_integer(row["validation_examples"]),
        test_examples=_integer(row["test_examples"]),
        device=row["device"],
        task=row.get("task") or ClientTask.task,
        metric=row.get("metric") or ClientTask.metric,
    )


def _metric(row: dict[str, str]) -> Metric | None:
    value = _number(row["value"])
    if value is None:
        return None
    client = None if row["client"] == SERVER else int(row["client"])
    examples = _number(row["examples"])
    return Metric(int(row["round"]), client, row["phase"], row["metric"], value, examples)


def _round(row: dict[str, str]) -> Round | None:
    if row.get("closing") == "True":
        return None  # the closing evaluation carries the last round's number but is no round
    return Round(
        int(row["round"]),
        _number(row["seconds"]),
        _number(row["client_compute_s"]),
        _integer(row["participants"]),
        _integer(row["failed"]),
    )


def _traffic(row: dict[str, str]) -> Traffic:
    direction = row["direction"]
    if direction not in ("uplink", "downlink"):
        raise ValueError(f"direction {direction!r} is neither 'uplink' nor 'downlink'")
    scalars, size = float(row["scalars"] or "nan"), float(row["bytes"] or "nan")
    return Traffic(int(row["round"]), int(row["client"]), direction, scalars, size, row["purpose"])


def _failure(row: dict[str, str]) -> Failure:
    return Failure(_integer(row["round"]), row["client"], row["kind"], row["reason"])
