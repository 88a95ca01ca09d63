"""Reading what a client answered: every record and value is checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from strategies.base.checked import shown
from strategies.base.messages import (
    INFO,
    METRICS,
    MOST_EXAMPLES,
    PHASES,
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
    rows = []
    for key, pair in record.items():
        phase, _, metric = key.partition("/")
        finite = isinstance(pair, list) and all(type(v) is float and isfinite(v) for v in pair)
        named = phase in PHASES and 0 < len(metric) <= LONGEST_NAME and metric.isprintable()
        if not finite or len(pair) != 2 or not named:
            raise PayloadError(
                f"{METRICS}: {shown(key)} = {shown(pair)} is not [value, examples] of a phase"
            )
        if abs(pair[0]) > LARGEST:
            raise PayloadError(f"{METRICS}: {key} = {pair[0]:g} is beyond {LARGEST:g}")
        if not 0 <= pair[1] <= MOST_EXAMPLES or pair[1] != int(pair[1]):
            raise PayloadError(f"{METRICS}: {key} rests on {pair[1]} examples")
        if "accuracy" in metric and not 0 <= pair[0] <= 1:
            raise PayloadError(f"{METRICS}: {key} = {pair[0]} is not between 0 and 1")
        rows.append(MetricRow(phase, metric, float(pair[0]), int(pair[1])))
    return rows
