"""Ends a fleet's processes when their parent is gone, whatever ended it.

The parent holds the other end of this process's standard input. When that closes without a
farewell, the parent did not end in order (`kill -9`, out of memory), and its processes are ended by
their mark. This process carries no mark itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.flower.processes import STOPPING, end_family

FAREWELL = b"done"


class Watchdog:
    """The parent's side.

    Parameters
    ----------
    variable : str
        The mark of what is to end with this process.
    first : sequence of str
        The programs that are ended first, in this order.
    """

    def __init__(self, variable: str, first: Sequence[str]) -> None:
        root = str(Path(__file__).absolute().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "deploy.fleet.watchdog", variable, *first],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=root, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )  # fmt: skip

    def dismiss(self) -> None:
        """Say that everything ended in order."""
        try:
            self._child.communicate(FAREWELL, timeout=10.0)
        except (subprocess.TimeoutExpired, OSError):
            self._child.kill()
            self._child.wait(10.0)


def main(variable: str, first: Sequence[str]) -> None:
    """Wait for the parent's end."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() != FAREWELL:
        end_family(variable, set(), first=first)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
