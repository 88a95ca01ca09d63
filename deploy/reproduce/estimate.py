"""How long a preset takes, from steps that were measured: here, or on a machine that is named."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from deploy.compare.plan import Plan
from deploy.reproduce.loads import Step, steps_a_round

RECORDED = Path(__file__).parent / "recorded_steps.json"
"""Seconds of steps by their texts, and the machine that took them."""

WIDTH = 512
"""d of the models that are timed; it hardly changes a step."""

WHAT = "steps of local training alone, one client after another"
"""What an estimate counts."""


def measured_step(step: Step, device: torch.device) -> float:
    """Return the seconds of one training step, the second of two."""
    model = step.build(WIDTH).to(device).train()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    examples = step.inputs(device)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        optimiser.zero_grad()
        model(examples).square().mean().backward()
        optimiser.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    return seconds


def measure(steps: Iterable[Step], gpu: bool = False) -> dict[str, float]:
    """Return the seconds of every distinct step on this machine, by its text."""
    device = torch.device("cuda" if gpu and torch.cuda.is_available() else "cpu")
    return {str(step): measured_step(step, device) for step in dict.fromkeys(steps)}


def distinct_steps(plan: Plan) -> list[Step]:
    """Return the distinct steps of a plan's runs."""
    found: dict[Step, None] = {}
    for run in plan.runs:
        found |= dict.fromkeys(steps_a_round(run, plan.clients))
    return list(found)


def seconds_of(plan: Plan, measured: Mapping[str, float]) -> float | None:
    """Return the seconds of all runs of a plan; None where a step was not measured."""
    total = 0.0
    for run in plan.runs:
        for step, count in steps_a_round(run, plan.clients).items():
            if str(step) not in measured:
                return None
            total += run.run.num_rounds * count * measured[str(step)]
    return total


@functools.cache
def recorded() -> tuple[str, dict[str, float]]:
    """Return the machine on which steps were recorded, and their seconds."""
    content = json.loads(RECORDED.read_text(encoding="utf-8"))
    return content["machine"], content["seconds"]


_UNITS: tuple[tuple[float, str], ...] = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def in_words(seconds: float | None) -> str:
    """Write a time with two digits, in the largest unit of which there is one."""
    if seconds is None:
        return "not measured"
    write: Callable[[float], str] = lambda value: f"{float(f'{value:.2g}'):g}"  # noqa: E731
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{write(seconds / size)} {unit}"
    return f"{write(seconds)} s"
