"""The tables of the report: clients, failures, settings and files."""

from collections.abc import Sequence
from typing import Any

from server_app.report.charts import colour_of_models
from server_app.report.data import Client, RunData
from server_app.report.stats import (
    History,
    histories,
    main_phase,
    measured,
    placed,
    weighted_mean,
)
from server_app.report.svg import NOT_RECORDED, esc, grouped, human, percent, size

MOST_CLASS_BARS = 40
MOST_FAILURES = 200
MOST_REASON = 600
#: Above this many clients the class strips lose their hover text, to keep the page small.
MOST_CLASS_TITLES = 200
DASH = "&ndash;"

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


def _client_row(card: Client, entry: History, dot: str, strip: str) -> str:
    whole = [card.parameters, card.train_examples, card.validation_examples, card.test_examples]
    cells = [_cell(human(whole[0]), whole[0]), f'<td class="left">{strip}</td>']
    cells += [_cell(grouped(number), number) for number in whole[1:]]
    trained = len(entry.rounds_trained)
    cells.append(_cell(str(trained), trained))
    cells += [
        _cell(DASH if value is None else percent(value), value)
        for value in (entry.first, entry.best, entry.final)
    ]
    cells += [
        _cell(DASH if value is None else size(value), value)
        for value in (entry.up_bytes, entry.down_bytes)
    ]
    cells.append(_cell(str(entry.failures), entry.failures))
    model = f'<td class="left"><i class="key {dot}"></i>{esc(card.model)}</td>'
    return f'<tr title="{esc(card.device)}"><td>{card.client}</td>{model}{"".join(cells)}</tr>'


def client_table(run: RunData, scope: str) -> str:
    """Return the sortable table with one row for each client."""
    if not run.clients:
        return f"<p class=void>Client cards: {NOT_RECORDED}.</p>"
    past, by_validation = histories(run)
    colours = colour_of_models(run.clients)
    classes = sorted({label for card in run.clients for label, _ in card.class_counts})
    titled = len(run.clients) <= MOST_CLASS_TITLES
    rows = [
        _client_row(
            card,
            past.get(card.client, History()),
            colours[card.model],
            class_strip(card, classes, titled),
        )
        for card in run.clients
    ]
    best = (
        "“best” is the accuracy in the client's best validation round"
        if by_validation
        else "“best” is the highest accuracy measured (no validation values, so optimistic)"
    )
    heads = ["id", "model", "parameters", "classes", "train", "valid.", "test", "rounds trained"]
    heads += ["first", "best", "final", "uplink", "downlink", "failures"]
    head = "".join(
        f'<th scope="col"{" class=left" if name in ("model", "classes") else ""}>'
        + (name if name == "classes" else f'<button type="button">{name}</button>')
        + "</th>"
        for name in heads
    )
    return (
        f"<p class=note>{esc(scope)}; {best}; {DASH} is not measured. Bars show training examples "
        "by class, each client to its own scale, and the number held. Click a heading to "
        'sort.</p><div class="scroll" tabindex="0"><table class="clients"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def model_table(run: RunData) -> str:
    """Return the last accuracy of every architecture and their mean; "" for fewer than two."""
    models = list(dict.fromkeys(card.model for card in run.clients))
    table = measured(run, "accuracy")
    line = list(placed(table, main_phase(table)).values())
    if len(models) < 2 or not line:
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
        f"<h2>Accuracy by architecture</h2><p class=note>{esc(label)} evaluation; a mean over an "
        "architecture's clients is weighted by test examples, the mean of all counts architectures "
        'alike.</p><div class="scroll"><table class="models"><thead><tr><th class="left">model</th>'
        "<th>clients</th><th>evaluated</th><th>accuracy</th></tr></thead>"
        f'<tbody>{rows}<tr><td class="left">mean over models</td><td></td><td></td>'
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
