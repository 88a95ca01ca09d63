"""What devices said of themselves when they last registered, from the records of the runs here."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from deploy.fleet.description import Fleet
from deploy.fleet.specs import SUPEREXEC
from strategies.base.run_config import RunConfig

NEWEST = 20
"""Runs that are looked at."""


@dataclasses.dataclass(frozen=True)
class Registered:
    """A device's model, and its `machine` text: version, free disk and memory."""

    model: str
    machine: str


def last_registrations(fleet: Fleet) -> dict[str, Registered]:
    """Return what devices said, by name; of each the newest run that has a word of it.

    Clients of a simulation say nothing of a machine and are passed over. A table that another
    program is writing, or that is damaged, is passed over too.
    """
    found: dict[str, Registered] = {}
    for table in _newest_tables(_run_roots(fleet)):
        for row in _rows(table):
            if row.get("machine"):
                said = Registered(row.get("model") or "", row["machine"])
                found.setdefault(f"client-{row.get('client')}", said)
    return found


def _run_roots(fleet: Fleet) -> set[Path]:
    """Return where the fleet's runs lie; units have a home of their own."""
    named = {
        str(preset.get("output-dir", RunConfig.output_dir)) for preset in fleet.presets.values()
    }
    roots = {Path(name).expanduser() for name in named or {RunConfig.output_dir}}
    return roots | {fleet.files.of(SUPEREXEC) / "wildflower"}


def _newest_tables(roots: Iterable[Path]) -> list[Path]:
    tables = [table for root in roots for table in root.glob("*/clients.csv")]
    return sorted(tables, key=lambda table: table.stat().st_mtime, reverse=True)[:NEWEST]


def _rows(table: Path) -> list[dict[str, str]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
