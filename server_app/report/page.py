"""Write ``report.html``: one self-contained page about a run, from its files alone.

The page makes no external request (a content security policy forbids it), follows the reader's
light or dark setting, and prints. It can be written again at any time, during a run or long after;
the same files give the same bytes.
"""

import base64
import hashlib
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from server_app.report.charts import accuracy_over_rounds, accuracy_over_traffic, by_architecture
from server_app.report.costs import (
    cost_to_reach,
    cumulative_traffic,
    loss_over_rounds,
    time_per_round,
    traffic_per_round,
)
from server_app.report.data import RunData, read_run, section
from server_app.report.stats import Point, curve, flops_per_round, main_phase, measured
from server_app.report.style import LOGO, SCRIPT, STYLE
from server_app.report.svg import (
    NOT_EVALUATED,
    NOT_RECORDED,
    duration,
    esc,
    grouped,
    human,
    percent,
    size,
)
from server_app.report.tables import (
    client_table,
    failure_table,
    file_list,
    model_table,
    provenance,
    settings_table,
)

REPORT_NAME = "report.html"
Figure = tuple[str, str, str]  # label, value as HTML, explanation as plain text


def write_report(run_dir: Path) -> Path:
    """Write the page of a run and return its path.

    Parameters
    ----------
    run_dir
        The run directory; any of its files may still be missing.

    Raises
    ------
    FileNotFoundError
        ``run_dir`` does not exist.
    ValueError
        One of its files is malformed; the message names file and line.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir} is not a run directory; give <output-dir>/<run-name>")
    page = render(read_run(run_dir))
    target = run_dir / REPORT_NAME
    # Written beside the target and moved over it, so a reader never sees half a page.
    handle, name = tempfile.mkstemp(dir=run_dir, prefix=".report-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(page)
        Path(name).chmod(0o644)  # mkstemp makes the file private to its owner
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def render(run: RunData) -> str:
    """Return the whole page as HTML."""
    script_hash = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'"
    title = f"{_setting(run, 'method')} on {_setting(run, 'dataset')}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{esc(title)} · Wildflower</title><style>{STYLE}</style></head><body><main>\n"
        f"{_header(run)}\n{_key_figures(run)}\n{_charts(run)}\n"
        f"<h2>Clients</h2>{client_table(run, scope(run))}{model_table(run)}\n{_failures(run)}\n"
        f"<h2>Settings</h2>{settings_table(run)}\n"
        f"<h2>Provenance</h2>{provenance(_provenance(run))}\n"
        f"<h2>Files</h2>{file_list(run)}\n"
        f"<footer>Written by Wildflower from the files of this run directory.</footer>\n"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _setting(run: RunData, key: str) -> str:
    value = run.settings.get(key, (run.summary or {}).get(key))
    return f"{key} not recorded" if value is None else str(value)


def _points(run: RunData) -> list[Point]:
    table = measured(run, "accuracy")
    return curve(table, main_phase(table))


def scope(run: RunData) -> str:
    """Say how many clients stand behind a mean, whose model and which test split."""
    accuracy = section(run.summary, "accuracy")
    points = _points(run)
    evaluated = accuracy.get("clients_evaluated")
    if evaluated is None:
        evaluated = points[-1].clients if points else 0
    known = len(run.clients) or (run.summary or {}).get("clients")
    split = accuracy.get("test_split") or run.settings.get("test-split")
    model = accuracy.get("model")
    return ", ".join(
        [
            f"{evaluated} of {'?' if known is None else known} clients",
            f"{model} models" if model else "model kind not recorded",
            f"{split} test split" if split else "test split not recorded",
        ]
    )


def _header(run: RunData) -> str:
    status = str(run.info.get("status", "status not recorded"))
    css = status if status in ("completed", "failed") else "running"
    clients = len(run.clients) or (run.summary or {}).get("clients")
    facts: list[tuple[str, Any]] = [
        ("clients", clients),
        ("rounds", run.settings.get("num-rounds", (run.summary or {}).get("rounds"))),
        ("sample fraction", run.settings.get("sample-fraction")),
        ("seed", run.info.get("seed")),
        ("started", _time(run.info.get("started"))),
        ("machine", run.info.get("machine")),
    ]
    shown = provenance(facts).replace('class="facts"', 'class="facts head"')
    return (
        f'<header><div class="eyebrow">{LOGO}Wildflower run <span class="pill {css}">{esc(status)}'
        f"</span></div><h1>{esc(_setting(run, 'method'))} <span>on</span> "
        f'{esc(_setting(run, "dataset"))}</h1><div class="runname">'
        f"{esc(run.info.get('run_name', run.directory.name))}</div>{shown}</header>{_alert(run)}"
    )


def _time(text: Any) -> Any:
    """Shorten an ISO time for reading; anything else is shown as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except (TypeError, ValueError):
        return text


def _alert(run: RunData) -> str:
    if run.summary is not None:
        return ""
    if run.info.get("status") == "failed":
        text = "This run failed: there is no summary. What was measured before the failure follows."
        return f'<p class="alert failed">{text}</p>'
    if run.info.get("status") == "interrupted":
        reason = run.info.get("reason") or "no reason is recorded"
        text = f"This run was interrupted: {reason}. Figures are those so far."
        return f'<p class="alert">{esc(text)}</p>'
    text = "No summary yet: the run is still going or was cut off. Figures are those so far."
    return f'<p class="alert">{text}</p>'


def _key_figures(run: RunData) -> str:
    figures = _accuracy_figures(run) + _cost_figures(run)
    tiles = "".join(
        f"<div><dt>{esc(label)}</dt><dd{' class=lead' if index == 0 else ''}>{value}</dd>"
        f"<p>{esc(text)}</p></div>"
        for index, (label, value, text) in enumerate(figures)
    )
    return f'<dl class="keys">{tiles}</dl>'


def _accuracy_figures(run: RunData) -> list[Figure]:
    who = scope(run)
    if run.summary is None:
        points = _points(run)
        latest = points[-1] if points else None
        return [
            ("latest accuracy", percent(latest.mean if latest else None),
             f"{latest.label}; {who}" if latest else "no evaluation so far"),
            ("best accuracy", NOT_RECORDED, "chosen when the run completes"),
            ("spread over clients", f"± {percent(latest.std)}" if latest else NOT_EVALUATED,
             "one standard deviation, clients alike"),
            ("worst client", NOT_RECORDED, "written when the run completes"),
        ]  # fmt: skip
    accuracy = section(run.summary, "accuracy")
    mean, std = accuracy.get("mean_over_clients"), accuracy.get("std_over_clients")
    spread = percent(mean) if mean is None or std is None else f"{percent(mean)} ± {100 * std:.1f}"
    return [
        ("final accuracy", percent(accuracy.get("final")), f"weighted by examples; {who}"),
        ("best accuracy", percent(accuracy.get("best")), _best_rule(accuracy)),
        ("mean ± std over clients", spread, f"every client counts alike; {who}"),
        ("worst client", percent(accuracy.get("worst_client")), "lowest final accuracy"),
    ]


def _best_rule(accuracy: dict[str, Any]) -> str:
    if accuracy.get("best") is None:
        return "no evaluation, no choice"
    rule, number = accuracy.get("best_by"), accuracy.get("best_round")
    place = "round not recorded" if number is None else f"round {number}"
    if accuracy.get("best_phase") == "final":
        place = f"closing evaluation after {place}"
    if rule == "validation":
        return f"{place}, chosen by highest validation accuracy; value on the test split"
    if rule == "test":
        return f"{place}, chosen by highest test accuracy itself, so optimistic"
    return f"{place}, rule of choice not recorded"


def _cost_figures(run: RunData) -> list[Figure]:
    traffic, time = section(run.summary, "traffic"), section(run.summary, "time")
    up, down = traffic.get("uplink_bytes"), traffic.get("downlink_bytes")
    extra = [traffic.get(f"evaluation_{way}_bytes") for way in ("uplink", "downlink")]
    evaluation = "" if None in extra else f"; evaluation {size(extra[0])} up, {size(extra[1])} down"
    failed = (run.summary or {}).get("clients_failed")
    if failed is None and run.rounds:  # a round on record means failures would be, too
        failed = sum(row.kind != "skipped" for row in run.failures)
    share = time.get("efficiency")
    scalars = [traffic.get(f"{way}_scalars_per_round") for way in ("uplink", "downlink")]
    return [
        ("scalars up / round", human(scalars[0]), f"{_exact(scalars[0])}all participants"),
        ("scalars down / round", human(scalars[1]), f"{_exact(scalars[1])}all participants"),
        ("training FLOPs / round", human(flops_per_round(run)),
         "operations of all clients that trained, fullest round"),
        ("bytes up, down", _two(size(up), size(down)), f"training, whole run{evaluation}"),
        ("time", duration(time.get("total_s")), _time_note(time)),
        ("client compute", duration(time.get("client_compute_s")), "summed over clients"),
        ("efficiency", NOT_RECORDED if share is None else percent(share, 0),
         "client compute / (wall time \u00d7 workers)"),
        ("failures", grouped(failed),
         f"client rounds left out; rounds recorded: {len(run.rounds) or 'none'}"),
    ]  # fmt: skip


def _exact(number: float | None) -> str:
    return "" if number is None else f"{grouped(number)}, "


def _two(up: str, down: str) -> str:
    return up if up == down == NOT_RECORDED else f"{up} <small>↑</small> {down} <small>↓</small>"


def _time_note(time: dict[str, Any]) -> str:
    median = time.get("round_s_median")
    return "whole run" if median is None else f"whole run; median round {duration(median)}"


def _charts(run: RunData) -> str:
    results = accuracy_over_rounds(run, scope(run)) + by_architecture(run)
    results += accuracy_over_traffic(run) + loss_over_rounds(run)
    costs = traffic_per_round(run) + cumulative_traffic(run)
    costs += time_per_round(run) + cost_to_reach(run)
    return (
        f'<h2>Accuracy and loss</h2><div class="charts">{results}</div>'
        f'<h2>Cost</h2><div class="charts">{costs}</div>'
    )


def _failures(run: RunData) -> str:
    return f"<h2>Failures</h2>{failure_table(run)}" if run.failures else ""


def _provenance(run: RunData) -> list[tuple[str, Any]]:
    versions = section(run.info, "versions")
    pairs: list[tuple[str, Any]] = sorted(versions.items()) or [("versions", None)]
    names = {"git_revision": "git revision", "split_hash": "hash of the split", "seed": "seed"}
    return pairs + [(text, run.info.get(key)) for key, text in names.items()]
