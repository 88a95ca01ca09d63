"""Reading what a client answered: every record and value is checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from data.tasks import METRIC_OF, UNBOUNDED
from strategies.base.messages import (
    INFO,
    METRICS,
    MOST_EXAMPLES,
    PHASES,
    TRAINED,
    VALIDATION,
    ClientUpdate,
    MetricRow,
    ReplyInfo,
    count_bytes,
)
from strategies.base.method import Method
from strategies.base.payload import (
    ARRAYS,
    MANIFEST,
    PayloadError,
    Template,
    count_scalars,
    unpack,
)
from strategies.base.received_text import FORMULA_STARTS, clipped, shown

MOST_METRICS, LONGEST_NAME, LARGEST = 200, 100, 1e100
"""Bounds of what one reply may report. Sums of larger values over clients could overflow."""


def read_reply(
    method: Method,
    content: RecordDict,
    client_id: int,
    server_round: int,
    dims: Mapping[str, int],
    templates: Mapping[str, Template],
) -> ClientUpdate:
    """Check a reply's records and return them as a `ClientUpdate`.

    Raises
    ------
    PayloadError
        Naming the key, if anything differs from what was declared.
    """
    unknown = set(content) - {ARRAYS, MANIFEST, INFO, METRICS}
    if unknown:
        raise PayloadError(f"{shown(sorted(unknown)[0])}: record is not declared")
    record = content.get(INFO)
    info = ReplyInfo.from_record(record if isinstance(record, ConfigRecord) else None)
    for key, said, expected in (
        ("client-id", info.client_id, client_id),
        ("round", info.round, server_round),
    ):
        if said != expected:
            raise PayloadError(f"{key}: the reply says {said}, expected {expected}")
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise PayloadError(f"{METRICS}: record is missing, or holds no metrics")
    rows = read_metrics(metrics)
    # A client that had nothing to train on answers without arrays.
    uplink = unpack(method.uplink, content, dims, templates) if info.num_examples else None
    if uplink is None and (ARRAYS in content or MANIFEST in content):
        raise PayloadError("num-examples: 0, but arrays were sent")
    return ClientUpdate(
        client_id,
        info.num_examples,
        uplink,
        rows,
        info.compute_s,
        num_bytes=count_bytes(content),
        scalars=count_scalars(uplink)[0] if uplink is not None else 0,
        worker=info.worker,
        rounds_trained=info.rounds_trained,
    )


def read_metrics(record: Mapping[str, Any]) -> list[MetricRow]:
    """Check received metrics: finite values, whole example counts, known phases."""
    if len(record) > MOST_METRICS:
        raise PayloadError(f"{METRICS}: {len(record)} values, at most {MOST_METRICS} are accepted")
    return [_metric_row(key, pair) for key, pair in record.items()]


def _metric_row(key: str, pair: object) -> MetricRow:
    phase, _, metric = key.partition("/")
    named = (
        phase in PHASES
        and 0 < len(metric) <= LONGEST_NAME
        and metric.isprintable()
        and metric[0] not in FORMULA_STARTS
    )
    finite = isinstance(pair, list) and all(type(v) is float and isfinite(v) for v in pair)
    if not finite or not named or not isinstance(pair, list) or len(pair) != 2:
        raise PayloadError(
            f"{METRICS}: {shown(key)} = {shown(pair)} is not [value, examples] of a phase"
        )
    value, examples = pair
    said = f"{METRICS}: {clipped(key)}"
    if abs(value) > LARGEST:
        raise PayloadError(f"{said} = {value:g} is beyond {LARGEST:g}")
    if not 0 <= examples <= MOST_EXAMPLES or examples != int(examples):
        raise PayloadError(f"{said} rests on {examples} examples")
    if _is_share(phase, metric):
        below_0 = _plain_name(metric).partition("_")[0] in UNBOUNDED
        if value > 1 or (value < 0 and not below_0):
            raise PayloadError(f"{said} = {value} is not between 0 and 1")
    return MetricRow(phase, metric, value, int(examples))


def _is_share(phase: str, metric: str) -> bool:
    """Say whether a metric lies between 0 and 1: an accuracy, or another task's main score."""
    scores = phase != "train" and _plain_name(metric).partition("_")[0] in METRIC_OF.values()
    return scores or "accuracy" in metric


def _plain_name(metric: str) -> str:
    return metric.removeprefix(VALIDATION).removeprefix(TRAINED)
