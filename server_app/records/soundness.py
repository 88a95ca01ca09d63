"""Which rounds ended soundly, and so which checkpoints a resume may go on from.

A state that one poisoned update spoilt is finite, and is written as a checkpoint like any other. It
shows in the next round, whose training diverges for most clients.
"""

from __future__ import annotations

from pathlib import Path

from server_app.records.csv_files import iterate_rows

DIVERGED_KIND = "diverged"
"""The kind in failures.csv of whose training diverged; the server's own row has no client."""
DIVERGED_ERROR = "TrainingDivergedError"
"""How the reason begins where a client's training came to NaN or infinity."""


def unsound_rounds(directory: Path) -> set[int]:
    """Return the rounds of a run in which training diverged, for the server or for most clients.

    "Most" is half of the participants or more: what a client does to itself alone is no sign of a
    bad start. Rounds that ended the run are among them.
    """
    diverged: dict[int, set[str]] = {}
    failed: dict[int, set[str]] = {}
    for row in iterate_rows(directory / "failures.csv"):
        if not row["round"].strip():
            continue
        number = int(row["round"])
        if row["kind"] == "train":
            failed.setdefault(number, set()).add(row["client"])
        if row["kind"] == DIVERGED_KIND or (
            row["kind"] == "train" and row["reason"].startswith(DIVERGED_ERROR)
        ):
            diverged.setdefault(number, set()).add(row["client"])
    took_part = {
        int(row["round"]): int(row["participants"])
        for row in iterate_rows(directory / "rounds.csv")
        if row.get("closing") != "True"
    }
    return {
        number
        for number, clients in diverged.items()
        # A round that ended the run is not in rounds.csv: all its participants failed.
        if "" in clients or 2 * len(clients) >= took_part.get(number, len(failed.get(number, ())))
    }


def is_good(server_round: int, unsound: set[int]) -> bool:
    """Return whether nothing speaks against going on from the state that a round left.

    Its own training has to have ended soundly, and that of the round after it, if there was one.
    """
    return not {server_round, server_round + 1} & unsound
