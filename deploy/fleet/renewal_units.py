"""systemd's timer that renews a fleet's certificate, see `deploy.fleet.renewal`."""

from __future__ import annotations

from pathlib import Path

from deploy.fleet.description import Fleet
from deploy.fleet.units import ENVIRONMENT, USER, hardening, quoted

_SERVICE = """\
[Unit]
Description=Wildflower fleet {name}, renewal of its certificate
Wants=network-online.target
After=network-online.target time-sync.target

[Service]
Type=oneshot
User={user}
WorkingDirectory={directory}
Environment={home}
ExecStart={command}
TimeoutStartSec=300
ReadWritePaths={directory}
{hardening}"""

_TIMER = """\
[Unit]
Description=Wildflower fleet {name}, daily look at its certificate

[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
"""


def renewal_units(
    fleet: Fleet, *, environment: Path = ENVIRONMENT, user: str = USER
) -> dict[str, str]:
    """Return a service that renews the certificate where it is time, and its timer, by file name.

    The service runs as the SuperLink does, so that it may end it, and systemd starts it again.
    """
    name = f"wildflower-{fleet.name}-renew"
    command = [str(environment / "bin" / "wildflower"), "fleet", "renew", str(fleet.source)]
    service = _SERVICE.format(
        name=fleet.name,
        user=user,
        directory=quoted(str(fleet.directory)),
        home=quoted(f"HOME={fleet.directory}"),
        command=" ".join(quoted(word, command=True) for word in command),
        hardening=hardening(),
    )
    return {f"{name}.service": service, f"{name}.timer": _TIMER.format(name=fleet.name)}
