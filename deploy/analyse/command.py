"""`wildflower analyse`: what a run's models have in common, and how calibrated they are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.arguments import count
from models.libraries import is_installed
from server_app.console import table
from strategies.base.options import ConfigError

if TYPE_CHECKING:
    from deploy.analyse.analysis import Analysis

FOLDER = "analysis"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("directory", type=Path, help="the directory of a run, with its states")
    parser.add_argument(
        "--images", type=count, default=512, metavar="N",
        help="test examples for CKA, or all there are (default: 512)",
    )  # fmt: skip
    parser.add_argument(
        "--clients", type=count, default=20, metavar="N",
        help="at most so many clients, evenly over all (default: 20)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="of the examples and of t-SNE (default: 0)",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    """Analyse a run, write its figures, print the means; returns 0."""
    if not is_installed("matplotlib"):
        raise ConfigError("wildflower analyse needs matplotlib: pip install 'wildflower[analyse]'")
    from deploy.analyse.analysis import Plan, analyse
    from deploy.analyse.figures import write_figures
    from deploy.analyse.files import write_data
    from deploy.analyse.page import about, write_page
    from server_app.report import write_report

    directory = options.directory.expanduser()
    plan = Plan(images=options.images, clients=options.clients, seed=options.seed)
    found = analyse(directory, plan)
    folder = directory / FOLDER
    write_data(folder, found)
    page = write_page(folder, found, write_figures(folder, found))
    if (directory / "report.html").is_file():
        write_report(directory)  # it links to the page
    print(about(found))
    print(text_of(found))
    print(f"page: {page}")
    return 0


def text_of(found: Analysis) -> str:
    """Return the mean CKA of every stage, and the calibration error, as text."""
    means = ((stage, found.mean_cka(stage)) for stage in found.cka)
    rows = [(stage, "none" if mean is None else f"{mean:.3f}") for stage, mean in means]
    lines = [table(("stage", "mean CKA between clients"), rows)]
    if found.pooled is not None:
        lines.append(f"expected calibration error of all predictions: {found.pooled.error:.3f}")
    return "\n".join([*lines, f"map: {found.map_note}"])
