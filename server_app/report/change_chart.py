"""The chart of the relative changes against a Local run, client by client."""

from markupsafe import Markup

from server_app.formats import THIN, change
from server_app.records.client_tasks import ClientTask, tasks_in_order
from server_app.records.run_reader import RunRecords, section
from server_app.report.client_bars import Bar, client_bars
from server_app.report.html import figure

COLOURS = 6


def change_by_client(run: RunRecords) -> Markup:
    """Draw one bar a client, coloured by its task; nothing without a comparison."""
    delta = section(run.summary, "delta")
    changes = {int(client): value for client, value in section(delta, "by_client").items()}
    if not changes:
        return Markup("")
    tasks = {client: run.tasks.get(client, ClientTask()) for client in changes}
    order = list(tasks_in_order(tasks))
    colours = {task: f"m{index % COLOURS}" for index, task in enumerate(order)}
    title = f"Change against {delta.get('against')}"
    bars = [
        Bar(client, value, colours[tasks[client].task], f"client {client}: {change(value)}")
        for client, value in changes.items()
    ]
    drawn = client_bars(
        bars, f"{title}, by client", tick=lambda t: f"{t:+.4g}{THIN}%", axis="axis", order="by id",
        least=1.0,
    )  # fmt: skip
    note = "Each client's last score, relative to its score in the Local run."
    return figure(title, note, [(f"k bar {colours[t]}", t) for t in order], drawn)
