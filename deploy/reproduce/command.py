"""`wildflower reproduce [PRESET]`: one table of a paper again, with its baselines.

Without a name it lists the presets. With one it runs their methods and seeds as `wildflower
compare` does, complete runs skipped and interrupted ones resumed, and writes a page after every
run: what the paper has, what came out, the difference, the spread over seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from deploy.compare.command import (
    Comparison,
    add_processes,
    app_directory,
    check_processes,
    run_all,
)
from deploy.compare.plan import Plan
from deploy.compare.progress import check_states
from deploy.compare.results import Row
from deploy.reproduce.estimate import WHAT, distinct_steps, in_words, measure, recorded, seconds_of
from deploy.reproduce.listing import texts
from deploy.reproduce.needs import missing_data, where
from deploy.reproduce.page import markdown, write_pages
from deploy.reproduce.preset import SCALES, Preset, why_absent
from deploy.reproduce.preset_file import find_preset
from deploy.reproduce.result import result_of
from server_app.console import say
from strategies.base.options import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("preset", nargs="?", help="its name; without one, all are listed")
    parser.add_argument(
        "--scale", choices=SCALES, default="full",
        help="full: as the paper; cpu: the reduction that the preset states (default full)",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0,1,2", metavar="LIST", help="default 0,1,2")
    parser.add_argument(
        "--methods", default="", metavar="LIST", help="labels of some methods (default all)"
    )
    parser.add_argument("--data-dir", default="", metavar="DIR", help="where the data set lies")
    parser.add_argument(
        "--output-dir", type=Path, default=Path("~/wildflower/reproduce"), metavar="DIR",
        help="runs and page (default ~/wildflower/reproduce)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-client", type=float, metavar="SHARE", help="share of a GPU, such as 0.25"
    )
    add_processes(parser)
    parser.add_argument(
        "--app", type=Path, metavar="DIR", help="the Flower app (default: where this program is)"
    )
    parser.add_argument(
        "--dry-run", action="store_true",
        help="check, measure a step of every model, say how long it takes, and stop",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """List the presets, or run one.

    Returns
    -------
    int
        As `wildflower compare`.
    """
    if args.preset is None:
        return _list()
    try:
        preset = find_preset(args.preset)
        settings = {"data-dir": args.data_dir} if args.data_dir else {}
        plan = preset.plan(
            args.scale, seeds_of(args.seeds), args.output_dir.expanduser().absolute(), settings,
            [label for label in args.methods.split(",") if label], args.gpus_per_client,
        )  # fmt: skip
        states = check_states(plan)
        lacking = missing_data(plan)
        if plan.gpus_per_client is None and torch.cuda.is_available():
            say("a GPU is here and not used: --gpus-per-client 0.25 lets four clients share it")
        if args.dry_run:
            return _dry_run(preset, args.scale, plan, states, lacking)
        if lacking:
            raise ConfigError("\n  ".join([f"{preset.name}: data are not here:", *lacking]))
        check_processes(args.processes, plan, args.app)
        comparison = Reproduction(
            plan, states, app_directory(args.app), processes=args.processes, preset=preset,
            scale=args.scale,
        )  # fmt: skip
    except ConfigError as error:
        print(f"wildflower reproduce: {error}", file=sys.stderr)
        return 2
    code = run_all(comparison, _again(args))
    if code == 2:
        return code
    say(markdown(result_of(preset, args.scale, plan, comparison.write())))
    say(f"page: {plan.output / plan.name}-paper.html")
    return code


@dataclasses.dataclass
class Reproduction(Comparison):
    """A comparison whose rows are also set beside a paper's cells.

    Attributes
    ----------
    preset : Preset
        Whose.
    scale : str
        One of `SCALES`.
    """

    preset: Preset = dataclasses.field(kw_only=True)
    scale: str = dataclasses.field(kw_only=True)

    def write(self) -> list[Row]:
        """Write the comparison's table and page, and the paper's."""
        rows = super().write()
        page = result_of(self.preset, self.scale, self.plan, rows)
        write_pages(page, self.plan.output, self.plan.name)
        return rows


def seeds_of(text: str) -> list[int]:
    """Read the seeds; raises `ConfigError` for what is no list of whole numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds = {text!r}: expected whole numbers, such as 0,1,2") from None


def _again(args: argparse.Namespace) -> str:
    """Return the command line with which the same runs go on."""
    words = ["wildflower", "reproduce", args.preset]
    for option in ("scale", "seeds", "methods", "data_dir", "output_dir"):
        value = str(getattr(args, option))
        words += [f"--{option.replace('_', '-')}", value] if value else []
    if args.gpus_per_client is not None:
        words += ["--gpus-per-client", f"{args.gpus_per_client:g}"]
    words += ["--processes", str(args.processes)] if args.processes else []
    return shlex.join(words)


def _list() -> int:
    for text in texts():
        say(text)
    machine, _ = recorded()
    say(f"Times are {WHAT}, from steps measured on {machine}. `--dry-run` measures here.")
    return 0


def _dry_run(
    preset: Preset, scale: str, plan: Plan, states: Mapping[str, str], lacking: list[str]
) -> int:
    source = preset.source
    say(f"{preset.name}: {source.paper}, {source.table}; from {source.text}")
    say(f"scale {scale}: {preset.scale(scale).words}")
    say(f"data: {where(plan)}")
    for text in lacking:
        say(f"  {text}")
    for run in plan.runs:
        say(f"{run.name}: {states[run.name]}")
    for name in preset.absent:
        say(f"{name}: not run: {why_absent(name)}")
    for found in preset.measured:
        for label, value in found.seconds.items():
            say(f"{label}: {value:g} s a round on {found.machine}: {found.command}")
    seconds = measure(distinct_steps(plan), gpu=bool(plan.gpus_per_client))
    for text, value in seconds.items():
        say(f"one step of {text}: {value:.3g} s")
    say(f"about {in_words(seconds_of(plan, seconds))}: {WHAT}, measured on this machine")
    for text in preset.gaps:
        say(f"not the paper's: {text}")
    return 0
