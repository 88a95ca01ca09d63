"""The key figures of the report, and what stands behind them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from server_app import formats
from server_app.formats import NOT_RECORDED, change
from server_app.records.basis import FEW_EXAMPLES, caveats
from server_app.records.client_tasks import ClientTask
from server_app.records.curves import TaskView, task_views
from server_app.records.privacy_ledger import SEED, SEEDED
from server_app.records.relative_change import some_left_out
from server_app.records.run_reader import RunRecords, section
from server_app.records.spending import flops_per_round
from server_app.report.html import duration, grouped, human, percent, render, size, unknown

TILES_A_ROW = 4


class Figure(NamedTuple):
    """A tile: label, value (escaped unless Markup), explanation, and what `basis` says of it."""

    label: str
    value: str
    text: str
    caveat: str = ""


TILES = """\
<dl class="keys">
{% for tile in figures %}
<div><dt>{{ tile.label }}</dt><dd{% if loop.first %} class=lead{% endif %}>{{ tile.value }}</dd>
{#- #}<p>{{ tile.text }}</p>
{%- if tile.caveat %}<p class="but">{{ tile.caveat }}</p>{% endif %}</div>
{% endfor %}
{% for _ in range(spare) %}<div aria-hidden="true"></div>{% endfor %}
</dl>"""


def scope(run: RunRecords, view: TaskView | None = None) -> str:
    """Say how many clients stand behind a mean, whose model and which test split.

    Without a view it is about all clients of the run.
    """
    accuracy = section(run.summary, "accuracy")
    known: Any = len(run.clients) or (run.summary or {}).get("clients")
    evaluated = accuracy.get("clients_evaluated")
    if view is not None and view.task:
        evaluated, known = view.points[-1].clients if view.points else 0, len(view.run.clients)
    elif evaluated is None or has_tasks(run):
        evaluated = sum(each.points[-1].clients for each in task_views(run) if each.points)
    split = accuracy.get("test_split") or run.settings.get("test-split")
    model = accuracy.get("model")
    return ", ".join(
        [
            f"{evaluated} of {'?' if known is None else known} clients",
            f"{model} models" if model else "model kind not recorded",
            f"{split} test split" if split else "test split not recorded",
        ]
    )


def has_tasks(run: RunRecords) -> bool:
    """Say whether the clients name anything else than what a run without tasks does."""
    return any(card.task_text != ClientTask.task for card in run.clients)


def key_figures(run: RunRecords, tasks: Sequence[TaskView]) -> Markup:
    """Return the tiles below the header: scores, change against a Local run, costs."""
    plain = not tasks[0].task
    figures = _accuracy_figures(run, tasks[0]) if plain else [_task_figure(run, t) for t in tasks]
    figures += _server_figure(run) + _delta_figure(run) + _privacy_figure(run) + _cost_figures(run)
    # Empty tiles fill the last row, whose ground would show as one dark bar otherwise.
    return render(TILES, figures=figures, spare=-len(figures) % TILES_A_ROW)


def _accuracy_figures(run: RunRecords, view: TaskView) -> list[Figure]:
    who = scope(run)
    accuracy = section(run.summary, "accuracy")
    of_final, of_best = caveats(run, view.task, accuracy)
    if run.summary is None:
        latest = view.points[-1] if view.points else None
        spread = f"± {formats.percent(latest.std)}" if latest else percent(None)
        return [
            Figure("latest accuracy", percent(latest.mean if latest else None),
                   f"{latest.label}; {who}" if latest else "no evaluation so far", of_final),
            Figure("best accuracy", unknown(NOT_RECORDED), "chosen when the run completes"),
            Figure("spread over clients", spread, "one standard deviation, clients alike"),
            Figure("worst client", unknown(NOT_RECORDED), "written when the run completes"),
        ]  # fmt: skip
    mean, std = accuracy.get("mean_over_clients"), accuracy.get("std_over_clients")
    spread = (
        percent(mean)
        if mean is None or std is None
        else f"{formats.percent(mean)} ± {100 * std:.1f}"
    )
    return [
        Figure("final accuracy", percent(accuracy.get("final")), f"weighted by examples; {who}",
               of_final),
        Figure("best accuracy", percent(accuracy.get("best")), _best_rule(accuracy, "accuracy"),
               of_best),
        Figure("mean ± std over clients", spread, f"every client counts alike; {who}", of_final),
        Figure("worst client", percent(accuracy.get("worst_client")), _about_worst(view)),
    ]  # fmt: skip


def _about_worst(view: TaskView) -> str:
    """Say on how few examples the lowest accuracy may rest."""
    last = list(view.line.values())[-1][1] if view.line else {}
    value, examples = min(last.values(), default=(None, None))
    few = value is not None and examples is not None and examples < FEW_EXAMPLES
    return "lowest final accuracy" + (f", on {examples:.0f} test examples" if few else "")


def _task_figure(run: RunRecords, view: TaskView) -> Figure:
    """Return one task's last score and, of a completed run, its best one."""
    entry = section(section(run.summary, "scores"), view.task)
    of_final, of_best = caveats(run, view.task, entry)
    if not entry:
        latest = view.points[-1] if view.points else None
        text = f"{latest.label}; {scope(run, view)}" if latest else "no evaluation so far"
        mean = percent(latest.mean if latest else None)
        return Figure(f"latest {view.name}", mean, text, of_final)
    text = f"weighted by examples; {scope(run, view)}"
    if entry.get("best") is not None:
        text += f"; best {formats.percent(entry['best'])} in {_best_rule(entry, view.metric)}"
        text += f", {of_best}" if of_best else ""
    return Figure(f"final {view.name}", percent(entry.get("final")), text, of_final)


def _server_figure(run: RunRecords) -> list[Figure]:
    """Return the score of the server's own model, if there is one."""
    found = section(run.summary, "server")
    if found.get("final") is None:
        return []
    metric = str(found.get("metric"))
    text = f"after round {found.get('final_round')}, on {grouped(found.get('examples'))} examples: "
    text += f"{found.get('on')}; best {formats.percent(found.get('best'))} in "
    text += _best_rule(found, metric)
    return [Figure(f"server's model, {metric}", percent(found["final"]), text)]


def _delta_figure(run: RunRecords) -> list[Figure]:
    """Return the mean relative change against a Local run, if there is one."""
    delta = section(run.summary, "delta")
    if delta.get("percent") is None:
        return []
    by_task = section(delta, "by_task")
    text = f"mean relative change of {delta.get('clients_compared')} clients' last scores"
    if len(by_task) > 1:
        text += ": " + ", ".join(f"{task} {change(value)}" for task, value in by_task.items())
    left_out = section(delta, "left_out")
    if left_out:
        text += "; not in it: " + some_left_out(left_out)
    return [Figure(f"delta against {delta.get('against')}", change(delta["percent"]), text)]


def _privacy_figure(run: RunRecords) -> list[Figure]:
    """Return epsilon of the run, if clients added noise."""
    privacy = section(run.summary, "privacy")
    if privacy.get("epsilon") is None:
        return []
    per_round = privacy.get("epsilon_round")
    text = (
        f"at delta {privacy.get('delta'):g}, {privacy.get('unit')}; "
        f"{'not recorded' if per_round is None else format(per_round, '.4g')} in a round; not "
        f"covered: {privacy.get('not_covered')}"
    )
    caveat = SEEDED if SEED in privacy.get("noise_from", ()) else ""
    return [Figure("privacy, epsilon", f"{privacy['epsilon']:.4g}", text, caveat)]


def _best_rule(entry: dict[str, Any], metric: str) -> str:
    if entry.get("best") is None:
        return "no evaluation, no choice"
    rule, number = entry.get("best_by"), entry.get("best_round")
    place = "round not recorded" if number is None else f"round {number}"
    if entry.get("best_phase") == "final":
        place = f"closing evaluation after {place}"
    if rule == "validation":
        return f"{place}, chosen by highest validation {metric}; value on the test split"
    if rule == "test":
        return f"{place}, chosen by highest test {metric} itself, so optimistic"
    return f"{place}, rule of choice not recorded"


def _cost_figures(run: RunRecords) -> list[Figure]:
    traffic, time = section(run.summary, "traffic"), section(run.summary, "time")
    up, down = traffic.get("uplink_bytes"), traffic.get("downlink_bytes")
    extra = [traffic.get(f"evaluation_{way}_bytes") for way in ("uplink", "downlink")]
    evaluation = (
        ""
        if None in extra
        else f"; evaluation {formats.size(extra[0])} up, {formats.size(extra[1])} down"
    )
    failed = (run.summary or {}).get("clients_failed")
    if failed is None and (len(run.rounds) or len(run.failures)):  # on record once a round is
        failed = run.clients_failed
    share = time.get("efficiency")
    scalars = [traffic.get(f"{way}_scalars_per_round") for way in ("uplink", "downlink")]
    return [
        Figure("scalars up / round", human(scalars[0]), f"{_exact(scalars[0])}all participants"),
        Figure("scalars down / round", human(scalars[1]), f"{_exact(scalars[1])}all participants"),
        Figure("training FLOPs / round", human(flops_per_round(run)),
         "operations of all clients that trained, fullest round"),
        Figure("bytes up, down", _two(up, down), f"training, whole run{evaluation}"),
        Figure("time", duration(time.get("total_s")), _time_note(time)),
        Figure("client compute", duration(time.get("client_compute_s")), "summed over clients"),
        Figure("efficiency", unknown(NOT_RECORDED) if share is None else percent(share, 0),
         "client compute / (wall time \u00d7 workers)"),
        Figure("failures", grouped(failed),
         f"client rounds left out; rounds recorded: {len(run.rounds) or 'none'}"),
    ]  # fmt: skip


def _exact(number: float | None) -> str:
    return "" if number is None else f"{formats.grouped(number)}, "


def _two(up: float | None, down: float | None) -> str:
    if up is None and down is None:
        return unknown(NOT_RECORDED)
    return Markup("{} <small>↑</small> {} <small>↓</small>").format(size(up), size(down))


def _time_note(time: dict[str, Any]) -> str:
    median = time.get("round_s_median")
    return "whole run" + ("" if median is None else f"; median round {formats.duration(median)}")
