"""The private state store: each client's own state on its own disk, one file per round.

Files are `<state directory>/client-00003/round-00007.safetensors`. A client that trains in round
t starts from its newest file of a round before t, so a run that resumes at an earlier round finds
the state of that time. Files older than any round that the server can still resume at go away.
Round 0 is the state before any training, where first_state.py found it worth keeping.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from strategies.base.kept import Kept
from strategies.base.round_files import round_file, rounds_in, set_aside
from strategies.base.state import (
    DamagedStateError,
    StateError,
    load_state,
    read_about,
    read_beside,
    save_state,
)

T = TypeVar("T")


def state_directory(root: Path, client_id: int) -> Path:
    """Return the directory of one client's files."""
    return root / f"client-{client_id:05d}"


@dataclass(frozen=True)
class StateStore:
    """One client's private states.

    Attributes
    ----------
    directory : Path
        From `state_directory`.
    about : dict
        Facts that must not change while a run lasts (method, model, client id, seed); a file
        written under other facts is refused.
    session : str
        Names the server's process; a resumed run has a new one.
    resumed_at : int
        The last finished round when this session began.
    durable : bool
        Wait for the disk on every write.
    """

    directory: Path
    about: dict[str, Any]
    session: str = ""
    resumed_at: int = 0
    durable: bool = False

    def discard_lost(self) -> None:
        """Delete states of rounds that the server has lost, and set damaged files aside.

        A file of a later round than the one the server resumed at, written for an earlier
        session, was never part of what goes on now. Called before anything else is read.
        """
        for number in rounds_in(self.directory):
            path = round_file(self.directory, number)
            try:
                about = read_about(path)
            except DamagedStateError as error:
                print(f"warning: private state {set_aside(path).name}: {error}", flush=True)
                continue
            same_run = about.get("run") == self.about.get("run")
            if same_run and number > self.resumed_at and about.get("session") != self.session:
                path.unlink()

    def newest_before(self, server_round: int) -> Path | None:
        """Return the newest file of an earlier round, or None if the client never trained."""
        rounds = [number for number in rounds_in(self.directory) if number < server_round]
        return round_file(self.directory, rounds[-1]) if rounds else None

    def load(self, path: Path, skeleton: T) -> tuple[T, int]:
        """Return the saved state and in how many rounds this client has trained so far.

        Raises
        ------
        StateError
            If the file is damaged or was written under other facts, naming both.
        """
        about = read_about(path)
        trained = about["rounds_trained"]
        changed = [k for k in self.about if about.get(k) != self.about[k]]
        if changed:
            raise StateError(
                f"{path}: saved with "
                + ", ".join(f"{k} = {about.get(k)!r} (now {self.about[k]!r})" for k in changed)
                + "; use another run-name, or go back to the saved settings"
            )
        return load_state(path, skeleton), int(trained)

    def load_kept(self, path: Path, *, optimizers: bool) -> Kept:
        """Return what was kept beside a saved state; optimisers only where they are asked for.

        A file of before anything was kept has nothing.
        """
        return Kept(read_about(path).get("first_loss"), read_beside(path) if optimizers else {})

    def save(
        self, server_round: int, state: Any, rounds_trained: int, kept: Kept | None = None
    ) -> None:
        """Write the state after a round, atomically, and what is kept beside it."""
        kept = kept or Kept()
        about = {
            **self.about,
            "session": self.session,
            "round": server_round,
            "rounds_trained": rounds_trained,
            "first_loss": kept.first_loss,
        }
        path = round_file(self.directory, server_round)
        save_state(path, state, about, beside=kept.optimizers, durable=self.durable)
