"""Scores the server's own model in the rounds that evaluate, where a method has one."""

from __future__ import annotations

import time

from server_app.console import say
from server_app.records.round_result import RoundResult
from server_app.rounds.method_server import MethodServer
from strategies.base.server import NotScoredError


class ServerScoring:
    """Asks the method's server half for its model's score.

    Parameters
    ----------
    server : MethodServer
        Of the run.

    Attributes
    ----------
    on : bool
        Whether there is a score, from `begin` on.
    """

    def __init__(self, server: MethodServer) -> None:
        self.server = server
        self.on = False

    def begin(self) -> None:
        """Load what the score needs, and say on what it will be or why there is none."""
        metric = self.server.method.server_score
        if not metric:
            return
        try:
            about = self.server.half.score_basis(self.server.context)
        except NotScoredError as error:
            say(f"warning: the server's own model gets no score: {error}")
            return
        self.on = True
        say(f"the server's own model is scored by {metric} on {about}")

    def add(self, outcome: RoundResult) -> None:
        """Add the score after a round to what it produced, and its seconds to the round's."""
        if not self.on:
            return
        started = time.perf_counter()
        outcome.server_scores = self.server.half.score(self.server.context, self.server.state)
        outcome.seconds += time.perf_counter() - started
