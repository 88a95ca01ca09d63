"""Flower's SuperLink, patient with its database: the command `wildflower-superlink`.

SQLite has one writer at a time. Flower waits 5 s for its turn and then answers with status 500.
A SuperNode that gets it drops the answer it has trained for, and the round waits for it until
`round-timeout`; a SuperExec that gets it ends, and its run with it. On a server whose cores or disk
are busy that happens with ten devices. So this one waits nearly as long as those who call it do.

    wildflower-superlink OPTIONS-OF-FLOWER-SUPERLINK

The file needs Flower alone, for Flower's own image runs it too (deploy/compose.yaml).
"""

from __future__ import annotations

import importlib
import sys

PROGRAM = "wildflower-superlink"
WAIT_SECONDS = 25.0
"""For the database. Flower's callers give an answer up after 30 s, and ask again."""

SQL = "flwr.supercore.sql_mixin"
"""Flower's private module that opens the database; `flwr` is pinned to one minor version for it."""
SETTINGS, WAIT = "SQLITE_PRAGMAS", "busy_timeout"


def wait_for_database(seconds: float) -> None:
    """Let this process's SuperLink wait so long for the database; before it is opened.

    Raises
    ------
    AttributeError
        If this version of Flower has the setting elsewhere.
    """
    module = importlib.import_module(SQL)
    settings = dict(getattr(module, SETTINGS))
    if WAIT not in settings:
        raise AttributeError(f"{SQL}.{SETTINGS} has no {WAIT}")
    settings[WAIT] = str(round(1000 * seconds))
    setattr(module, SETTINGS, tuple(settings.items()))


def main() -> int:
    """Run the SuperLink; see the module's text."""
    try:
        wait_for_database(WAIT_SECONDS)
    except AttributeError as error:
        print(f"{PROGRAM}: another version of Flower than was tested: {error}", file=sys.stderr)
        return 2
    from flwr.superlink.cli import flower_superlink

    sys.argv[0] = PROGRAM
    flower_superlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
