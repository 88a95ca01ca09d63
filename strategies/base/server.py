"""The server half's base class, and what a server half is given to work with."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Method
from strategies.base.payload import Template
from strategies.base.rng import SERVER, numpy_generator, torch_generator
from strategies.base.run_config import RunConfig, payload_sizes

S = TypeVar("S")
D = TypeVar("D")

LOSS_BEFORE, LOSS_AFTER = "server_loss_before", "server_loss_after"
"""What a method whose server takes gradient steps calls its loss on all that it trains on, before
the round's first step and after the last: `aggregate` returns them beside its other metrics."""


class RegistrationError(RuntimeError):
    """The clients that answered the registration do not fit the method."""


class NotScoredError(RuntimeError):
    """The server's own model gets no score in this run; says why, and what to set instead."""


@dataclasses.dataclass(frozen=True)
class ServerScores:
    """What the server measured of its own model.

    Attributes
    ----------
    values : Mapping of str to float
        By name, each in [0, 1] and higher is better; `Method.server_score` is one of them.
    examples : int
        How many examples, all of the server's, are behind each.
    """

    values: Mapping[str, float]
    examples: int


@dataclasses.dataclass(frozen=True)
class ServerContext:
    """The server in one exchange of a round: configuration, clients and private randomness.

    Attributes
    ----------
    run : RunConfig
        The run's configuration.
    clients : Mapping of int to ClientInfo
        The clients known by now, by id; they may be away. More may join between rounds.
    server_round : int
        The current round, from 1; 0 before the first.
    exchange : int
        Which exchange of the round this is, from 1; see `ServerHalf.exchanges`.
    """

    run: RunConfig
    clients: Mapping[int, ClientInfo] = dataclasses.field(default_factory=dict)
    server_round: int = 0
    exchange: int = 1

    @property
    def config(self) -> Any:
        """The running method's own `Config`."""
        return self.run.method_config

    @property
    def method(self) -> Method:
        """The running method."""
        return self.run.chosen_method

    @property
    def dims(self) -> dict[str, int]:
        """Sizes of the named dimensions that payloads are declared with.

        Raises
        ------
        RegistrationError
            If no client is known: the number of classes comes from the clients.
        """
        return payload_sizes(self.run, self.any_client.num_classes)

    @property
    def any_client(self) -> ClientInfo:
        """A client, for what all clients have in common; the registration saw to that.

        Raises
        ------
        RegistrationError
            If no client is known.
        """
        info = next(iter(self.clients.values()), None)
        if info is None:
            raise RegistrationError("no client is known yet, so neither is the number of classes")
        return info

    def generator(self, purpose: str, server_round: int | None = None) -> torch.Generator:
        """Return the server's private torch generator for a purpose (default: this round's)."""
        number = self.server_round if server_round is None else server_round
        return torch_generator(self.run.seed, SERVER, number, purpose)

    def numpy_generator(self, purpose: str, server_round: int | None = None) -> np.random.Generator:
        """Return the server's private NumPy generator for a purpose (default: this round's)."""
        number = self.server_round if server_round is None else server_round
        return numpy_generator(self.run.seed, SERVER, number, purpose)


class ServerHalf(ABC, Generic[S, D]):
    """What a method does on the server. Instances hold nothing: all that lasts is in the state.

    A method gives `initial_state`, `downlink` and `aggregate`; the rest has defaults. Who takes
    part in a round, and when a run ends, is not a method's matter but a `Schedule`'s.
    """

    # What a method gives ------------------------------------------------------------------------

    @abstractmethod
    def initial_state(self, context: ServerContext) -> S:
        """Return the state before round 1; checkpoints hold all its fields, see `state`."""

    @abstractmethod
    def downlink(self, context: ServerContext, state: S, client: ClientInfo | None) -> D | None:
        """Return the payload for one client.

        It is asked for with `client` None first: a payload returned then is for all of the round's
        clients, and it is made and packed once. None returned means that clients get different
        ones; then it is asked for client by client.
        """

    @abstractmethod
    def aggregate(
        self, context: ServerContext, state: S, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        """Aggregate the round's valid uplinks into `state`, in place; return metrics of the server.

        `updates` yields at least one update, in ascending client id, each as soon as it and all
        before it have arrived, so that a method can aggregate without holding them all. Read it to
        its end before changing what downlinks are made of: in a simulation, the round's later
        messages are made while its first updates are read. An update that is let go of is freed.
        In a round of several exchanges this is called after each, see `ServerContext.exchange`.
        """

    # What a method may give ---------------------------------------------------------------------

    def templates(
        self, context: ServerContext, state: S, client: ClientInfo
    ) -> Mapping[str, Template]:
        """Return the expected entries of the uplink's `arrays` fields for one client."""
        return {}

    def check_uplink(self, context: ServerContext, state: S, update: ClientUpdate) -> None:
        """Raise `PayloadError` for what declared shapes and ranges cannot say.

        Called on every uplink that is well formed, before any is aggregated: what passes must
        not make `aggregate` fail. By default everything passes.
        """

    def check_run(self, run: RunConfig) -> Sequence[str]:
        """Return what a user should know of these settings before a run with them starts.

        Raises
        ------
        ConfigError
            If the method cannot run with them.
        """
        return ()

    def check(self, context: ServerContext, state: S | None, client: ClientInfo) -> str | None:
        """Return what makes a client unfit for the method, or None.

        Called when a client registers. `context.clients` holds the clients known before and all
        that register now; `state` is None before round 1.
        """
        return wrong_feature_dim(context, client)

    def exchanges(self, context: ServerContext) -> int:
        """Return how many exchanges a round takes; by default one.

        In each, the round's participants get a `train` message and answer it. A participant that
        does not answer one in time takes no part in the others of this round; one whose answer was
        an error or was refused is asked again. All exchanges are made on the same private state,
        which the client saves after each; what it measures is averaged over them, and operations
        and examples are added up. A deployed exchange costs about 6 s, whatever it carries.
        """
        return 1

    def evaluated_exchange(self, context: ServerContext) -> int:
        """Return in which exchange of a round clients are evaluated.

        With `pre` the first, before its training; with `post` by default the last, after its
        training. A method whose local training is in an earlier one names that.
        """
        return 1 if context.run.evaluates_before_training else self.exchanges(context)

    def evaluates_test(self, context: ServerContext, clients: Sequence[int]) -> set[int]:
        """Return which of these clients measure the test split; by default all.

        Where several clients evaluate one model on one test set (`test-split = "global"`), one of
        them is enough. All clients measure their own validation splits in any case.
        """
        return set(clients)

    def score_basis(self, context: ServerContext) -> str:
        """Load what `score` needs and return what it is, in words.

        Called once, before round 1 and after a resume, where `Method.server_score` names a score.

        Raises
        ------
        NotScoredError
            If this run has no examples for it that are no client's own.
        """
        raise NotScoredError(f"{context.method.name} does not say on what")

    def score(self, context: ServerContext, state: S) -> ServerScores:
        """Score the server's own model after a round, on what `score_basis` has loaded.

        Draws nothing and leaves the state as it is.
        """
        raise NotImplementedError


def wrong_feature_dim(context: ServerContext, client: ClientInfo) -> str | None:
    """Return how a client's representation width differs from the method's one width, or None."""
    wanted = context.run.feature_dim
    if not context.method.common_feature_dim or client.feature_dim == wanted:
        return None
    return (
        f"client {client.client_id}: model {client.model} has representation width "
        f"{client.feature_dim}, {context.method.name} needs {wanted} (feature-dim); give the "
        "model a mapping, or set feature-dim to its width for all clients"
    )
