"""The chart of the relative changes against a Local run, client by client."""

from server_app.records.scores import ClientTask, tasks_in_order
from server_app.report.bars import Bar, client_bars
from server_app.report.data import RunData, section
from server_app.report.svg import change, figure
from server_app.report.tasks import client_tasks

COLOURS = 6


def change_by_client(run: RunData) -> str:
    """Draw one bar a client, coloured by its task; "" without a comparison."""
    delta = section(run.summary, "delta")
    changes = {int(client): value for client, value in section(delta, "by_client").items()}
    if not changes:
        return ""
    cards = client_tasks(run)
    tasks = {client: cards.get(client, ClientTask()).task for client in changes}
    order = list(tasks_in_order({i: ClientTask(task) for i, task in tasks.items()}))
    colours = {task: f"m{index % COLOURS}" for index, task in enumerate(order)}
    title = f"Change against {delta.get('against')}"
    bars = [
        Bar(client, value, colours[tasks[client]], f"client {client}: {change(value)}")
        for client, value in changes.items()
    ]
    drawn = client_bars(
        bars, f"{title}, by client", tick=lambda t: f"{t:+.4g}\u202f%", axis="axis", order="by id",
        least=1.0,
    )  # fmt: skip
    note = "Each client's last score, relative to its score in the Local run."
    return figure(title, note, [(f"k bar {colours[t]}", t) for t in order], drawn)
