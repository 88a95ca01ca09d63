"""The run's records: tidy CSV files, appended after every round and cut back on resume.

Rows are written in an order that depends on the run alone, and metrics.csv holds no times, so two
runs with one seed leave the same metrics.csv.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from server_app.round import RoundResult
from strategies.base.exchange import PHASES

HEADERS: dict[str, tuple[str, ...]] = {
    "metrics.csv": ("round", "client", "phase", "metric", "value", "examples"),
    "traffic.csv": ("round", "client", "direction", "messages", "scalars", "bytes", "purpose"),
    "rounds.csv": (
        "round", "seconds", "client_compute_s", "participants", "failed", "evaluated",
        "accuracy", "validation_accuracy", "workers", "closing",
    ),
    "failures.csv": ("round", "client", "kind", "reason"),
}  # fmt: skip

SERVER_PHASE = "aggregate"
EVALUATION_PHASES = ("pre", "post", "final")


def weighted_mean(pairs: Iterable[tuple[float, int]]) -> float | None:
    """Return the mean of values weighted by examples, or None if there are no examples."""
    pairs = list(pairs)
    total = sum(examples for _, examples in pairs)
    return sum(value * examples for value, examples in pairs) / total if total else None


class Recorder:
    """Writes a run's CSV files and remembers each client's last accuracy.

    Attributes
    ----------
    accuracy : dict of int to float
        Every client's last evaluated accuracy.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.accuracy: dict[int, float] = {}

    def begin(self, keep_rounds: int) -> None:
        """Make the files, or cut them back to `keep_rounds` finished rounds of a resumed run.

        The closing evaluation of an earlier end is dropped: it is made again at the new end.
        """
        for name, header in HEADERS.items():
            path = self.directory / name
            rows = read_rows(path) if path.is_file() else []
            kept = [row for row in rows if int(row["round"]) <= keep_rounds]
            kept = [r for r in kept if r.get("phase") != "final" and r.get("closing") != "True"]
            kept = [r for r in kept if r.get("purpose") != "closing" and r.get("kind") != "closing"]
            self._replace(path, header, kept)
            if name == "metrics.csv":
                self._remember(
                    (int(row["client"]), row["phase"], row["metric"], float(row["value"]))
                    for row in kept
                    if row["client"] != "server"
                )

    def add(self, result: RoundResult, *, closing: bool = False) -> tuple[float | None, int]:
        """Append a round; return its mean accuracy and the number of clients behind it."""
        number = result.server_round
        rows = sorted(
            result.rows, key=lambda pair: (PHASES.index(pair[1].phase), pair[0], pair[1].metric)
        )
        metrics: list[tuple[Any, ...]] = [
            (number, client, row.phase, row.metric, repr(row.value), row.examples)
            for client, row in rows
        ]
        metrics += [
            (number, "server", SERVER_PHASE, name, repr(float(value)), len(result.participants))
            for name, value in sorted(result.server_metrics.items())
        ]
        self._remember((client, row.phase, row.metric, row.value) for client, row in rows)
        evaluated = {client for client, row in rows if _is_accuracy(row.phase, row.metric)}
        means = {
            metric: weighted_mean(
                (row.value, row.examples)
                for _, row in rows
                if row.metric == metric and row.phase in EVALUATION_PHASES
            )
            for metric in ("accuracy", "validation_accuracy")
        }
        failed = sum(f.kind != "skipped" for f in result.failures)
        summary = (
            number, f"{result.seconds:.4f}", f"{result.compute_s:.4f}", len(result.participants),
            failed, len(evaluated), _blank(means["accuracy"]),
            _blank(means["validation_accuracy"]), len(result.workers), closing,
        )  # fmt: skip
        kind = "closing" if closing else None
        self._append("metrics.csv", metrics)
        self._append("rounds.csv", [summary])
        self._append(
            "traffic.csv",
            (
                (number, t.client_id, t.direction, 1, t.scalars, t.num_bytes, kind or t.purpose)
                for t in sorted(result.traffic, key=lambda t: (t.purpose, t.direction, t.client_id))
            ),
        )
        self.add_failures(
            number, [(f.client_id, kind or f.kind, f.reason) for f in result.failures]
        )
        return means["accuracy"], len(evaluated)

    def add_failures(
        self, server_round: int, failures: Iterable[tuple[int | None, str, str]]
    ) -> None:
        """Append clients that could not be used, and why."""
        self._append(
            "failures.csv",
            ((server_round, "" if c is None else c, kind, text) for c, kind, text in failures),
        )

    def _remember(self, rows: Iterable[tuple[int, str, str, float]]) -> None:
        self.accuracy |= {c: v for c, phase, metric, v in rows if _is_accuracy(phase, metric)}

    def _append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        with (self.directory / name).open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    def _replace(self, path: Path, header: Sequence[str], rows: list[dict[str, str]]) -> None:
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, header)
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(path)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV file; a last line that a killed process left unfinished is dropped."""
    # A cut may go through a character, or shorten the last number: only whole lines count.
    text = path.read_bytes().decode("utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole, newline="")))
    return [row for row in rows if None not in row.values() and None not in row]


def _is_accuracy(phase: str, metric: str) -> bool:
    return metric == "accuracy" and phase in EVALUATION_PHASES


def _blank(value: float | None) -> str:
    return "" if value is None else repr(value)
