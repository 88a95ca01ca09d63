"""The text of systemd units: one process, confined, and started again whatever ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from strategies.base.options import ConfigError

STATE = Path("/var/lib")
"""systemd makes a service's directory here by itself."""

ENVIRONMENT = Path("/opt/wildflower")
"""The virtual environment in which wildflower is installed on a machine that runs units."""

USER = "wildflower"
STOP_SECONDS = 30.0
"""How long a service may take to end before it is killed."""

# Left out on purpose: MemoryDenyWriteExecute (code made at run time by torch), PrivateDevices and
# ProtectClock (both close the devices of a GPU), SystemCallFilter (differs between CUDA versions).
_HARDENING = """\
NoNewPrivileges=true
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
ProtectProc=invisible
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectKernelLogs=true
ProtectControlGroups=true
ProtectHostname=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
SystemCallArchitectures=native
RemoveIPC=true
UMask=0077
"""

_UNIT = """\
[Unit]
Description={description}
Wants=network-online.target
After={after}
RequiresMountsFor={mounts}
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={home}
{environment}
ExecStart={command}
Restart=always
RestartSec={restart:g}
KillMode=mixed
TimeoutStopSec={stop:g}
MemoryMax={memory}
OOMPolicy={oom}
{places}
{hardening}
[Install]
WantedBy=multi-user.target
"""


def unit_text(
    description: str,
    command: Sequence[str],
    home: Path,
    variables: Mapping[str, str],
    *,
    environment: Path = ENVIRONMENT,
    user: str = USER,
    restart_seconds: float = 2.0,
    stop_seconds: float = STOP_SECONDS,
    writable: Sequence[str] = (),
    needed: Sequence[str] = (),
    low_port: bool = False,
    memory: str = "50%",
    starts_apps: bool = False,
) -> str:
    """Return the text of a unit.

    Parameters
    ----------
    description : str
        What `systemctl status` shows.
    command : Sequence of str
        What runs; a bare name is one of the virtual environment's commands.
    home : Path
        Home and working directory of the process, and with /tmp the only place where it writes.
    variables : Mapping of str to str
        Its environment, besides HOME, PATH and where Wildflower caches data.
    environment : Path
        The virtual environment.
    user : str
        Who runs it.
    restart_seconds : float
        Pause before it is started again.
    stop_seconds : float
        How long it may take to end before it is killed.
    writable, needed : Sequence of str
        Further directories that it may write, and that must be mounted before it starts.
    low_port : bool
        Whether it may listen below port 1024.
    memory : str
        How much memory it may hold with all that it starts, of the machine's or in systemd's units.
        What a stranger or a broken app makes it hold beyond that ends it and nothing else.
    starts_apps : bool
        Whether an app that holds too much ends alone; its parent then says that it has ended.

    Raises
    ------
    ConfigError
        For text that a unit cannot carry.
    """
    program = command[0] if command[0].startswith("/") else str(environment / "bin" / command[0])
    complete = {
        # Caches of libraries go there too; nothing else of the disk can be written.
        "HOME": str(home),
        "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "WILDFLOWER_CACHE": str(home / "cache"),
        **variables,
    }
    places = "ReadWritePaths=" + _words([str(home), *writable])
    if home.is_relative_to(STATE):
        places = (
            f"StateDirectory={_words([str(home.relative_to(STATE))])}\nStateDirectoryMode=0700\n"
            + places
        )
    return _UNIT.format(
        description=_escape(description),
        after="network-online.target time-sync.target",
        mounts=_words([str(home), *writable, *needed]),
        user=user,
        home=_escape(str(home)),
        environment=_assignments(complete),
        command=_words([program, *command[1:]], command=True),
        restart=restart_seconds,
        stop=stop_seconds,
        memory=memory,  # here % is no sign of a specifier
        oom="continue" if starts_apps else "stop",
        places=places,
        hardening=hardening("CAP_NET_BIND_SERVICE" if low_port else ""),
    )


def hardening(capabilities: str = "") -> str:
    """Return the lines that confine a service, which keeps no more than these capabilities."""
    return _HARDENING.format(capabilities=capabilities)


def _assignments(variables: Mapping[str, str]) -> str:
    return "\n".join(f"Environment={_words([f'{k}={v}'])}" for k, v in variables.items())


def _words(words: Sequence[str], command: bool = False) -> str:
    """Quote words as systemd reads them; in commands a dollar sign is doubled too."""
    return " ".join(quoted(word, command=command) for word in words)


def quoted(word: str, *, command: bool = False) -> str:
    """Quote a word as systemd reads it; of a command, a dollar sign is doubled too."""
    word = word.replace("$", "$$") if command else word
    if word and not set(word) & set(" \t'\"\\;"):
        return _escape(word)
    return '"' + _escape(word.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escape(text: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{text!r}: a systemd unit cannot carry this text")
    return text.replace("%", "%%")
