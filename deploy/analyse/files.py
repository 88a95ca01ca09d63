"""The numbers behind the figures: CSV files, and analysis.json with the means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.analyse.analysis import Analysis
from server_app.records.csv_files import write_rows
from strategies.base.files import replacing


def write_data(folder: Path, analysis: Analysis) -> None:
    """Write the CSV files, one a figure that there is data for, and analysis.json."""
    write_rows(folder / "cka.csv", ("stage", "client", "other", "cka"), _cka_rows(analysis))
    write_rows(folder / "tsne.csv", ("client", "label", "x", "y"), _map_rows(analysis))
    write_rows(
        folder / "confusion.csv", ("client", "true", "predicted", "examples"),
        _confusion_rows(analysis),
    )  # fmt: skip
    write_rows(
        folder / "calibration.csv", ("client", "bin", "examples", "confidence", "accuracy"),
        _calibration_rows(analysis),
    )  # fmt: skip
    if analysis.regions:
        heads = ("clients", "class", "weight_x", "weight_y", "bias")
        write_rows(folder / "regions.csv", heads, _region_rows(analysis))
    with replacing(folder / "analysis.json") as partial:
        partial.write_text(json.dumps(summary_of(analysis), indent=2) + "\n", encoding="utf-8")


def summary_of(analysis: Analysis) -> dict[str, Any]:
    """Return the means; null where there is nothing to take one of."""
    pooled = analysis.pooled
    return {
        "method": analysis.method,
        "round": analysis.round,
        "clients": analysis.clients,
        "test_examples": analysis.images,
        "mean_cka": {stage: analysis.mean_cka(stage) for stage in analysis.cka},
        "calibration_error": {str(c): item.error for c, item in analysis.calibrations.items()},
        "calibration_error_pooled": None if pooled is None else pooled.error,
        "map": analysis.map_note,
        "in_own_region": {" ".join(map(str, r.clients)): r.right for r in analysis.regions},
    }


def _cka_rows(analysis: Analysis) -> Iterator[Sequence[Any]]:
    for stage, table in analysis.cka.items():
        for one, row in zip(analysis.clients, table, strict=True):
            for other, value in zip(analysis.clients, row, strict=True):
                yield stage, one, other, "" if math.isnan(value) else f"{value:.6f}"


def _map_rows(analysis: Analysis) -> Iterator[Sequence[Any]]:
    if (found := analysis.map) is not None:
        for client, label, (x, y) in zip(found.clients, found.labels, found.points, strict=True):
            yield client, label, f"{x:.4f}", f"{y:.4f}"


def _region_rows(analysis: Analysis) -> Iterator[Sequence[Any]]:
    """Yield the heads' weights, which are the regions: the class with the largest score."""
    for item in analysis.regions:
        clients = " ".join(map(str, item.clients))
        for label, (weights, bias) in enumerate(
            zip(item.head.weights, item.head.biases, strict=True)
        ):
            yield clients, label, *(f"{value:.6g}" for value in (*weights, bias))


def _confusion_rows(analysis: Analysis) -> Iterator[Sequence[Any]]:
    for client, table in analysis.confusions.items():
        for true, row in enumerate(table):
            for predicted, count in enumerate(row):
                if count:
                    yield client, true, predicted, count


def _calibration_rows(analysis: Analysis) -> Iterator[Sequence[Any]]:
    for client, item in analysis.calibrations.items():
        rows = zip(item.counts, item.confidence, item.accuracy, strict=True)
        for number, (count, confidence, accuracy) in enumerate(rows):
            if count:
                yield client, number, count, f"{confidence:.6f}", f"{accuracy:.6f}"
