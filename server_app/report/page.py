"""Write `report.html`: one self-contained page about a run, from its files alone.

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

from markupsafe import Markup

from server_app.records.client_tasks import tasks_in_order
from server_app.records.curves import TaskView, task_views
from server_app.records.run_reader import RunRecords, read_run, section
from server_app.report.change_chart import change_by_client
from server_app.report.cost_charts import (
    cost_to_reach,
    cumulative_traffic,
    loss_over_rounds,
    time_per_round,
    traffic_per_round,
)
from server_app.report.html import PAGE, joined, render
from server_app.report.key_figures import has_tasks, key_figures, scope
from server_app.report.score_charts import by_architecture, score_over_rounds, score_over_traffic
from server_app.report.server_chart import server_score_over_rounds
from server_app.report.size_chart import client_sizes
from server_app.report.style import LOGO, SCRIPT, STYLE
from server_app.report.tables import (
    client_table,
    facts,
    failure_table,
    file_list,
    model_table,
    settings_table,
    task_table,
)
from strategies.base.files import replacing

REPORT_NAME = "report.html"

BODY = """\
<header><div class="eyebrow">{{ logo }}Wildflower run <span class="pill {{ css }}">{{ status }}
{#- #}</span></div><h1>{{ method }} <span>on</span> {{ subject }}</h1>
<div class="runname">{{ name }}</div>{{ facts }}</header>
{% if alert %}<p class="alert{{ " failed" if css == "failed" }}">{{ alert }}</p>{% endif %}
{{ figures }}
<h2>{{ heading }}</h2><div class="charts">{{ results }}</div>
<h2>Cost</h2><div class="charts">{{ costs }}</div>
<h2>Clients</h2>{{ clients }}
{% if sizes %}<div class="charts">{{ sizes }}</div>{% endif %}
{% if failures %}<h2>Failures</h2>{{ failures }}{% endif %}
<h2>Settings</h2>{{ settings }}
<h2>Provenance</h2>{{ provenance }}
<h2>Files</h2>{{ files }}
<footer>Written by Wildflower from the files of this run directory.</footer>"""


def write_report(run_dir: Path) -> Path:
    """Write the page of a run and return its path.

    Parameters
    ----------
    run_dir
        The run directory; any of its files may still be missing.

    Raises
    ------
    FileNotFoundError
        `run_dir` does not exist.
    ValueError
        One of its files is malformed; the message names file and line.
    NotWrittenError
        The disk is full.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir} is not a run directory; give <output-dir>/<run-name>")
    page = render_page(read_run(run_dir))
    target = run_dir / REPORT_NAME
    with replacing(target) as partial:  # a reader never sees half a page
        partial.write_text(page, encoding="utf-8", newline="\n")
    return target


def render_page(run: RunRecords) -> str:
    """Return the whole page as HTML."""
    script_hash = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    tasks = task_views(run)
    status = str(run.info.get("status", "status not recorded"))
    body = render(
        BODY,
        logo=Markup(LOGO),
        css=status if status in ("completed", "failed") else "running",
        status=status,
        method=_setting(run, "method"),
        subject=_subject(run),
        name=run.info.get("run_name", run.directory.name),
        facts=facts(_facts(run), "facts head"),
        alert=_alert(run),
        figures=key_figures(run, tasks),
        heading="Accuracy and loss" if tasks[0].name == "accuracy" else "Scores and loss",
        results=_results(run, tasks),
        costs=_costs(run, tasks),
        clients=joined([client_table(run, scope(run)), task_table(run, tasks), model_table(tasks)]),
        sizes=client_sizes(run),
        failures=failure_table(run) if len(run.failures) else "",
        settings=settings_table(run),
        provenance=facts(_provenance(run)),
        files=file_list(run),
    )
    return render(
        PAGE,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
        title=f"{_setting(run, 'method')} on {_subject(run)}",
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        body=body,
    )


def _setting(run: RunRecords, key: str) -> str:
    value = run.settings.get(key, (run.summary or {}).get(key))
    return f"{key} not recorded" if value is None else str(value)


def _subject(run: RunRecords) -> str:
    """Return what the clients learn: the data set or, where there are several, their tasks."""
    if not has_tasks(run):
        return _setting(run, "dataset")
    texts = list(dict.fromkeys(card.task_text for card in run.clients))
    if len(texts) == 1:
        return texts[0]
    return ", ".join(tasks_in_order({card.client: card.task for card in run.clients}))


def _facts(run: RunRecords) -> list[tuple[str, Any]]:
    clients = len(run.clients) or (run.summary or {}).get("clients")
    return [
        ("clients", clients),
        ("rounds", run.settings.get("num-rounds", (run.summary or {}).get("rounds"))),
        ("sample fraction", run.settings.get("sample-fraction")),
        ("seed", run.info.get("seed")),
        ("started", _time(run.info.get("started"))),
        ("machine", run.info.get("machine")),
    ]


def _time(text: Any) -> Any:
    """Shorten an ISO time for reading; anything else is shown as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z").strip()
    except (TypeError, ValueError):
        return text


def _alert(run: RunRecords) -> str:
    status, reason = run.info.get("status"), run.info.get("reason") or "no reason is recorded"
    if status == "failed":
        return f"This run failed: {reason}. Figures are those so far."
    if status == "interrupted":
        return f"This run was interrupted: {reason}. Figures are those so far."
    if run.summary is None:
        return "No summary yet: the run is still going or was cut off. Figures are those so far."
    reason = run.summary.get("delta_reason")
    return f"No comparison with a Local run: {reason}" if reason else ""


def _results(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    over_rounds = [score_over_rounds(view, scope(run, view)) for view in tasks]
    over_rounds.append(server_score_over_rounds(run))
    others = [by_architecture(run, tasks), score_over_traffic(run, tasks)]
    return joined([*over_rounds, *others, loss_over_rounds(run), change_by_client(run)])


def _costs(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    charts = [traffic_per_round(run), cumulative_traffic(run), time_per_round(run)]
    return joined([*charts, *(cost_to_reach(run, view) for view in tasks)])


def _provenance(run: RunRecords) -> list[tuple[str, Any]]:
    versions = section(run.info, "versions")
    pairs: list[tuple[str, Any]] = sorted(versions.items()) or [("versions", None)]
    names = {"git_revision": "git revision", "split_hash": "hash of the split", "seed": "seed"}
    return pairs + [(text, run.info.get(key)) for key, text in names.items()]
