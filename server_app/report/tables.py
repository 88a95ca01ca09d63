"""The tables of the report: clients, failures, settings and files."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from server_app.formats import NOT_RECORDED
from server_app.records.basis import caveats
from server_app.records.curves import TaskView, task_views
from server_app.records.histories import History, histories
from server_app.records.round_result import QUARANTINE_KIND
from server_app.records.run_reader import Client, RunRecords, section
from server_app.records.scores import weighted_mean
from server_app.report.html import DASH, render, unknown
from server_app.report.key_figures import has_tasks
from server_app.report.score_charts import colour_of_models

MOST_CLASS_BARS = 40
MOST_CLIENTS = 2000
"""Rows of the table of clients; with 10,000 the page would take 6.5 MB."""
MOST_FAILURES = 200
MOST_REASON = 600
#: Above this many clients the class strips lose their hover text, to keep the page small.
MOST_CLASS_TITLES = 200

ANALYSIS = "analysis/analysis.html"
FILES = {
    "config.json": "resolved settings, versions, seed, hash of the split",
    "clients.csv": "every client at its registration: architecture, class counts, examples, device",
    "metrics.csv": "every measured value: round, client, phase, metric, value, examples",
    "rounds.csv": "per round: seconds, client compute, participants, failures, accuracy",
    "traffic.csv": "per round, client, direction and purpose: messages, scalars, bytes",
    "failures.csv": "clients left out of a round, with the reason",
    "summary.json": "the key figures, written when the run completes",
    "report.html": "this page; can be written again from the files above",
    "checkpoints": "server state by round, from which the run resumes",
    "clients": "private client state (simulation only; on devices it stays on the device)",
    ANALYSIS: "CKA between clients, t-SNE, class confusion and calibration: `wildflower analyse`",
}

CLASS_STRIP = """\
<svg class="classes" viewBox="0 0 {{ width }} 18" width="{{ width }}" height="18">
{%- if title %}<title>{{ title }}</title>{% endif %}
<path class="slots" d="M0 17.5H{{ width }}"/><path d="{{ bars }}"/></svg>
{#- #}<small>{{ held }}</small>"""

CLIENTS = """\
{% macro cell(value, shown, css="") -%}
<td{% if css %} class="{{ css }}"{% endif %} data-s="{{ value | key }}">{{ shown }}</td>
{%- endmacro %}
<p class=note>{{ scope }}; {{ best }}; {{ dash }} is not measured. Bars show training examples by
class, each client to its own scale, and the number held. Click a heading to sort.
{%- if left %} The {{ rows | length | grouped }} clients with the lowest final score are shown;
clients.csv and metrics.csv have the other {{ left | grouped }}, too.{% endif %}</p>
<div class="scroll" tabindex="0"><table class="clients"><thead><tr>
{% for head in heads %}
{% if head == "classes" %}<th scope="col" class=left>{{ head }}</th>
{% else %}<th scope="col"{% if head in ("task", "model") %} class=left{% endif %}>
{#- #}<button type="button">{{ head }}</button></th>
{% endif %}
{% endfor %}
</tr></thead><tbody>
{% for card, past, strip in rows %}
<tr title="{{ card.device }}"><td>{{ card.client }}</td>
{% if tasks %}<td class="left">{{ card.task_text }} <small>{{ card.task.metric }}</small></td>
{% endif %}
<td class="left"><i class="key {{ colours[card.model] }}"></i>{{ card.model }}</td>
{{ cell(card.parameters, card.parameters | human) }}<td class="left">{{ strip }}</td>
{% for number in (card.train_examples, card.validation_examples, card.test_examples) %}
{{ cell(number, number | grouped) }}
{% endfor %}
{{ cell(past.rounds_trained, past.rounds_trained) }}
{{ cell(past.first, past.first | dash_percent) }}{{ cell(past.best, past.best | dash_percent) }}
{{ cell(past.final, past.final | dash_percent, "last") }}
{% if changes %}
{% set own = changes.get(card.client | string) %}{{ cell(own, own | dash_change) }}
{% endif %}
{{ cell(past.up_bytes, past.up_bytes | dash_size) }}
{{ cell(past.down_bytes, past.down_bytes | dash_size) }}
{{ cell(past.failures, past.failures) }}</tr>
{% endfor %}
</tbody></table></div>"""


def class_strip(card: Client, classes: Sequence[int], titled: bool) -> Markup:
    """Small bars of a client's training examples by class, one slot for each class of the run.

    They are of one height where the client does not tell how many of each it has.
    """
    told = dict(card.class_counts)
    counts = told or dict.fromkeys(card.classes, 1)
    if not counts or not classes:
        return unknown(NOT_RECORDED)
    group = -(-len(classes) // MOST_CLASS_BARS)
    slots = [
        sum(counts.get(label, 0) for label in classes[start : start + group])
        for start in range(0, len(classes), group)
    ]
    top = max(*slots, 1)
    bars = "".join(
        f"M{4 * i} 18v-{max(1.0, 17 * amount / top):.0f}h3V18"
        for i, amount in enumerate(slots)
        if amount
    )
    listed = [f"class {label}: {amount}" for label, amount in sorted(told.items()) if amount]
    listed = listed or [f"class {label}" for label in sorted(counts)]
    title = ", ".join(listed[:20]) + (" …" if len(listed) > 20 else "") if titled else ""
    width, held = 4 * len(slots) - 1, sum(1 for amount in counts.values() if amount)
    return render(CLASS_STRIP, width=width, title=title, bars=bars, held=held)


def client_table(run: RunRecords, scope: str) -> Markup:
    """Return the sortable table with one row for each client."""
    if not run.clients:
        return _nothing("Client information")
    past, by_validation = histories(run)
    classes = sorted({label for card in run.clients for label in card.classes})
    titled = len(run.clients) <= MOST_CLASS_TITLES
    score = "score" if task_views(run)[0].task else "accuracy"
    best = (
        f"“best” is the {score} in the client's best validation round"
        if by_validation
        else f"“best” is the highest {score} measured (no validation values, so optimistic)"
    )
    tasks, changes = has_tasks(run), section(section(run.summary, "delta"), "by_client")
    heads = ["id", *(["task"] if tasks else []), "model", "parameters", "classes", "train"]
    heads += ["valid.", "test", "rounds trained", "first", "best", "final"]
    heads += [*(["delta"] if changes else []), "uplink", "downlink", "failures"]
    rows = [
        (card, past.get(card.client, History()), class_strip(card, classes, titled))
        for card in lowest(run.clients, past)
    ]
    return render(
        CLIENTS, left=len(run.clients) - len(rows),
        scope=scope, best=best, dash=DASH, heads=heads, rows=rows, tasks=tasks,
        changes=changes, colours=colour_of_models(run.clients),
    )  # fmt: skip


def lowest(clients: Sequence[Client], past: Mapping[int, History]) -> Sequence[Client]:
    """Return the clients that the table has room for, by id: those with the lowest final score.

    Who has none is left out first.
    """
    if len(clients) <= MOST_CLIENTS:
        return clients
    finals = {client: history.final for client, history in past.items()}
    scores = {card.client: finals.get(card.client) for card in clients}
    by_score = sorted(
        clients, key=lambda card: (scores[card.client] is None, scores[card.client] or 0.0)
    )
    return sorted(by_score[:MOST_CLIENTS], key=lambda card: card.client)


def _nothing(what: str) -> Markup:
    return Markup("<p class=void>{}: {}.</p>").format(what, unknown(NOT_RECORDED))


TASKS = """\
<h2>Scores by task</h2><p class=note>Means over the clients of one task, weighted by test
examples; delta counts its clients alike. {{ dash }} is not measured, or known when the run
completes.</p><div class="scroll"><table class="models"><thead><tr>
<th class="left">task</th><th class="left">score</th><th>clients</th><th>evaluated</th>
<th>final</th><th>best</th><th>delta</th></tr></thead><tbody>
{% for view, final, entry, change in rows %}
<tr><td class="left">{{ view.task }}</td><td class="left">{{ view.metric }}</td>
<td>{{ view.run.clients | length }}</td><td>{{ final.clients if final else 0 }}</td>
<td>{{ (final.mean if final else none) | dash_percent }}</td>
<td>{{ entry.best | dash_percent }}
{%- if entry.best is not none %} <small>round {{ entry.best_round }}</small>{% endif %}</td>
<td>{{ change | dash_change }}</td></tr>
{% endfor %}
</tbody></table></div>
{% for task, text in notes %}<p class="note but">{{ task }}: {{ text }}</p>{% endfor %}"""


def task_table(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    """Return what came out of every task; nothing for a run that one accuracy tells of."""
    if not tasks[0].task:
        return Markup("")
    scores, delta = section(run.summary, "scores"), section(run.summary, "delta")
    unwritten = {"best": None, "best_round": None}
    rows = [
        (
            view,
            view.points[-1] if view.points else None,
            unwritten | section(scores, view.task),
            section(delta, "by_task").get(view.task),
        )
        for view in tasks
    ]
    notes = []
    for view in tasks:
        of_final, of_best = caveats(run, view.task, section(scores, view.task))
        texts = [of_final, f"best {of_best}" if of_best else ""]
        notes += [(view.task, "; ".join(filter(None, texts)))] if any(texts) else []
    return render(TASKS, rows=rows, dash=DASH, notes=notes)


MODELS = """\
<h2>{{ view.title }} by architecture</h2><p class=note>{{ label }} evaluation; a mean over an
architecture's clients is weighted by test examples, the mean of all counts architectures
alike.</p><div class="scroll"><table class="models"><thead><tr>
<th class="left">model</th><th>clients</th><th>evaluated</th><th>{{ view.metric }}</th>
</tr></thead><tbody>
{% for model, clients, evaluated, mean in rows %}
<tr><td class="left"><i class="key {{ colours[model] }}"></i>{{ model }}</td><td>{{ clients }}</td>
{#- #}<td>{{ evaluated }}</td><td>{{ mean | dash_percent }}</td></tr>
{% endfor %}
<tr><td class="left">mean over models</td><td></td><td></td>
{#- #}<td>{{ average | dash_percent }}</td></tr></tbody></table></div>"""


def model_table(tasks: Sequence[TaskView]) -> Markup:
    """Return the last score of every architecture and their mean.

    Nothing for fewer than two architectures, and for several tasks, whose scores have no mean.
    """
    view = tasks[0]
    cards, line = view.run.clients, list(view.line.values())
    models = list(dict.fromkeys(card.model for card in cards))
    if len(tasks) > 1 or len(models) < 2 or not line:
        return Markup("")
    label, last = line[-1]
    rows = []
    for model in models:
        clients = [card.client for card in cards if card.model == model]
        own = [last[client] for client in clients if client in last]
        rows.append((model, len(clients), len(own), weighted_mean(own)))
    means = [mean for *_, mean in rows if mean is not None]
    average = sum(means) / len(means) if means else None
    colours = colour_of_models(cards)
    return render(MODELS, view=view, label=label, rows=rows, average=average, colours=colours)


FAILURES = """\
<div class="scroll" tabindex="0"><table><thead><tr><th>round</th><th>client</th>
<th class="left">kind</th><th class="left">reason</th></tr></thead><tbody>
{% for row in rows %}
<tr><td>{{ row.round | setting }}</td><td>{{ row.client }}</td><td class="left">{{ row.kind }}</td>
<td class="left reason">{{ row.reason[:most] }}{{ " …" if row.reason | length > most }}</td></tr>
{% endfor %}
</tbody></table></div>{% if more > 0 %}<p class=note>{{ more }} more in failures.csv.</p>{% endif %}
"""


def failure_table(run: RunRecords) -> Markup:
    """Return the failures with their reasons, cut to a readable length."""
    # Who was put into quarantine comes first: the rounds of refusals before it may be many.
    later = run.failures["kind"] != QUARANTINE_KIND
    ordered = run.failures.iloc[later.to_numpy().argsort(kind="stable")]
    rows = ordered.head(MOST_FAILURES).to_dict("records")
    more = len(run.failures) - MOST_FAILURES
    return render(FAILURES, rows=rows, most=MOST_REASON, more=more)


SETTINGS = """\
<details><summary>All {{ pairs | length }} settings</summary><table class="pairs"><tbody>
{% for key, value in pairs %}
<tr><th scope=row>{{ key }}</th><td>{{ value | setting }}</td></tr>
{% endfor %}
</tbody></table></details>"""


def settings_table(run: RunRecords) -> Markup:
    """Every run-config key, in a section that folds."""
    if not run.settings:
        return _nothing("Settings")
    pairs = sorted(run.settings.items(), key=lambda pair: ("." in pair[0], pair[0]))
    return render(SETTINGS, pairs=pairs)


FACTS = """\
<dl class="{{ css }}">
{% for name, value in pairs %}
<div><dt>{{ name }}</dt><dd>{{ value | setting }}</dd></div>
{% endfor %}
</dl>"""


def facts(pairs: Sequence[tuple[str, Any]], css: str = "facts") -> Markup:
    """Versions, revision, seed and the like, as a list of terms."""
    return render(FACTS, pairs=pairs, css=css)


FILE_LIST = """\
<table class="pairs"><tbody>
{% for name, text in files %}
<tr><th scope=row>{% if name == linked %}<a href="{{ name }}">{{ name }}</a>{% else %}
{{- name }}{% endif %}</th><td>{{ text }}</td></tr>
{% endfor %}
</tbody></table>"""


def file_list(run: RunRecords) -> Markup:
    """Return the files of the run directory that exist, each with what it holds."""
    files = [
        (f"{name}/" if (run.directory / name).is_dir() else name, text)
        for name, text in FILES.items()
        # The page itself is listed even the first time, so that writing it again changes nothing.
        if name == "report.html" or (run.directory / name).exists()
    ]
    return render(FILE_LIST, files=files, linked=ANALYSIS)
