"""How a fleet is, as `wildflower fleet` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.fleet.registrations import Registered
from deploy.fleet.remote import Known
from deploy.fleet.specs import SUPEREXEC, SUPERLINK
from deploy.fleet.status import ONLINE, State, health
from server_app.console import table


def status_table(
    state: State, elsewhere: Mapping[str, Known], said: Mapping[str, Registered] | None = None
) -> str:
    """Show the processes here, and devices elsewhere as the SuperLink knows them.

    With what devices `said` of themselves at their last registration, by name.
    """
    fleet = state.fleet
    order = [SUPERLINK, SUPEREXEC, *(device.name for device in fleet.devices)]
    models = {device.name: device.model for device in fleet.devices}
    rows: list[tuple[Any, ...]] = [
        (
            p.name,
            p.pid or "",
            p.port or "",
            health(fleet, p),
            "",
            models.get(p.name, ""),
            p.restarts,
            p.log,
        )
        for p in sorted(state.processes, key=lambda p: order.index(p.name))
    ]
    if not rows:  # with units or containers it is known that the SuperLink answers, no more
        others = "run by systemd or containers, which have its log"
        rows.append((SUPERLINK, "", fleet.server.port, ONLINE, "", "", "", others))
    rows += [
        (name, "", "", known.status, known.seen, models[name], "", "on its machine")
        for name, known in elsewhere.items()
    ]
    columns = ("process", "pid", "port", "health", "last seen", "model", "restarts", "log")
    words = [
        (device.name, said[device.name].model, said[device.name].machine)
        for device in fleet.devices
        if said and device.name in said
    ]
    told = "\n\n" + table(("device", "model", "said at its last registration"), words)
    return table(columns, rows) + told * bool(words)
