"""Server checkpoints: one file a round, the newest few kept, damaged ones passed over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from server_app.console import say
from server_app.records.soundness import is_good
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

    def save(self, server_round: int, state: Any, unsound: Iterable[int] = ()) -> None:
        """Write a round's state atomically, then delete what is too old.

        Where rounds were unsound (`soundness`), the newest state before them stays, too.
        """
        self._damaged.discard(server_round)
        save_state(self._file(server_round), state, {"round": server_round}, durable=True)
        rounds, bad = self.rounds(), set(unsound)
        good = max((n for n in rounds if is_good(n, bad)), default=None) if bad else None
        for number in rounds[: -self.keep]:
            if number != good:
                self._file(number).unlink(missing_ok=True)

    def load_newest(self, skeleton: Any, unsound: Iterable[int] = ()) -> int:
        """Fill `skeleton` from the newest usable file and return its round; 0 if there is none.

        Usable is an undamaged one, and of these rather one before `unsound` rounds (`soundness`)
        than a newer one. Damaged files are passed over from then on, and stay where they are until
        `set_aside_damaged`: the run may still be refused for another reason.

        Raises
        ------
        StateError
            If there are files and all of them are damaged.
        """
        bad = set(unsound)
        for number in sorted(self.rounds(), key=lambda n: (is_good(n, bad), n), reverse=True):
            path = self._file(number)
            try:
                read_about(path)
                load_state(path, skeleton)
            except DamagedStateError as error:
                say(f"warning: checkpoint {path.name} cannot be used: {error}")
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

    def load(self, server_round: int, skeleton: Any) -> None:
        """Fill `skeleton` from a round's file; raises `StateError` if it is damaged."""
        load_state(self._file(server_round), skeleton)

    def drop_after(self, server_round: int) -> None:
        """Delete the files of later rounds, which a run that goes on from this one makes anew."""
        for number in self.rounds():
            if number > server_round:
                self._file(number).unlink(missing_ok=True)

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
