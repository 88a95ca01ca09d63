"""Says once that a server's own training raises its loss: its steps are too large.

Nothing diverges by that, and accuracy may go up and down with it: a best round hides it. What makes
them smaller, `smaller_steps` says, here and where a server diverges.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from server_app.records.csv_files import iterate_rows
from server_app.records.round_result import RoundResult
from strategies.base.run_config import RunConfig
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE

ROUNDS, RAISED = 5, 3
"""Of so many rounds in which the server trained, so many in which it raised its loss."""


def smaller_steps(run: RunConfig) -> str:
    """Return which keys of the running method to change so that its server makes smaller steps.

    Named are its own `server-lr` and `reduction` where it has them, and the clients' `lr`.
    """
    name, options = run.chosen_method.name, run.method_config
    rates = f"{name}.server-lr or lr" if hasattr(options, "server_lr") else "lr"
    unbounded = getattr(options, "reduction", "stable") != "stable"
    return f"lower {rates}" + f", or set {name}.reduction='stable'" * unbounded


class ServerStepWatch:
    """Compares the server's loss before and after its training of every round.

    Parameters
    ----------
    path : Path
        metrics.csv; a resumed run has seen the rounds in it, so that it says nothing twice.
    run : RunConfig
        For the running method's name and keys.
    """

    def __init__(self, path: Path, run: RunConfig) -> None:
        self._path = path
        self._run = run
        self._raised: deque[bool] = deque(maxlen=ROUNDS)
        self._said = False

    def begin(self) -> None:
        """Look at the rounds that a resumed run has finished."""
        losses: dict[int, dict[str, float]] = {}
        for row in iterate_rows(self._path):
            if row["client"] == "server" and row["metric"] in (LOSS_BEFORE, LOSS_AFTER):
                losses.setdefault(int(row["round"]), {})[row["metric"]] = float(row["value"])
        for number in sorted(losses):
            self._look(number, losses[number])

    def look(self, result: RoundResult) -> str | None:
        """Return a warning the first time that there is reason for one."""
        return self._look(result.server_round, result.server_metrics)

    def _look(self, server_round: int, metrics: dict[str, float]) -> str | None:
        before, after = metrics.get(LOSS_BEFORE), metrics.get(LOSS_AFTER)
        if before is None or after is None:
            return None
        self._raised.append(after > before)
        if self._said or sum(self._raised) < RAISED:
            return None
        self._said = True
        return (
            f"warning: round {server_round}: {self._run.method}: the server's training raised its "
            f"own loss in {sum(self._raised)} of its last {len(self._raised)} rounds, here from "
            f"{before:.3g} to {after:.3g}; its steps are too large; {smaller_steps(self._run)}"
        )
