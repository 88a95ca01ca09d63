"""All presets in one table, on the terminal and in deploy/presets/README.md.

python -m deploy.reproduce.listing            print it
python -m deploy.reproduce.listing --write    put it into the document
python -m deploy.reproduce.listing --record   measure every preset's steps on this machine first
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.compare.differences import markdown_table
from deploy.compare.plan import Plan
from deploy.keys import put_between
from deploy.reproduce.estimate import (
    RECORDED,
    distinct_steps,
    in_words,
    measure,
    recorded,
    seconds_of,
)
from deploy.reproduce.needs import where
from deploy.reproduce.preset import SCALES, Preset
from deploy.reproduce.preset_file import PRESETS, find_preset, preset_names
from server_app.records.run_directory import write_atomically

DOCUMENT = PRESETS / "README.md"
BEGIN = "<!-- presets: python -m deploy.reproduce.listing --write -->\n"
END = "<!-- end of presets -->\n"
HEADS = ("preset", "paper", "table", "methods", "cells", "full scale", "cpu scale")
MACHINE = "2 cores (x86_64, shared, no GPU)"
_NOWHERE = Path("/nonexistent")


def plan_of(preset: Preset, scale: str) -> Plan:
    """Lay out one seed of a preset, to be looked at."""
    return preset.plan(scale, [0], _NOWHERE, {})


def lines() -> list[list[str]]:
    """Return what the table says of every preset, under `HEADS`."""
    return [_line(find_preset(name)) for name in preset_names()]


def _line(preset: Preset) -> list[str]:
    methods = ", ".join((*preset.labels, *(f"{name} (not here)" for name in preset.absent)))
    cells = sum(map(len, preset.expected.values()))
    times = [_time(preset, scale) for scale in SCALES]
    name, table = preset.source.paper, preset.source.table
    return [preset.name, name, table, methods or "cannot be run here", str(cells), *times]


def _time(preset: Preset, scale: str) -> str:
    if scale not in preset.scales:
        return "none"
    return in_words(seconds_of(plan_of(preset, scale), recorded()[1]))


def table() -> str:
    """Return the document's table."""
    align = [":---"] * 4 + ["---:"] * 3
    shown = [[f"`{name}`", *rest] for name, *rest in lines()]
    return "\n".join([*markdown_table(HEADS, align, shown), ""])


def texts() -> Iterable[str]:
    """Return the lines of the terminal's listing."""
    for name, paper, title, methods, cells, full, cpu in lines():
        preset = find_preset(name)
        yield f"{name}\n    {paper}, {title}; numbers in the text: {cells}\n    {methods}"
        if preset.scales:
            yield f"    data: {where(plan_of(preset, SCALES[0]))}"
            yield f"    a seed at full scale {full}, at cpu scale {cpu}"


def record() -> None:
    """Measure every distinct step of all presets on this machine."""
    steps = [
        step
        for name in preset_names()
        for preset in (find_preset(name),)
        for scale in preset.scales
        for step in distinct_steps(plan_of(preset, scale))
    ]
    seconds = {text: float(f"{value:.3g}") for text, value in sorted(measure(steps).items())}
    content = {"machine": MACHINE, "seconds": seconds}
    write_atomically(RECORDED, json.dumps(content, indent=1) + "\n")
    recorded.cache_clear()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or write it into the document."""
    parser = argparse.ArgumentParser(prog="python -m deploy.reproduce.listing")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.name}")
    parser.add_argument("--record", action="store_true", help="measure the steps first")
    options = parser.parse_args(arguments)
    if options.record:
        record()
    if options.write:
        put_between(DOCUMENT, BEGIN, END, table())
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
