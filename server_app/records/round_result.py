"""What one round produced: metrics, traffic, failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strategies.base.messages import MetricRow

if TYPE_CHECKING:
    from strategies.base.server import ServerScores

COUNTERS = ("examples_seen", "flops")
"""Metrics of training that count something, so that exchanges of a round add to them."""
REFUSED = "refused payload"
"""How the reason begins where what a client sent was not as declared."""
QUARANTINE_KIND = "quarantine"
"""Kind of a failure that says that a client takes no more part, see `rounds.quarantine`."""


@dataclass(frozen=True)
class Failure:
    """A client that did not contribute to a round, and why."""

    client_id: int | None
    kind: str
    reason: str


@dataclass(frozen=True)
class Traffic:
    """One message's cost: scalars in the paper's convention and bytes of the real records."""

    client_id: int
    direction: str
    scalars: int
    num_bytes: int
    purpose: str


@dataclass
class RoundResult:
    """Everything a round produced."""

    server_round: int
    participants: list[int]
    rows: list[tuple[int, MetricRow]] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    server_metrics: dict[str, float] = field(default_factory=dict)
    compute_s: float = 0.0
    seconds: float = 0.0
    workers: set[str] = field(default_factory=set)
    rounds_trained: dict[int, int] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    server_scores: ServerScores | None = None

    def followed_by(self, later: RoundResult) -> RoundResult:
        """Return this exchange and a later one of the same round as one result."""
        return RoundResult(
            self.server_round,
            self.participants,
            merge_rows([*self.rows, *later.rows]),
            self.traffic + later.traffic,
            self.failures + later.failures,
            self.server_metrics | later.server_metrics,
            self.compute_s + later.compute_s,
            self.seconds + later.seconds,
            self.workers | later.workers,
            later.rounds_trained | self.rounds_trained,
            self.late | later.late,
        )


def merge_rows(rows: Iterable[tuple[int, MetricRow]]) -> list[tuple[int, MetricRow]]:
    """Make one row of all that a client measured under one name in the exchanges of a round.

    Counters (`COUNTERS`) are added up; other values are averaged over the exchanges.
    """
    found: dict[tuple[int, str, str], list[MetricRow]] = {}
    for client, row in rows:
        found.setdefault((client, row.phase, row.metric), []).append(row)
    merged = []
    for (client, phase, metric), same in found.items():
        total = sum(row.value for row in same)
        value = total if metric in COUNTERS else total / len(same)
        merged.append((client, MetricRow(phase, metric, value, same[-1].examples)))
    return merged
