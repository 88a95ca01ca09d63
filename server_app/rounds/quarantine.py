"""Devices whose answers are refused again and again take part no more in a run.

Every refusal costs a round's message and answer, and a device that sends what is refused is broken
or hostile. Who was refused in three of its rounds in a row is in quarantine until the run ends,
after a resume, too: failures.csv and traffic.csv have all that is needed to know it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from server_app.records.csv_files import iterate_rows
from server_app.records.round_result import QUARANTINE_KIND, REFUSED, Failure, RoundResult

MOST_REFUSED = 3


class Quarantine:
    """Counts refusals by client.

    A round in which anything of a client was refused counts, one in which all was accepted sets
    its count to 0, and one in which it did not answer, or failed by itself, leaves it.

    Parameters
    ----------
    directory : Path
        Of the run, with its records.

    Attributes
    ----------
    clients : set of int
        Who is in quarantine; always the same set.
    """

    def __init__(self, directory: Path) -> None:
        self.clients: set[int] = set()
        self._directory = directory
        self._in_a_row: dict[int, int] = {}

    def begin(self) -> None:
        """Count again from the records, where a run is resumed."""
        refused: dict[int, set[int]] = {}
        accepted: dict[int, set[int]] = {}
        for row in iterate_rows(self._directory / "failures.csv"):
            if row["kind"] == QUARANTINE_KIND:
                self.clients.add(int(row["client"]))
            elif row["client"] and row["reason"].startswith(REFUSED):
                refused.setdefault(int(row["round"]), set()).add(int(row["client"]))
        for row in iterate_rows(self._directory / "traffic.csv"):
            if row["direction"] == "uplink":
                accepted.setdefault(int(row["round"]), set()).add(int(row["client"]))
        for number in sorted({*refused, *accepted}):
            self._count(refused.get(number, ()), accepted.get(number, ()))

    def look(self, result: RoundResult) -> list[Failure]:
        """Return who is in quarantine from this round on, by id."""
        refused = {
            failure.client_id
            for failure in result.failures
            if failure.client_id is not None and failure.reason.startswith(REFUSED)
        }
        self._count(refused, {t.client_id for t in result.traffic if t.direction == "uplink"})
        found = sorted(
            client for client in refused - self.clients if self._in_a_row[client] >= MOST_REFUSED
        )
        self.clients.update(found)
        reason = (
            f"its answers were refused {MOST_REFUSED} times in a row; it takes no more part in "
            "this run"
        )
        return [Failure(client, QUARANTINE_KIND, reason) for client in found]

    def _count(self, refused: Iterable[int], accepted: Iterable[int]) -> None:
        refused = set(refused)
        for client in refused:
            self._in_a_row[client] = self._in_a_row.get(client, 0) + 1
        for client in set(accepted) - refused:
            self._in_a_row.pop(client, None)
