"""Says that training diverged where a loss has grown a thousandfold, of a client or the server.

It is a warning: what such a client sends is finite, so it takes part; but no number of it means
anything. A loss that is not finite is an error where it happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from server_app.records.csv_files import iterate_rows
from server_app.records.round_result import Failure, RoundResult
from server_app.records.soundness import DIVERGED_KIND
from server_app.rounds.server_steps import smaller_steps
from strategies.base.kept import GROWTH, loss_growth
from strategies.base.run_config import RunConfig

SERVER_LOSS = "server_loss"
"""What a method calls the loss of its server's own training."""

_NAMED = 5


class DivergenceWatch:
    """Looks at the losses of every round.

    Clients compare their losses with the first one of the run, which is in their private state,
    and report a growth only where it is one. The server's first loss is in metrics.csv.

    Parameters
    ----------
    path : Path
        metrics.csv.
    run : RunConfig
        For the keys that make the server's steps smaller.
    """

    def __init__(self, path: Path, run: RunConfig) -> None:
        self._path = path
        self._run = run
        self._first: float | None = None

    def begin(self) -> None:
        """Look the server's first loss up, where a run is resumed."""
        self._first = next(
            (
                float(row["value"])
                for row in iterate_rows(self._path)
                if (row["client"], row["metric"]) == ("server", SERVER_LOSS)
            ),
            None,
        )

    def look(self, result: RoundResult, classes: int) -> list[Failure]:
        """Return who diverged in a round and how, clients first; None stands for the server.

        `classes` is C, the fewest of a client.
        """
        losses = {c: r.value for c, r in result.rows if (r.phase, r.metric) == ("train", "loss")}
        found = [
            Failure(client, DIVERGED_KIND, _said(losses[client], row.value))
            for client, row in sorted(result.rows, key=lambda pair: pair[0])
            if (row.phase, row.metric) == ("train", GROWTH) and client in losses
        ]
        loss = result.server_metrics.get(SERVER_LOSS)
        if loss is not None:
            self._first = loss if self._first is None else self._first
            growth = loss_growth(loss, self._first, classes)
            if growth is not None:
                reason = _said(loss, growth, "the server's loss", smaller_steps(self._run))
                found.append(Failure(None, DIVERGED_KIND, reason))
        return found


def warning(server_round: int, found: Sequence[Failure]) -> str:
    """Return one line on all who diverged in a round."""
    who = ["the server" if f.client_id is None else f"client {f.client_id}" for f in found]
    named = ", ".join(who[:_NAMED]) + (f" and {len(who) - _NAMED} more" * (len(who) > _NAMED))
    return f"warning: round {server_round}: {named}: {found[0].reason}"


def _said(loss: float, growth: float, what: str = "its loss", remedy: str = "lower lr") -> str:
    return (
        f"training diverged: {what} is {loss:.3g}, {growth:.3g} times the {loss / growth:.3g} of "
        f"the start; {remedy}"
    )
