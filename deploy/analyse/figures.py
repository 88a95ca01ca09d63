"""The figures, by matplotlib: each as PNG, for a page, and as SVG, for a paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from deploy.analyse.analysis import Analysis
from deploy.analyse.measures import BINS
from strategies.base.files import replacing

SHOWN = 12
"""Clients with a confusion matrix in the figure; confusion.csv has all."""

REGION_CELLS = 200
"""Cells a side of the decision regions."""

TITLES = {
    "cka": "Linear CKA between clients",
    "tsne": "Representations, by class and by client",
    "regions": "Decision regions of the heads",
    "confusion": "Class confusion by client",
    "calibration": "Calibration",
}


def write_figures(folder: Path, analysis: Analysis) -> list[str]:
    """Draw what there is data for; return the names of the figures, keys of `TITLES`."""
    names = []
    for name, figure in _figures(analysis):
        for kind in ("png", "svg"):
            with replacing(folder / f"{name}.{kind}") as partial:
                figure.savefig(partial, format=kind, dpi=110)
        names.append(name)
    return names


def _figures(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    drawn: dict[str, tuple[bool, Callable[[Analysis], Figure]]] = {
        "cka": (len(analysis.clients) > 1, _cka),
        "tsne": (analysis.map is not None, _map),
        "regions": (bool(analysis.regions), _regions),
        "confusion": (bool(analysis.confusions), _confusion),
        "calibration": (analysis.pooled is not None, _calibration),
    }
    for name, (there, draw) in drawn.items():
        if there:
            yield name, draw(analysis)


def _cka(analysis: Analysis) -> Figure:
    stages = list(analysis.cka)
    figure = Figure(figsize=(3.2 * len(stages), 3.4), layout="constrained")
    axes = figure.subplots(1, len(stages), squeeze=False)[0]
    for axis, stage in zip(axes, stages, strict=True):
        image = axis.imshow(analysis.cka[stage], vmin=0, vmax=1, cmap="viridis")
        mean = analysis.mean_cka(stage)
        axis.set_title(stage + ("" if mean is None else f", mean {mean:.3f}"))
        places = range(len(analysis.clients))
        axis.set_xticks(places, analysis.clients, fontsize=7, rotation=90)
        axis.set_yticks(places, analysis.clients, fontsize=7)
        axis.set_xlabel("client")
    axes[0].set_ylabel("client")
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _map(analysis: Analysis) -> Figure:
    assert analysis.map is not None  # asked for only where there is one
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    points = analysis.map.points
    titles = (("class", analysis.map.labels), ("client", analysis.map.clients))
    for axis, (title, groups) in zip(figure.subplots(1, 2), titles, strict=True):
        for place, group in enumerate(np.unique(groups)):
            rows = groups == group
            text = analysis.class_names[group] if title == "class" else str(group)
            axis.scatter(*points[rows].T, s=6, color=_colour(place), label=text)
        axis.set_title(f"by {title}")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.legend(fontsize=7, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _regions(analysis: Analysis) -> Figure:
    shown = analysis.regions
    figure = Figure(figsize=(4.2 * len(shown) + 1.2, 4.2), layout="constrained")
    for axis, item in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        classes, extent = item.grid(REGION_CELLS)
        colours = [_colour(label) for label in range(len(analysis.class_names))]
        axis.imshow(
            np.array([colour[:3] for colour in colours])[classes],
            extent=extent, origin="lower", aspect="auto", alpha=0.35,
        )  # fmt: skip
        for label in np.unique(item.labels):
            rows = item.labels == label
            name = analysis.class_names[label]
            axis.scatter(*item.points[rows].T, s=7, color=colours[label], label=name)
        who = "client" if len(item.clients) == 1 else "clients"
        clients = ", ".join(map(str, item.clients))
        axis.set_title(f"{who} {clients}: {item.right:.0%} in their region", fontsize=9)
    axis.legend(fontsize=7, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _confusion(analysis: Analysis) -> Figure:
    shown = list(analysis.confusions.items())[:SHOWN]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(2.8 * columns, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (client, table) in zip(axes, shown, strict=False):
        totals = table.sum(axis=1, keepdims=True)
        axis.imshow(table / np.maximum(totals, 1), vmin=0, vmax=1, cmap="Blues")
        axis.set_title(f"client {client}, {np.trace(table) / table.sum():.0%} right", fontsize=9)
        axis.set_xlabel("predicted", fontsize=8)
        axis.set_ylabel("true", fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes[len(shown) :]:
        axis.axis("off")
    return figure


def _calibration(analysis: Analysis) -> Figure:
    assert analysis.pooled is not None  # asked for only where there is one
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    diagram, bars = figure.subplots(1, 2)
    centres = (np.arange(BINS) + 0.5) / BINS
    known = analysis.pooled.counts > 0
    diagram.bar(centres[known], analysis.pooled.accuracy[known], width=1 / BINS, edgecolor="white")
    diagram.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    diagram.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share right")
    diagram.set_title(f"all clients, ECE {analysis.pooled.error:.3f}", fontsize=10)
    clients = [str(client) for client in analysis.calibrations]
    bars.bar(clients, [item.error for item in analysis.calibrations.values()])
    bars.set(xlabel="client", ylabel="ECE", ylim=(0, None))
    bars.tick_params(labelsize=7)
    return figure


def _colour(place: int) -> Any:
    """Return one of twenty colours: the ten strong ones first, then the pale ones."""
    import matplotlib

    strong, pale = 2 * (place % 10), place // 10 % 2
    return matplotlib.colormaps["tab20"](strong + pale)
