"""Check of a client whose training comes to NaN: it is left out of the round and named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from client_app.app import make_client_app
from deploy.contract.runs import TINY, Candidate, expect
from strategies.base.client import ClientContext
from strategies.base.method import Method
from strategies.base.state import modules_of

SICK = 1
"""The client that trains with weights that are NaN."""
SETTINGS: dict[str, Any] = {**TINY, "num_rounds": 1, "models": "cnn4, cnn4, cnn5"}
WORDS = ("nan", "not finite", "infinite", "diverged")
"""One of which a reason holds."""


def nan_is_named(tested: Candidate, directory: Path) -> None:
    """Let a client train on from NaN: it is left out of the round, the others go on."""
    app = make_client_app(_with_a_sick_client(tested.method))
    run = tested.run(directory, 3, app=app, **SETTINGS)
    reasons: dict[int, str] = {}
    for row in run.rows("failures"):
        reasons.setdefault(int(row["client"]), row["reason"])
    expect(
        SICK in reasons,
        f"client {SICK} trained with weights that are NaN, and its answer was accepted; let values "
        "that are not finite stand, or raise an error, but do not replace them (nan_to_num)",
    )
    reason = reasons.pop(SICK)
    named = any(word in reason.lower() for word in WORDS)
    expect(named, f"client {SICK} trained with weights that are NaN; the reason given is: {reason}")
    expect(not reasons, f"the NaN of client {SICK} made others fail: {reasons}")


def _with_a_sick_client(method: Method) -> Method:
    """Return the method with a client half whose client `SICK` trains with weights of NaN."""
    half: Any = method.client

    class Sick(half):  # type: ignore[misc]
        def train(
            self, context: ClientContext, state: Any, downlink: Any
        ) -> tuple[Any, dict[str, float]]:
            if context.client_id == SICK:
                with torch.no_grad():
                    for module in modules_of(state):
                        for parameter in module.parameters():
                            parameter.fill_(torch.nan)
            trained: tuple[Any, dict[str, float]] = super().train(context, state, downlink)
            return trained

    return dataclasses.replace(method, client=Sick)
