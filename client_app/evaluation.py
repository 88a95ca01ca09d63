"""Evaluation of a client's own model on its own examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from client_app.scores import Score, new_scores
from data import Split
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import VALIDATION, MetricRow
from strategies.base.state import modules_of
from strategies.common.training import EVALUATION_BATCH, device_batches, precision


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

    An empty split gives no row, nor does a score that is undefined on it: "not evaluated" is the
    absence of a number, not a zero. The main score is named by the client's task. All modules of
    the state are put in evaluation mode.
    """
    splits = {"": context.data.test} if test else {}
    splits[VALIDATION] = context.data.validation
    return score_rows(context, half, state, downlink, phase, splits)


@torch.no_grad()
def score_rows(
    context: ClientContext,
    half: ClientHalf[Any, Any, Any],
    state: Any,
    downlink: Any,
    phase: str,
    splits: Mapping[str, Split],
) -> list[MetricRow]:
    """Measure splits as `evaluate_client` does; their keys begin the names of their scores."""
    for module in modules_of(state):
        module.eval()
    return [
        MetricRow(phase, prefix + name, value, len(split))
        for prefix, split in splits.items()
        for name, value in _scores(context, half, state, downlink, split).items()
        if value is not None
    ]


def _scores(
    context: ClientContext, half: ClientHalf[Any, Any, Any], state: Any, downlink: Any, split: Split
) -> dict[str, float | None]:
    """Return the scores of every named prediction, "accuracy" renamed to what is measured."""
    found: dict[str, Score] = {}
    for inputs, targets in device_batches(context, split, EVALUATION_BATCH):
        with precision(context):
            predictions = half.predict(state, downlink, inputs)
        for name, outputs in predictions.items():
            for metric, score in new_scores(context.data).items():
                found.setdefault(name.replace("accuracy", metric), score).add(outputs, targets)
    return {name: score.value() for name, score in found.items()}
