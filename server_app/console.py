"""What a run prints: the table of clients, one line a round, the final table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from data.tasks import task_name
from server_app import formats, log
from server_app.idle_keys import idle_keys
from server_app.records.client_tasks import (
    ClientTask,
    TaskScore,
    is_plain,
    named_clients,
    tasks_in_order,
)
from server_app.records.privacy_ledger import NOT_COVERED, SEED, SEEDED
from strategies.base.messages import ClientInfo
from strategies.base.options import option_keys
from strategies.base.run_config import RunConfig

if TYPE_CHECKING:
    from strategies.base.server import ServerScores

SHOWN_CLIENTS = 20
say = log.say


def settings(run: RunConfig, remarks: Iterable[str] = ()) -> str:
    """Return what is about to run: the method, its options, and what differs from defaults."""
    method, values = run.chosen_method, run.flat()
    defaults = option_keys(RunConfig)
    own = {k: v for k, v in values.items() if k.startswith(method.name + ".")}
    changed = {k: v for k, v in values.items() if defaults.get(k, v) != v}
    lines = [f"{method.name}: {method.summary}"]
    for title, shown in (("options", own), ("settings other than defaults", changed)):
        if shown:
            lines.append(f"  {title}: " + ", ".join(f"{k}={v!r}" for k, v in shown.items()))
    warnings = [f"warning: {text}" for text in remarks]
    if idle := idle_keys(run):
        warnings.append(f"warning: without effect in this run: {', '.join(idle)}")
    if run.keep_payloads:
        warnings.append(
            f"warning: keep-payloads = {run.keep_payloads}: what clients send is kept in the run's "
            "directory; it tells of their data, so keep it to yourself"
        )
    warnings += _privacy_warnings(run)
    return "\n".join([*lines, *_over_rounds(run), *warnings])


def _privacy_warnings(run: RunConfig) -> list[str]:
    """Return what clipping and noise do not do."""
    if run.privacy.noisy:
        return [f"warning: privacy: epsilon does not cover {NOT_COVERED}"]
    if run.privacy.clip_norm:
        return ["warning: privacy.clip-norm without privacy.noise-multiplier hides nothing"]
    return []


def _over_rounds(run: RunConfig) -> list[str]:
    """Return what there is to say of the learning rate and the optimiser over rounds."""
    lines, training, last = [], run.training, run.num_rounds
    if run.lr_by_round.varies:
        shown = [*range(1, min(last, 4)), last] if last > 1 else [1]
        rates = ", ".join(f"{training.lr * run.lr_by_round.share(n):.3g} in {n}" for n in shown)
        lines.append(f"  learning rate by round: {rates}")
    if run.keep_optimizer and training.optimizer == "sgd" and not training.momentum:
        lines.append(
            "warning: keep-optimizer = true keeps nothing here: SGD without momentum has no state; "
            "set momentum, or another optimizer"
        )
    return lines


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned text table; numbers to the right, texts to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [
        all(row[i].replace(".", "").replace(",", "").replace("-", "").isdigit() for row in cells)
        for i in range(len(header))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [list(header), *cells]
    ]
    return "\n".join("  " + line for line in lines)


def clients_table(infos: Mapping[int, ClientInfo]) -> str:
    """Return the table of clients, printed before round 1; with their tasks if there are any."""
    shown = [infos[i] for i in sorted(infos)[:SHOWN_CLIENTS]]
    columns: dict[str, list[object]] = {
        "client": [c.client_id for c in shown],
        **_task_column(infos, shown),
        "model": [c.model for c in shown],
        "parameters": [f"{c.parameters:,}" for c in shown],
        "width": [f"{c.raw_dim}-{c.feature_dim}" for c in shown],
        "classes": [f"{len(c.classes)} of {c.num_classes}" for c in shown],
        "train": [c.train_examples for c in shown],
        "val": [c.validation_examples for c in shown],
        "test": [c.test_examples for c in shown],
        "device": [c.device for c in shown],
    }
    text = table(list(columns), zip(*columns.values(), strict=True))
    hidden = len(infos) - len(shown)
    return text + (f"\n  and {hidden} more, see clients.csv" if hidden else "")


def data_lines(infos: Mapping[int, ClientInfo]) -> list[str]:
    """Return what clients read their own files as and left out, a line for each who differ."""
    readers: dict[str, list[int]] = {}
    for client in sorted(infos):
        if infos[client].data_notes:
            readers.setdefault(infos[client].data_notes, []).append(client)
    lines = []
    for notes, clients in list(readers.items())[:SHOWN_CLIENTS]:
        who = "all clients" if len(clients) == len(infos) else named_clients(clients)
        lines.append(f"  data of {who}: {notes}")
    hidden = len(readers) - len(lines)
    return lines + [f"  and {hidden} more, see clients.csv"] * bool(hidden)


def _task_column(
    infos: Mapping[int, ClientInfo], shown: Sequence[ClientInfo]
) -> dict[str, list[object]]:
    """Return the column of tasks; none where all clients learn what a run without tasks does."""
    plain = all(info.task == ClientTask().task for info in infos.values())
    return {} if plain else {"task": [info.task for info in shown]}


def percent(value: float | None) -> str:
    """Return 0.8312 as "83.12 %", None as "not evaluated"."""
    return formats.percent(value, 2, " ")


def human(number: float) -> str:
    """Return 5120 as "5.12k"."""
    return formats.human(number, space="")


def round_scores(latest: Sequence[TaskScore], best: Mapping[str, float]) -> str:
    """Return what a round's line says of its evaluation.

    Parameters
    ----------
    latest : sequence of TaskScore
        The means of the round, `Recorder.latest`.
    best : Mapping of str to float
        The mean of the best round so far by task, `Recorder.best`.
    """
    if all(score.mean is None for score in latest):
        return "not evaluated"
    if len(latest) == 1:
        (only,) = latest
        return (
            f"{only.metric} {percent(only.mean)} "
            f"(best {percent(best.get(only.task))}, {only.clients} evaluated)"
        )
    return "  ".join(f"{s.task} {s.metric} {percent(s.mean)} ({s.clients})" for s in latest)


def server_scores(scores: ServerScores | None) -> str:
    """Return what a round's line says of the server's own model; nothing where it has none."""
    if scores is None:
        return ""
    return "  server " + ", ".join(f"{n} {percent(v)}" for n, v in sorted(scores.values.items()))


def final_table(
    infos: Mapping[int, ClientInfo], accuracy: Mapping[int, float], trained: Mapping[int, int]
) -> str:
    """Return each client's last main score with its own model, worst clients included.

    `accuracy` holds main scores, as `Recorder.accuracy` does; where not all of them are
    accuracies of one task, the table names task and metric.
    """
    shown = [infos[i] for i in sorted(infos)[:SHOWN_CLIENTS]]
    tasks = {i: ClientTask(task_name(info.task), info.metric) for i, info in infos.items()}
    plain = is_plain(tasks_in_order(tasks))
    scores = [percent(accuracy.get(c.client_id)) for c in shown]
    if not plain:
        scores = [f"{c.metric} {score}" for c, score in zip(shown, scores, strict=True)]
    columns: dict[str, list[object]] = {
        "client": [c.client_id for c in shown],
        **_task_column(infos, shown),
        "model": [c.model for c in shown],
        "rounds trained": [trained.get(c.client_id, 0) for c in shown],
        "test examples": [c.test_examples for c in shown],
        "accuracy" if plain else "score": [*scores],
    }
    text = table(list(columns), zip(*columns.values(), strict=True))
    hidden = len(infos) - len(shown)
    return text + (f"\n  and {hidden} more, see metrics.csv" if hidden else "")


def closing_lines(summary: Mapping[str, Any]) -> str:
    """Return the last lines of a run: scores with what they rest on, traffic, time.

    A run of one task measured by accuracy shows accuracies, others the scores of every task. A
    comparison with a Local run that was asked for is shown, or why there is none.
    """
    traffic, time = summary["traffic"], summary["time"]
    scores = summary.get("scores") or {}
    plain = is_plain({task: entry["metric"] for task, entry in scores.items()})
    lines = _accuracy_lines(summary) if plain else _score_lines(summary)
    lines += _server_lines(summary) + _delta_lines(summary)
    lines += _privacy_lines(summary)
    if out := summary.get("quarantined"):
        lines.append(f"warning: in quarantine, refused again and again: {named_clients(out)}")
    lines += [
        f"a round moves  {human(traffic['uplink_scalars_per_round'])} scalars up, "
        f"{human(traffic['downlink_scalars_per_round'])} down",
        f"rounds took    {time['total_s']:.1f} s, client failures: {summary['clients_failed']}",
    ]
    return "\n".join(lines)


def _accuracy_lines(summary: Mapping[str, Any]) -> list[str]:
    accuracy = summary["accuracy"]
    scope = (
        f"{accuracy['clients_evaluated']} of {summary['clients']} clients, "
        f"{accuracy['model']} models, {accuracy['test_split']} test split"
    )
    (task,) = summary.get("scores") or [""]
    basis = _basis(summary, task)
    lines = [
        f"final accuracy {percent(accuracy['final'])} ({scope})",
        *_caveat_lines(basis),
        f"best accuracy  {percent(accuracy['best'])}{_chosen(accuracy, 'accuracy', basis)}",
    ]
    if (trained := accuracy.get("trained")) is not None:
        lines.insert(-1, f"after training {percent(trained)} (the last round's participants)")
    over_models = accuracy["mean_over_models"]
    if accuracy["model"] == "global" and over_models is not None:
        text = f"mean of models {percent(over_models)} (every architecture counts alike)"
        lines.insert(1, text)
    return lines


def _score_lines(summary: Mapping[str, Any]) -> list[str]:
    accuracy, scores = summary["accuracy"], summary["scores"]
    evaluated = sum(entry["clients"] for entry in scores.values())
    lines = [
        f"final scores of {evaluated} of {summary['clients']} clients ({accuracy['model']} models, "
        f"{accuracy['test_split']} test split), each task by itself:"
    ]
    names = {task: f"{task} {entry['metric']}" for task, entry in scores.items()}
    width = max(map(len, names.values()))
    for task, entry in scores.items():
        plural = "client" if entry["clients"] == 1 else "clients"
        lines.append(
            f"  {names[task]:<{width}}  {percent(entry['final'])} "
            f"({entry['clients']} {plural}; best {percent(entry['best'])}"
            f"{_chosen(entry, entry['metric'], _basis(summary, task))})"
        )
        lines += [f"  {line}" for line in _caveat_lines(_basis(summary, task))]
    return lines


def _basis(summary: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """Return what a task's numbers rest on; nothing in the summary of an older version."""
    found: Mapping[str, Any] = (summary.get("rests_on") or {}).get(task, {})
    return found


def _caveat_lines(basis: Mapping[str, Any]) -> list[str]:
    """Return what a reader would not think of a final number, see `records.basis`."""
    return [f"  note: {'; '.join(basis['caveats'])}"] if basis.get("caveats") else []


def _chosen(entry: Mapping[str, Any], metric: str, basis: Mapping[str, Any]) -> str:
    if entry["best"] is None:
        return ""
    among = f", {basis['best_caveat']}" if basis.get("best_caveat") else ""
    return f" in round {entry['best_round']}, chosen by {entry['best_by']} {metric}{among}"


def _server_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what the server's own model reached, if it was scored."""
    found = summary.get("server")
    if not found:
        return []
    parts = [f"{n} {percent(v)}" for n, v in found["finals"].items() if n != found["metric"]]
    return [
        f"server's model {percent(found['final'])} {found['metric']} after round "
        f"{found['final_round']} on {found['examples']:,} examples ({found['on']}; best "
        f"{percent(found['best'])} in round {found['best_round']}, chosen by itself)",
        *[f"  {', '.join(parts)}"] * bool(parts),
    ]


def _privacy_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what the clients' noise comes to, if there was any."""
    privacy = summary.get("privacy") or {}
    if "epsilon" not in privacy:
        return []
    lines = [
        f"privacy        epsilon {privacy['epsilon']:.4g} for the run, "
        f"{privacy['epsilon_round']:.4g} for a round, at delta {privacy['delta']:g} "
        f"({privacy['unit']}; {privacy['messages_of_a_client']} messages)"
    ]
    if SEED in privacy["noise_from"]:
        lines.append(f"  note: {SEEDED}")
    return lines


def _delta_lines(summary: Mapping[str, Any]) -> list[str]:
    if summary.get("delta_reason"):
        return [f"warning: no delta: {summary['delta_reason']}"]
    delta = summary.get("delta")
    if not delta:
        return []
    compared = f"{delta['clients_compared']} of {summary['clients']} clients"
    by_task = ", ".join(f"{task} {change:+.2f} %" for task, change in delta["by_task"].items())
    tasks = f"; {by_task}" if len(delta["by_task"]) > 1 else ""
    change = f"{delta['percent']:+.2f} % against {delta['against']}"
    lines = [f"delta          {change} ({compared}{tasks})"]
    left_out = list(delta["left_out"].items())[:SHOWN_CLIENTS]
    return lines + [f"  client {client} is not in it: {reason}" for client, reason in left_out]
