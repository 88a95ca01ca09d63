"""Evaluation of a client's own model on its own examples."""

from __future__ import annotations

from typing import Any

import torch

from client_app.training import EVALUATION_BATCH, device_batches, precision
from data import Split
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.exchange import MetricRow
from strategies.base.state import modules_of


@torch.no_grad()
def evaluate_client(
    context: ClientContext,
    half: ClientHalf[Any, Any, Any],
    state: Any,
    downlink: Any,
    phase: str,
    *,
    test: bool = True,
) -> list[MetricRow]:
    """Measure every named prediction of the method on the test and the validation split.

    With `test` false, another client measures the test split for this one: only the validation
    split is measured.

    An empty split gives no row: "not evaluated" is the absence of a number, not a zero. All
    modules of the state are put in evaluation mode.
    """
    for module in modules_of(state):
        module.eval()
    rows = []
    splits = [("validation_", context.data.validation)]
    if test:
        splits.insert(0, ("", context.data.test))
    for prefix, split in splits:
        correct = _count_correct(context, half, state, downlink, split)
        rows += [
            MetricRow(phase, prefix + name, hits / len(split), len(split))
            for name, hits in correct.items()
        ]
    return rows


def _count_correct(
    context: ClientContext, half: ClientHalf[Any, Any, Any], state: Any, downlink: Any, split: Split
) -> dict[str, int]:
    correct: dict[str, torch.Tensor] = {}
    for images, labels in device_batches(context, split, EVALUATION_BATCH):
        with precision(context):
            scores = half.predict(state, downlink, images)
        for name, score in scores.items():
            hits = (score.argmax(dim=1) == labels).sum()
            correct[name] = correct[name] + hits if name in correct else hits
    return {name: int(hits) for name, hits in correct.items()}
