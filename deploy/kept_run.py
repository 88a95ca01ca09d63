"""The clients and the server of a run on this machine, as they were after one of its rounds.

For what looks at a run after its end. Nothing of it is changed: states are read and never written.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict

from client_app.handlers import describe_client
from client_app.node import client_context
from client_app.state_store import StateStore, state_directory
from models.build import proven
from models.own_code import searching
from models.skeleton import skeleton
from server_app.records.checkpoints import Checkpoints
from server_app.records.run_directory import require_run
from server_app.records.run_reader import RunRecords, read_run
from server_app.rounds.method_server import MethodServer
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.round_files import round_file, rounds_in
from strategies.base.state import StateError, modules_of, move_state


@dataclass(frozen=True, eq=False)
class KeptClient:
    """A client after a round.

    Attributes
    ----------
    context : ClientContext
        Who it is, with its data.
    half : ClientHalf
        The method's.
    state : dataclass
        Its private state, on its device, in evaluation mode. A module that arrives with every
        downlink is without weights until `receive`.
    """

    context: ClientContext
    half: Any
    state: Any

    @property
    def is_bare(self) -> bool:
        """Whether the state has a module without weights."""
        modules = modules_of(self.state)
        return any(item.is_meta for module in modules for item in module.parameters())

    def receive(self, downlink: Any) -> None:
        """Put a downlink into the state, as the client does before it trains or evaluates."""
        self.half.receive(self.context, self.state, downlink)
        for module in modules_of(self.state):
            module.eval()


@dataclass(frozen=True, eq=False)
class KeptRun:
    """A run directory whose clients were simulated on this machine.

    Attributes
    ----------
    directory : Path
        Where it is.
    records : RunRecords
        What was recorded.
    """

    directory: Path
    records: RunRecords

    @classmethod
    def of(cls, directory: Path) -> KeptRun:
        """Open a run; raises `ConfigError` if there is none."""
        require_run(directory)
        return cls(directory, read_run(directory))

    @property
    def client_ids(self) -> list[int]:
        """The clients of the run, ascending."""
        return [client.client for client in self.records.clients]

    def trained(self, server_round: int) -> list[int]:
        """Return the clients whose state after this round, or an earlier one, is kept.

        Raises
        ------
        ConfigError
            There is none.
        """
        found = [client for client in self.client_ids if self._rounds_trained(client, server_round)]
        if not found:
            raise ConfigError(
                f"{self.directory / 'clients'}: no client's state is kept; on a fleet states stay "
                "on the devices, and `wildflower clean` deletes them: make the run again, in a "
                "simulation"
            )
        return found

    def context(self, client_id: int, server_round: int) -> ClientContext:
        """Return a client's context of a round, with its data.

        Raises
        ------
        ConfigError
            Its data are not on this machine, or no longer the same.
        """
        config = dict(self.records.settings)
        node: dict[str, bool | float | int | str] = {
            "partition-id": client_id,
            "num-partitions": 1 + max(self.client_ids),
        }
        with self._own_code():
            context = client_context(Context(0, 0, node, RecordDict(), config), server_round)
        self._refuse_other_data(context)
        return context

    def client(self, client_id: int, server_round: int) -> KeptClient:
        """Load a client as it was after its training in this round.

        Raises
        ------
        ConfigError
            Its data or its state of that round is not on this machine.
        """
        context = self.context(client_id, server_round)
        folder = self._states(client_id)
        path = round_file(folder, server_round)
        if not path.is_file():
            there = ", ".join(map(str, rounds_in(folder))) or "none"
            raise ConfigError(
                f"client {client_id}: its model after round {server_round} is not kept ({path}); "
                f"kept are rounds: {there}. Choose another round, or run with a larger "
                "keep-checkpoints; `wildflower clean` deletes all of them"
            )
        return self._load(context, folder, path)

    def newest(self, client_id: int, server_round: int) -> KeptClient:
        """Load a client as a round left it that it need not have taken part in.

        Raises
        ------
        ConfigError
            Its data are not here, or it has not trained up to this round.
        """
        context = self.context(client_id, server_round)
        folder = self._states(client_id)
        rounds = self._rounds_trained(client_id, server_round)
        if not rounds:
            raise ConfigError(
                f"client {client_id}: no state of it is kept ({folder}); it never trained, or "
                "`wildflower clean` deleted its states, and the run must be made again"
            )
        return self._load(context, folder, round_file(folder, rounds[-1]))

    def server_before(self, server_round: int) -> MethodServer:
        """Return the server, with all clients of the run, as it was at the start of a round.

        Raises
        ------
        ConfigError
            Its state after the round before is not kept.
        """
        contexts = [self.context(client, 0) for client in self.client_ids]
        server = MethodServer(contexts[0].run)
        with self._own_code():
            server.admit(describe_client(context, server.method) for context in contexts)
            server.begin()
        server.server_round = server_round
        if server_round > 1:
            try:
                Checkpoints(self._checkpoints, 1).load(server_round - 1, server.state)
            except StateError as error:
                raise ConfigError(
                    f"the server's state after round {server_round - 1} cannot be used: {error}; "
                    "choose another round, or run with a larger keep-checkpoints"
                ) from error
        return server

    @property
    def last_round(self) -> int:
        """The newest round after which the server's state is kept.

        Raises
        ------
        ConfigError
            There is none.
        """
        rounds = rounds_in(self._checkpoints)
        if not rounds:
            raise ConfigError(
                f"{self._checkpoints}: no state of the server is kept; the run has finished no "
                "round, or `wildflower clean` deleted its states, and it must be made again"
            )
        return rounds[-1]

    @property
    def _checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def _states(self, client_id: int) -> Path:
        # Not below the recorded output-dir: the run may have been moved since.
        return state_directory(self.directory / "clients", client_id)

    def _own_code(self) -> AbstractContextManager[None]:
        return searching(str(self.records.settings.get("code-dir", "")))

    def _load(self, context: ClientContext, folder: Path, path: Path) -> KeptClient:
        half = context.run.chosen_method.client()
        with self._own_code(), skeleton(), proven():
            bare = half.build(context)
        about = {"method": context.run.method, "model": context.model_name}
        try:
            loaded, _ = StateStore(folder, about).load(path, bare)
        except StateError as error:
            raise ConfigError(f"client {context.client_id}: {error}") from error
        state = move_state(loaded, context.device)
        for module in modules_of(state):
            module.eval()
        return KeptClient(context, half, state)

    def _rounds_trained(self, client_id: int, server_round: int) -> list[int]:
        """Return the rounds up to this one after which a client's training is kept, ascending.

        Round 0, which a run that has not ended may have kept, is the state before any training.
        """
        return [n for n in rounds_in(self._states(client_id)) if 0 < n <= server_round]

    def _refuse_other_data(self, context: ClientContext) -> None:
        """Devices of a fleet have data of their own, which is not here, or is another's."""
        (client,) = [c for c in self.records.clients if c.client == context.client_id]
        if (client.train_examples, client.model) != (len(context.data.train), context.model_name):
            raise ConfigError(
                f"client {client.client}: it had {client.train_examples} training examples and "
                f"model {client.model}, here it would have {len(context.data.train)} and "
                f"{context.model_name}; only runs of a simulation can be looked into, with their "
                "data"
            )


def downlink_for(server: MethodServer, client_id: int) -> Any:
    """Return what the server sends a client now."""
    common = server.half.downlink(server.context, server.state, None)
    if common is not None:
        return common
    return server.half.downlink(server.context, server.state, server.clients[client_id])
