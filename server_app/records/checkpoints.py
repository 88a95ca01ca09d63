"""Server checkpoints: one file a round, the newest few kept, damaged ones passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strategies.base.round_files import round_file, rounds_in, set_aside
from strategies.base.state import (
    DamagedStateError,
    StateError,
    load_state,
    read_about,
    save_state,
)


class Checkpoints:
    """The server's states by round, in `<run>/checkpoints/`.

    Parameters
    ----------
    directory : Path
        Where the files are.
    keep : int
        How many of the newest to keep, at least 1.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self.keep = keep
        self._damaged: set[int] = set()

    def save(self, server_round: int, state: Any) -> None:
        """Write a round's state atomically, then delete what is too old."""
        self._damaged.discard(server_round)
        save_state(self._file(server_round), state, {"round": server_round}, durable=True)
        for number in self.rounds()[: -self.keep]:
            self._file(number).unlink(missing_ok=True)

    def load_newest(self, skeleton: Any) -> int:
        """Fill `skeleton` from the newest undamaged file and return its round; 0 if there is none.

        Damaged files are passed over from then on, and stay where they are until
        `set_aside_damaged`: the run may still be refused for another reason.

        Raises
        ------
        StateError
            If there are files and all of them are damaged.
        """
        rounds = self.rounds()
        for number in reversed(rounds):
            path = self._file(number)
            try:
                read_about(path)
                load_state(path, skeleton)
            except DamagedStateError as error:
                print(f"warning: checkpoint {path.name} cannot be used: {error}", flush=True)
                self._damaged.add(number)
                continue
            return number
        # Those set aside by an earlier attempt count: starting over would discard the records.
        damaged = [path.name for path in self.directory.glob("round-*.damaged")]
        damaged = sorted(damaged + [self._file(number).name for number in self._damaged])
        if damaged:
            raise StateError(
                f"{self.directory}: none of {len(damaged)} checkpoints can be used "
                f"({', '.join(damaged)}); start a new run"
            )
        return 0

    def set_aside_damaged(self) -> None:
        """Rename the files that `load_newest` passed over, so that they are not found again."""
        for number in sorted(self._damaged):
            set_aside(self._file(number))
        self._damaged.clear()

    def oldest(self) -> int:
        """Return the oldest round a resume could start from; 0 before the first checkpoint."""
        return min(self.rounds(), default=0)

    def rounds(self) -> list[int]:
        """Return the rounds that have a file not known to be damaged, ascending."""
        return [number for number in rounds_in(self.directory) if number not in self._damaged]

    def _file(self, server_round: int) -> Path:
        return round_file(self.directory, server_round)
