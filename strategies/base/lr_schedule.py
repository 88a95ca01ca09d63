"""The learning rate of local training by round: run-config keys `lr-schedule` and its kin.

With R = `num-rounds`, W = `warmup-rounds` and the round t counted from 1, `lr` is multiplied by

    t / (W + 1)                              for t <= W; then, with s = t - W,
    1                                        constant
    (1 + cos(pi (s - 1) / (R - W))) / 2      cosine (SGDR, arXiv 1608.03983, Eq. 5)
    decay ^ floor((s - 1) / lr-step-rounds)  step
    decay ^ (s - 1)                          exponential

so that the first round after the warm-up has the whole rate. `lr-decay = "auto"` is 0.1 for step
and 0.99 for exponential. Rates of servers and of public steps have keys of their own and stay as
they are.
"""

from __future__ import annotations

import dataclasses
import math

from strategies.base.options import AUTO, ConfigError

SCHEDULES = ("constant", "cosine", "step", "exponential")

_USUAL_DECAY = {"step": 0.1, "exponential": 0.99}


@dataclasses.dataclass(frozen=True)
class LrSchedule:
    """What the run-config says of the learning rate over rounds.

    Attributes
    ----------
    kind : str
        One of `SCHEDULES`.
    num_rounds, warmup_rounds, step_rounds : int
        R, W, and the rounds between two steps.
    decay : float or "auto"
        Of the kinds step and exponential.

    Raises
    ------
    ConfigError
        If the warm-up takes all rounds, or a decay is given that the kind does not use.
    """

    kind: str
    num_rounds: int
    warmup_rounds: int
    step_rounds: int
    decay: float | str = AUTO

    def __post_init__(self) -> None:
        if self.warmup_rounds >= self.num_rounds:
            raise ConfigError(
                f"warmup-rounds = {self.warmup_rounds}: expected less than num-rounds = "
                f"{self.num_rounds}, or no round would have the whole learning rate"
            )
        if self.decay != AUTO and self.kind not in _USUAL_DECAY:
            raise ConfigError(
                f'lr-decay = {self.decay!r}: expected "auto" with lr-schedule = {self.kind!r}, '
                "which has no decay; set lr-schedule to step or exponential"
            )

    @property
    def varies(self) -> bool:
        """Whether any two rounds may differ."""
        return self.kind != "constant" or self.warmup_rounds > 0

    def share(self, server_round: int) -> float:
        """Return what `lr` is multiplied with in a round, counted from 1."""
        warmup = self.warmup_rounds
        if server_round <= warmup:
            return server_round / (warmup + 1)
        done = server_round - warmup - 1
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * done / (self.num_rounds - warmup))) / 2
        usual = _USUAL_DECAY.get(self.kind, 1.0)
        decay = usual if isinstance(self.decay, str) else self.decay
        return float(decay ** (done // self.step_rounds if self.kind == "step" else done))
