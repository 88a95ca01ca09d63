"""The tables of the report: clients, failures, settings and files."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from server_app.report.charts import colour_of_models
from server_app.report.data import Client, RunData, section
from server_app.report.stats import (
    History,
    curve,
    histories,
    main_phase,
    measured,
    placed,
    weighted_mean,
)
from server_app.report.svg import NOT_RECORDED, change, esc, grouped, human, percent, size
from server_app.report.tasks import View, has_tasks, views

MOST_CLASS_BARS = 40
MOST_FAILURES = 200
MOST_REASON = 600
#: Above this many clients the class strips lose their hover text, to keep the page small.
MOST_CLASS_TITLES = 200
DASH = "&ndash;"


class Extra(NamedTuple):
    """Columns that not every client table has: the tasks, and changes against a Local run."""

    tasks: bool
    changes: dict[str, float]


FILES = {
    "config.json": "resolved settings, versions, seed, hash of the split",
    "clients.csv": "one card per client: architecture, classes with counts, examples, device",
    "metrics.csv": "every measured value: round, client, phase, metric, value, examples",
    "rounds.csv": "per round: seconds, client compute, participants, failures, accuracy",
    "traffic.csv": "per round, client, direction and purpose: messages, scalars, bytes",
    "failures.csv": "clients left out of a round, with the reason",
    "summary.json": "the key figures, written when the run completes",
    "report.html": "this page; can be written again from the files above",
    "checkpoints": "server state by round, from which the run resumes",
    "clients": "private client state (simulation only; on devices it stays on the device)",
}


def class_strip(card: Client, classes: Sequence[int], titled: bool) -> str:
    """Small bars of a client's training examples by class, one slot for each class of the run."""
    counts = dict(card.class_counts)
    if not counts or not classes:
        return NOT_RECORDED
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
    title = ""
    if titled:
        listed = [f"class {label}: {amount}" for label, amount in sorted(counts.items()) if amount]
        title = f"<title>{esc(', '.join(listed[:20]))}{' …' if len(listed) > 20 else ''}</title>"
    held = sum(1 for amount in counts.values() if amount)
    width = 4 * len(slots) - 1
    return (
        f'<svg class="classes" viewBox="0 0 {width} 18" width="{width}" height="18">{title}'
        f'<path class="slots" d="M0 17.5H{width}"/><path d="{bars}"/></svg><small>{held}</small>'
    )


def _cell(text: str, sort: float | None) -> str:
    return f'<td data-s="{"" if sort is None else format(sort, ".6g")}">{text}</td>'


def _client_row(card: Client, entry: History, dot: str, strip: str, extra: Extra) -> str:
    whole = [card.parameters, card.train_examples, card.validation_examples, card.test_examples]
    cells = [_cell(human(whole[0]), whole[0]), f'<td class="left">{strip}</td>']
    cells += [_cell(grouped(number), number) for number in whole[1:]]
    trained = len(entry.rounds_trained)
    cells.append(_cell(str(trained), trained))
    cells += [
        _cell(DASH if value is None else percent(value), value)
        for value in (entry.first, entry.best)
    ]
    final = DASH if entry.final is None else percent(entry.final)
    cells.append(_cell(final, entry.final).replace("<td", '<td class="last"', 1))
    if extra.changes:
        own = extra.changes.get(str(card.client))
        cells.append(_cell(DASH if own is None else change(own), own))
    cells += [
        _cell(DASH if value is None else size(value), value)
        for value in (entry.up_bytes, entry.down_bytes)
    ]
    cells.append(_cell(str(entry.failures), entry.failures))
    model = f'<td class="left"><i class="key {dot}"></i>{esc(card.model)}</td>'
    if extra.tasks:
        model = f'<td class="left">{esc(card.task)} <small>{esc(card.metric)}</small></td>' + model
    return f'<tr title="{esc(card.device)}"><td>{card.client}</td>{model}{"".join(cells)}</tr>'


def _heading(name: str) -> str:
    css = " class=left" if name in ("task", "model", "classes") else ""
    text = name if name == "classes" else f'<button type="button">{name}</button>'
    return f'<th scope="col"{css}>{text}</th>'


def client_table(run: RunData, scope: str) -> str:
    """Return the sortable table with one row for each client."""
    if not run.clients:
        return f"<p class=void>Client cards: {NOT_RECORDED}.</p>"
    past, by_validation = histories(run)
    colours = colour_of_models(run.clients)
    classes = sorted({label for card in run.clients for label, _ in card.class_counts})
    titled = len(run.clients) <= MOST_CLASS_TITLES
    extra = Extra(has_tasks(run), section(section(run.summary, "delta"), "by_client"))
    rows = [
        _client_row(
            card,
            past.get(card.client, History()),
            colours[card.model],
            class_strip(card, classes, titled),
            extra,
        )
        for card in run.clients
    ]
    score = "score" if views(run)[0].task else "accuracy"
    best = (
        f"“best” is the {score} in the client's best validation round"
        if by_validation
        else f"“best” is the highest {score} measured (no validation values, so optimistic)"
    )
    heads = ["id", *(["task"] if extra.tasks else []), "model", "parameters", "classes", "train"]
    heads += ["valid.", "test", "rounds trained", "first", "best", "final"]
    heads += [*(["delta"] if extra.changes else []), "uplink", "downlink", "failures"]
    return (
        f"<p class=note>{esc(scope)}; {best}; {DASH} is not measured. Bars show training examples "
        "by class, each client to its own scale, and the number held. Click a heading to "
        'sort.</p><div class="scroll" tabindex="0"><table class="clients"><thead><tr>'
        f"{''.join(map(_heading, heads))}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def task_table(run: RunData, tasks: Sequence[View]) -> str:
    """Return what came out of every task; "" for a run that one accuracy tells of."""
    if not tasks[0].task:
        return ""
    scores, delta = section(run.summary, "scores"), section(run.summary, "delta")
    rows = ""
    for view in tasks:
        entry = section(scores, view.task)
        table = measured(view.run, view.metric)
        points = curve(table, main_phase(table))
        final, best = points[-1].mean if points else None, entry.get("best")
        by = entry.get("best_round")
        own = section(delta, "by_task").get(view.task)
        cells = [
            str(len(view.run.clients)),
            str(points[-1].clients if points else 0),
            DASH if final is None else percent(final),
            DASH if best is None else f"{percent(best)} <small>round {esc(by)}</small>",
            DASH if own is None else change(own),
        ]
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        names = f'<td class="left">{esc(view.task)}</td><td class="left">{esc(view.metric)}</td>'
        rows += f"<tr>{names}{numbers}</tr>"
    return (
        "<h2>Scores by task</h2><p class=note>Means over the clients of one task, weighted by test "
        f"examples; delta counts its clients alike. {DASH} is not measured, or known when the run "
        'completes.</p><div class="scroll"><table class="models"><thead><tr>'
        '<th class="left">task</th><th class="left">score</th><th>clients</th><th>evaluated</th>'
        f"<th>final</th><th>best</th><th>delta</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def model_table(tasks: Sequence[View]) -> str:
    """Return the last score of every architecture and their mean.

    "" for fewer than two architectures, and for several tasks, whose scores have no mean.
    """
    view = tasks[0]
    run = view.run
    models = list(dict.fromkeys(card.model for card in run.clients))
    table = measured(run, view.metric)
    line = list(placed(table, main_phase(table)).values())
    if len(tasks) > 1 or len(models) < 2 or not line:
        return ""
    label, last = line[-1]
    colours = colour_of_models(run.clients)
    rows, means = "", []
    for model in models:
        clients = [card.client for card in run.clients if card.model == model]
        own = [last[client] for client in clients if client in last]
        mean = weighted_mean(own)
        means += [] if mean is None else [mean]
        cells = f"<td>{len(clients)}</td><td>{len(own)}</td>"
        name = f'<i class="key {colours[model]}"></i>{esc(model)}'
        shown = DASH if mean is None else percent(mean)
        rows += f'<tr><td class="left">{name}</td>{cells}<td>{shown}</td></tr>'
    average = percent(sum(means) / len(means)) if means else DASH
    return (
        f"<h2>{esc(view.title)} by architecture</h2><p class=note>{esc(label)} evaluation; a mean "
        "over an architecture's clients is weighted by test examples, the mean of all counts "
        'architectures alike.</p><div class="scroll"><table class="models"><thead><tr>'
        f'<th class="left">model</th><th>clients</th><th>evaluated</th><th>{esc(view.metric)}</th>'
        f'</tr></thead><tbody>{rows}<tr><td class="left">mean over models</td><td></td><td></td>'
        f"<td>{average}</td></tr></tbody></table></div>"
    )


def failure_table(run: RunData) -> str:
    """Return the failures with their reasons, cut to a readable length."""
    rows = "".join(
        f"<tr><td>{NOT_RECORDED if row.round is None else row.round}</td><td>{esc(row.client)}</td>"
        f'<td class="left">{esc(row.kind)}</td><td class="left reason">'
        f"{esc(row.reason[:MOST_REASON])}{' …' if len(row.reason) > MOST_REASON else ''}</td></tr>"
        for row in run.failures[:MOST_FAILURES]
    )
    more = len(run.failures) - MOST_FAILURES
    note = f"<p class=note>{more} more in failures.csv.</p>" if more > 0 else ""
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr><th>round</th><th>client</th>'
        '<th class="left">kind</th><th class="left">reason</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _value(value: Any) -> str:
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return str(value).lower()
    return "<span class=none>empty</span>" if value == "" else esc(value)


def settings_table(run: RunData) -> str:
    """Every run-config key, in a section that folds."""
    if not run.settings:
        return f"<p class=void>Settings: {NOT_RECORDED}.</p>"
    rows = "".join(
        f"<tr><th scope=row>{esc(key)}</th><td>{_value(run.settings[key])}</td></tr>"
        for key in sorted(run.settings, key=lambda key: ("." in key, key))
    )
    return (
        f"<details><summary>All {len(run.settings)} settings</summary>"
        f'<table class="pairs"><tbody>{rows}</tbody></table></details>'
    )


def provenance(pairs: Sequence[tuple[str, Any]]) -> str:
    """Versions, revision, seed and the like, as a list of terms."""
    items = "".join(
        f"<div><dt>{esc(key)}</dt><dd>{_value(value)}</dd></div>" for key, value in pairs
    )
    return f'<dl class="facts">{items}</dl>'


def file_list(run: RunData) -> str:
    """Return the files of the run directory that exist, each with what it holds."""
    rows = "".join(
        f"<tr><th scope=row>{name}{'/' if (run.directory / name).is_dir() else ''}</th>"
        f"<td>{text}</td></tr>"
        for name, text in FILES.items()
        # The page itself is listed even the first time, so that writing it again changes nothing.
        if name == "report.html" or (run.directory / name).exists()
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'
