"""Who takes part in a round, and when a run ends: the one thing that no method decides.

The run-config key `schedule` names a user's own: `module:factory`, where the factory takes the
run's `RunConfig` and returns a `Schedule`. It is looked up where the server runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from models.own_code import OwnCodeError, load_own
from strategies.base.options import ConfigError
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext


@dataclasses.dataclass(frozen=True)
class History:
    """What a run has measured before a round, the same after a resume as without an interruption.

    Attributes
    ----------
    scores : dict of int to float
        The main score that each client measured last: its accuracy or, with another task, what that
        is measured by (`data.tasks.METRIC_OF`), from 0 to 1, or at most 1. It is that of its
        validation examples, so that who takes part and when a run ends is not chosen by what the
        run is judged by; a client without any gives that of its test examples. One that was never
        evaluated is missing. Scores of clients with unlike tasks are not comparable.
    rounds_trained : dict of int to int
        In how many rounds each client has trained; one that has not is missing.
    """

    scores: dict[int, float] = dataclasses.field(default_factory=dict)
    rounds_trained: dict[int, int] = dataclasses.field(default_factory=dict)


class Schedule:
    """A seeded uniform draw in every round, and an end after the last one.

    A subclass overrides what differs. What it returns must follow from its arguments and from
    private generators (`ServerContext.generator`) alone: a resumed run asks again, from the round
    it resumes at on.
    """

    def select(
        self, context: ServerContext, available: Sequence[int], history: History
    ) -> list[int]:
        """Choose the participants of the round `context.server_round`.

        Parameters
        ----------
        context : ServerContext
            With all clients that are known, whether they are there or not.
        available : sequence of int
            Ids of the clients that can train now, ascending.
        history : History
            What was measured before this round.

        Returns
        -------
        list of int
            At least one of `available`. By default a draw of `sample-fraction` of all known
            clients that have training examples (rounded to the nearest, at least one), by id.
        """
        known = sorted(i for i, info in context.clients.items() if info.train_examples > 0)
        count = max(1, math.floor(context.run.sample_fraction * len(known) + 0.5))
        order = context.numpy_generator("sample").permutation(known)
        # Ranking everyone known, then passing over who is away, keeps the draw stable.
        present = set(available)
        return sorted([int(i) for i in order if int(i) in present][:count])

    def should_stop(self, context: ServerContext, history: History) -> str | None:
        """Return a reason to end the run after the round `context.server_round`, or None.

        `history` holds what that round measured, too.
        """
        return None


def load_schedule(run: RunConfig) -> Schedule:
    """Return the schedule that the run-config names, by default the uniform draw.

    Raises
    ------
    ConfigError
        If the module cannot be imported, or what it names gives no `Schedule`.
    """
    if not run.schedule:
        return Schedule()
    try:
        factory: Any = load_own(run.schedule)
        schedule = factory(run)
    except OwnCodeError as error:
        raise ConfigError(f"schedule = {run.schedule!r}: {error}") from error
    except Exception as error:  # the user's module runs here and may raise anything
        raise ConfigError(
            f"schedule = {run.schedule!r}: no schedule could be made of it "
            f"({type(error).__name__}: {error}); expected module:factory, where "
            "`factory(run)` returns a Schedule"
        ) from error
    if not isinstance(schedule, Schedule):
        raise ConfigError(
            f"schedule = {run.schedule!r}: what it gave is of type {type(schedule).__name__}, "
            "expected a strategies.base.schedule.Schedule"
        )
    return schedule
