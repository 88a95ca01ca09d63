"""Reading what a client answered: every record and value is checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from strategies.base.messages import INFO, METRICS, PHASES, ClientUpdate, MetricRow, count_bytes
from strategies.base.method import Method
from strategies.base.payload import (
    ARRAYS,
    MANIFEST,
    PayloadError,
    Template,
    count_scalars,
    unpack,
)

INFO_KEYS = frozenset(
    ("client-id", "round", "num-examples", "compute-s", "worker", "rounds-trained")
)
MOST_METRICS, LONGEST_NAME = 200, 100
"""Bounds of what one reply may report."""


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
        raise PayloadError(f"{sorted(unknown)[0]!r:.100}: record is not declared")
    info = content.get(INFO)
    info = info if isinstance(info, ConfigRecord) else ConfigRecord()
    if undeclared := sorted(set(info) - INFO_KEYS):
        raise PayloadError(f"{INFO}: {undeclared[0]!r:.100}: key is not declared")
    for key, expected in (("client-id", client_id), ("round", server_round)):
        if info.get(key) != expected:
            raise PayloadError(f"{key}: the reply says {info.get(key)!r}, expected {expected}")
    examples, seconds = info.get("num-examples"), info.get("compute-s")
    if type(examples) is not int or examples < 0:
        raise PayloadError(f"num-examples: {examples!r} is not a count")
    if not isinstance(seconds, float) or not isfinite(seconds) or seconds < 0:
        raise PayloadError(f"compute-s: {seconds!r} is not a duration")
    worker = info.get("worker")
    if not isinstance(worker, str) or not worker:  # Flower cannot count the bytes of ""
        raise PayloadError(f"worker: {worker!r} is not a name")
    trained = info.get("rounds-trained")
    if type(trained) is not int or trained < 0:
        raise PayloadError(f"rounds-trained: {trained!r} is not a count")
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise PayloadError(f"{METRICS}: record is missing, or holds no metrics")
    rows = read_metrics(metrics)
    # A client that had nothing to train on answers without arrays.
    uplink = unpack(method.uplink, content, dims, templates) if examples else None
    if uplink is None and (ARRAYS in content or MANIFEST in content):
        raise PayloadError("num-examples: 0, but arrays were sent")
    scalars = count_scalars(uplink)[0] if uplink is not None else 0
    return ClientUpdate(
        client_id, examples, uplink, rows, seconds, count_bytes(content), scalars, worker, trained
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
            shown = f"{key!r:.100} = {pair!r:.100}"
            raise PayloadError(f"{METRICS}: {shown} is not [value, examples] of a phase")
        if pair[1] < 0 or pair[1] != int(pair[1]):
            raise PayloadError(f"{METRICS}: {key} rests on {pair[1]} examples")
        if "accuracy" in metric and not 0 <= pair[0] <= 1:
            raise PayloadError(f"{METRICS}: {key} = {pair[0]} is not between 0 and 1")
        rows.append(MetricRow(phase, metric, float(pair[0]), int(pair[1])))
    return rows
