"""Write ``report.html``: one self-contained page about a run, from its files alone.

The page makes no external request (a content security policy forbids it), follows the reader's
light or dark setting, and prints. It can be written again at any time, during a run or long after;
the same files give the same bytes.
"""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from server_app.records.scores import tasks_in_order
from server_app.report.charts import accuracy_over_rounds, accuracy_over_traffic, by_architecture
from server_app.report.cost_charts import (
    cost_to_reach,
    cumulative_traffic,
    loss_over_rounds,
    time_per_round,
    traffic_per_round,
)
from server_app.report.data import RunData, read_run, section
from server_app.report.delta import change_by_client
from server_app.report.figures import key_figures, scope
from server_app.report.style import LOGO, SCRIPT, STYLE
from server_app.report.svg import esc
from server_app.report.tables import (
    client_table,
    failure_table,
    file_list,
    model_table,
    provenance,
    settings_table,
    task_table,
)
from server_app.report.tasks import View, client_tasks, has_tasks, views
from strategies.base.files import replacing

REPORT_NAME = "report.html"


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
    NotWrittenError
        The disk is full.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir} is not a run directory; give <output-dir>/<run-name>")
    page = render(read_run(run_dir))
    target = run_dir / REPORT_NAME
    with replacing(target) as partial:  # a reader never sees half a page
        partial.write_text(page, encoding="utf-8", newline="\n")
    return target


def render(run: RunData) -> str:
    """Return the whole page as HTML."""
    script_hash = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'"
    tasks = views(run)
    title = f"{_setting(run, 'method')} on {_subject(run)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{esc(title)} · Wildflower</title><style>{STYLE}</style></head><body><main>\n"
        f"{_header(run)}\n{key_figures(run, tasks)}\n{_charts(run, tasks)}\n"
        f"<h2>Clients</h2>{client_table(run, scope(run))}{task_table(run, tasks)}"
        f"{model_table(tasks)}\n{_failures(run)}\n"
        f"<h2>Settings</h2>{settings_table(run)}\n"
        f"<h2>Provenance</h2>{provenance(_provenance(run))}\n"
        f"<h2>Files</h2>{file_list(run)}\n"
        f"<footer>Written by Wildflower from the files of this run directory.</footer>\n"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _setting(run: RunData, key: str) -> str:
    value = run.settings.get(key, (run.summary or {}).get(key))
    return f"{key} not recorded" if value is None else str(value)


def _subject(run: RunData) -> str:
    """Return what the clients learn: the data set or, where there are several, their tasks."""
    if not has_tasks(run):
        return _setting(run, "dataset")
    texts = list(dict.fromkeys(card.task for card in run.clients))
    return texts[0] if len(texts) == 1 else ", ".join(tasks_in_order(client_tasks(run)))


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
        f'{esc(_subject(run))}</h1><div class="runname">'
        f"{esc(run.info.get('run_name', run.directory.name))}</div>{shown}</header>{_alert(run)}"
    )


def _time(text: Any) -> Any:
    """Shorten an ISO time for reading; anything else is shown as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except (TypeError, ValueError):
        return text


def _alert(run: RunData) -> str:
    status, reason = run.info.get("status"), run.info.get("reason") or "no reason is recorded"
    if status == "failed":
        text = f"This run failed: {reason}. Figures are those so far."
        return f'<p class="alert failed">{esc(text)}</p>'
    if status == "interrupted":
        text = f"This run was interrupted: {reason}. Figures are those so far."
    elif run.summary is None:
        text = "No summary yet: the run is still going or was cut off. Figures are those so far."
    else:
        reason = run.summary.get("delta_reason")
        text = f"No comparison with a Local run: {reason}" if reason else ""
    return f'<p class="alert">{esc(text)}</p>' if text else ""


def _charts(run: RunData, tasks: Sequence[View]) -> str:
    results = "".join(accuracy_over_rounds(view, scope(run, view)) for view in tasks)
    results += by_architecture(run, tasks) + accuracy_over_traffic(run, tasks)
    results += loss_over_rounds(run) + change_by_client(run)
    costs = traffic_per_round(run) + cumulative_traffic(run) + time_per_round(run)
    costs += "".join(cost_to_reach(run, view) for view in tasks)
    heading = "Accuracy and loss" if tasks[0].name == "accuracy" else "Scores and loss"
    return (
        f'<h2>{heading}</h2><div class="charts">{results}</div>'
        f'<h2>Cost</h2><div class="charts">{costs}</div>'
    )


def _failures(run: RunData) -> str:
    return f"<h2>Failures</h2>{failure_table(run)}" if run.failures else ""


def _provenance(run: RunData) -> list[tuple[str, Any]]:
    versions = section(run.info, "versions")
    pairs: list[tuple[str, Any]] = sorted(versions.items()) or [("versions", None)]
    names = {"git_revision": "git revision", "split_hash": "hash of the split", "seed": "seed"}
    return pairs + [(text, run.info.get(key)) for key, text in names.items()]
