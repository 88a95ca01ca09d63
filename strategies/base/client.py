"""The client half's base class, and what a client half is given to work with."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from data import ClientData, PublicData, Shares, load_public
from data.tasks import TaskSpec
from models import (
    InputShape,
    PairShape,
    SeriesShape,
    Shape,
    SplitModel,
    TableShape,
    TaskModel,
    build_model,
    build_task_model,
    text_shape_of,
)
from strategies.base.kept import Kept
from strategies.base.payload import Template
from strategies.base.rng import numpy_generator, torch_generator
from strategies.base.run_config import RunConfig, payload_sizes

S = TypeVar("S")
D = TypeVar("D")
U = TypeVar("U")


@dataclasses.dataclass(frozen=True)
class ClientContext:
    """One client in one round: configuration, local data, device and private randomness.

    Attributes
    ----------
    client_id : int
        The client's stable identity.
    server_round : int
        The current round, from 1; 0 at the registration.
    run : RunConfig
        The run's configuration.
    data : ClientData
        Local training, validation and test examples.
    model_name : str
        The client's own architecture.
    device : torch.device
        Where to compute.
    exchange : int
        Which exchange of the round this is, from 1; see `ServerHalf.exchanges`.
    task : TaskSpec, optional
        The client's own entry of the run-config key `tasks`; None where all clients classify.
    public_dir : str
        Folder of the public data set, as `data-dir`.
    shares : Shares, optional
        How a simulation's clients share data; None on a device with data of its own.
    shares_class_counts : bool
        Whether the server is told how many examples of each class the client has.
    rate : float, optional
        How much of the one network that all clients share this device trains, by its node-config;
        None where the run decides.
    kept : Kept
        What the framework keeps of this client between messages.
    """

    client_id: int
    server_round: int
    run: RunConfig
    data: ClientData
    model_name: str
    device: torch.device
    exchange: int = 1
    task: TaskSpec | None = None
    public_dir: str = ""
    shares: Shares | None = None
    shares_class_counts: bool = False
    rate: float | None = None
    kept: Kept = dataclasses.field(default_factory=Kept)

    @property
    def config(self) -> Any:
        """The running method's own `Config`."""
        return self.run.method_config

    @property
    def dims(self) -> dict[str, int]:
        """Sizes of the named dimensions that payloads are declared with."""
        return payload_sizes(self.run, self.data.num_classes)

    @property
    def shape(self) -> Shape:
        """What the local data asks of a model; of sentences, by this client's tokeniser."""
        data = self.data
        if data.task == "text":
            return text_shape_of(self.model_name, data.num_classes)
        if data.steps:
            return SeriesShape(data.features, data.steps, data.num_classes)
        if data.features:
            return TableShape(data.features, data.num_classes)
        return InputShape(data.channels, data.image_size, data.num_classes)

    @property
    def task_shape(self) -> Shape | PairShape:
        """As `shape`; of pairs of images and captions what both ask."""
        data, shape = self.data, self.shape
        if data.task != "retrieval" or not isinstance(shape, InputShape):
            return shape
        return PairShape(shape, text_shape_of(self.model_name, data.num_classes))

    def build_task_model(self, *, in_path: bool = False) -> TaskModel:
        """Build the client's model for its task; see `models.TaskModel`."""
        return build_task_model(
            self.model_name, self.data.task, self.task_shape, self.run.feature_dim,
            in_path=in_path, lora_rank=self.run.lora_rank,
        )  # fmt: skip

    def build_model(self, mapping: str = "AP") -> SplitModel:
        """Build the client's own architecture; `mapping` is `models.mapping`'s (raw width to d)."""
        return build_model(self.model_name, self.shape, self.run.feature_dim, mapping)

    @property
    def public(self) -> PublicData:
        """The public data as this client sees it: images of its own kind, or captions."""
        run, data = self.run, self.data
        return load_public(
            run.public_dataset, run.public_size, data.channels, data.image_size, self.public_dir,
            self.shares if run.public_overlap == "none" else None,
        )  # fmt: skip

    def generator(self, purpose: str, server_round: int | None = None) -> torch.Generator:
        """Return this client's private torch generator for a purpose (default: this round's)."""
        number = self.server_round if server_round is None else server_round
        return torch_generator(self.run.seed, self.client_id, number, purpose)

    def numpy_generator(self, purpose: str, server_round: int | None = None) -> np.random.Generator:
        """Return this client's private NumPy generator for a purpose (default: this round's)."""
        number = self.server_round if server_round is None else server_round
        return numpy_generator(self.run.seed, self.client_id, number, purpose)


class ClientHalf(ABC, Generic[S, D, U]):
    """What a method does on a client. Instances hold nothing: all that lasts is in the state.

    In a round the framework calls, on one client: `build` or a load of the saved state,
    `receive`, then, around `train`, `predict` for evaluation (before it for `pre`, after it for
    `post`). A client that is only evaluated is not trained and its state is not saved.
    """

    @abstractmethod
    def build(self, context: ClientContext) -> S:
        """Construct the state's modules, randomly initialised, everything else at its default.

        Called under a private random stream, and also on torch's meta device to obtain a
        skeleton for a saved state: construct modules here and compute nothing.
        """

    def templates(self, context: ClientContext) -> Mapping[str, Template]:
        """Return the expected entries of the downlink's `arrays` fields.

        Modules that are only needed for their shapes are built in a `skeleton`.
        """
        return {}

    def receive(self, context: ClientContext, state: S, downlink: D) -> None:
        """Put the downlink's knowledge into the state; the default keeps the state as it is."""

    @abstractmethod
    def train(self, context: ClientContext, state: S, downlink: D) -> tuple[U, dict[str, float]]:
        """Train locally, change `state` in place, and return the uplink and training metrics."""

    @abstractmethod
    def predict(self, state: S, downlink: D, images: Tensor) -> dict[str, Tensor]:
        """Score normalised images (N, C, H, W): named scores (N, classes), the main metric first.

        The main one is named "accuracy"; further ones, such as "accuracy_head", are recorded
        beside it. The class with the largest score is the prediction.
        """
