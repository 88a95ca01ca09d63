"""Which data a plan needs, and whether they are on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from data import DataError
from data.standard_places import KNOWN_FILES, find_folder
from data.tasks import parse_tasks
from deploy.compare.plan import Plan
from strategies.base.run_config import RunConfig


def datasets_of(run: RunConfig) -> list[str]:
    """Return the names of the data sets that one run reads."""
    entries = parse_tasks(run.tasks)
    named = [entry.dataset or run.dataset for entry in entries] or [run.dataset]
    if run.chosen_method.public_data:
        named.append(run.public_dataset)
    return list(dict.fromkeys(named))


def missing_data(plan: Plan) -> list[str]:
    """Return what is to be said of data that are not here, one text a data set."""
    found: dict[str, None] = {}
    for run in plan.runs:
        for name in datasets_of(run.run):
            found |= dict.fromkeys(_missing(name, run.run.data_dir))
    return list(found)


def _missing(name: str, folder: str) -> Iterable[str]:
    if name not in KNOWN_FILES:  # bundled, or drawn from what is bundled
        return
    try:
        find_folder(name, Path(folder).expanduser() if folder else None)
    except DataError as error:
        owner = f"data-dir = {folder!r}: " if folder else ""
        yield f"{owner}{error}; or name their folder with --data-dir"


def where(plan: Plan) -> str:
    """Name the data sets of a plan's runs; those that are not here have to be downloaded."""
    folder = plan.runs[0].run.data_dir
    names = dict.fromkeys(name for run in plan.runs for name in datasets_of(run.run))
    return ", ".join(
        f"{name} (to download)" if list(_missing(name, folder)) else name for name in names
    )
