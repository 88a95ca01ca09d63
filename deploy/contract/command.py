"""`wildflower test-method`: the contract's checks on one method, a line for each."""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from models.own_code import searching
from strategies.base.options import ConfigError

if TYPE_CHECKING:
    from deploy.contract.runs import Candidate

ON_A_RUN = "plain-run"
"""The check whose run others look at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("method", help="a method's name, or the module of one's own")
    parser.add_argument(
        "--method-options", default="", metavar="'key=value ...'",
        help="the method's options, without its name before them",
    )  # fmt: skip
    parser.add_argument(
        "--code-dir", type=Path, metavar="DIR",
        help="the folder of one's own code (default: the working directory)",
    )  # fmt: skip
    parser.add_argument(
        "-k", action="append", default=[], metavar="TEXT", dest="wanted",
        help="only checks with this in their name; may be repeated",
    )  # fmt: skip


def execute(options: argparse.Namespace) -> int:
    """Run the checks; returns 0 if the method passes all of them, else 1."""
    from deploy.contract.runs import Candidate
    from strategies.base.parsing import parse_run_config

    code = (options.code_dir or Path.cwd()).expanduser().resolve()
    if not code.is_dir():
        raise ConfigError(f"--code-dir {options.code_dir}: there is no such folder")
    config = {"method_options": options.method_options, "code_dir": str(code)}
    keys = {key.replace("_", "-"): value for key, value in config.items()}
    with searching(code):
        parse_run_config({"method": options.method, **keys})  # says what no run could start with
        checks = _chosen(options.wanted)
        return _run_all(Candidate(options.method, config), checks)


def checks_by_name() -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Return the checks of a method, and those that look at the plain run of it."""
    from deploy.contract import not_a_number, refusals, resume, rounds, server_state

    of_method: dict[str, Callable[..., Any]] = {
        "declared": rounds.halves_are_declared,
        "unlike-clients": rounds.unlike_clients_finish,
        "one-client-a-round": rounds.one_client_a_round,
        ON_A_RUN: rounds.plain_run,
    }
    of_run: dict[str, Callable[..., Any]] = {
        "same-seed": rounds.same_seed_same_numbers,
        "payloads-stay": rounds.payloads_stay_as_sent,
        "wire-size": rounds.wire_is_what_is_declared,
        "checkpoint": server_state.state_survives_a_checkpoint,
        "server-half": server_state.server_half_holds_nothing,
    }
    later: dict[str, Callable[..., Any]] = {
        "keep-optimizer": resume.optimizer_is_kept,
        "nan-is-named": not_a_number.nan_is_named,
        "damaged-uplinks": refusals.damaged_uplinks_are_refused,
        "killed-and-resumed": resume.killed_and_resumed_equals_whole,
    }
    return of_method | later, of_run


def _chosen(wanted: list[str]) -> list[str]:
    """Return the names of the checks to run, in order; the plain run goes before those on it."""
    of_method, of_run = checks_by_name()
    names = list(of_method)
    place = names.index(ON_A_RUN) + 1
    names[place:place] = of_run
    if not wanted:
        return names
    chosen = {name for name in names if any(text in name for text in wanted)}
    if not chosen:
        raise ConfigError(
            f"-k {' '.join(wanted)}: no check has that in its name: {', '.join(names)}"
        )
    return [
        name for name in names if name in chosen or (name == ON_A_RUN and chosen & of_run.keys())
    ]


def _run_all(tested: Candidate, names: list[str]) -> int:
    of_method, of_run = checks_by_name()
    # Only here: what failed checks leave is worth a look, so that the folder may stay.
    folder = Path(tempfile.mkdtemp(prefix=f"test-method-{tested.name}-"))
    plain, failed = None, 0
    width = max(map(len, names))
    for name in names:
        check, subject = (of_run[name], plain) if name in of_run else (of_method[name], tested)
        started = time.monotonic()
        if subject is None:
            reason: str | None = f"not run: needs {ON_A_RUN}"
        else:
            found, reason = _outcome(tested, check, subject, folder / name)
            plain = found if name == ON_A_RUN else plain
        failed += reason is not None
        word = "passed" if reason is None else "FAILED"
        took = f"{time.monotonic() - started:5.1f} s"
        print(
            f"{word}  {name:{width}}  {took}{'' if reason is None else '  ' + reason}", flush=True
        )
        if reason is None and name != ON_A_RUN:
            shutil.rmtree(folder / name)
    print(f"{tested.name}: {len(names) - failed} of {len(names)} checks passed")
    if failed:
        print(f"the runs of failed checks, with what they printed: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _outcome(
    tested: Candidate, check: Callable[..., Any], subject: Any, directory: Path
) -> tuple[Any, str | None]:
    """Return what a check returned, and why it failed, or None; its output goes into a file."""
    from deploy.contract.runs import NotKept

    directory.mkdir(parents=True)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return check(subject, directory), None
    except NotKept as found:
        return None, _line(str(found))
    except Exception as error:  # the user's code runs here, and whatever it raises is its failure
        place = _place_in(tested.module, error)
        return None, _line(f"{type(error).__name__}{place}: {error}")
    finally:
        (directory / "output.txt").write_text(output.getvalue(), encoding="utf-8")


def _place_in(module: ModuleType, error: Exception) -> str:
    """Return where in the method's module an error came from, if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == module.__file__]
    return f" in {Path(str(module.__file__)).name}, line {lines[-1]}" if lines else ""


def _line(text: str) -> str:
    return " ".join(text.split())
