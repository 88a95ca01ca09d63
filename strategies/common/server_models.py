"""Clients' models at work on the server, on public data: for methods that distil there.

The server builds one client's model at a time, fills it with what the client sent, and asks it
about the public items that the server has loaded as clients do. Clients that learn the same make up
an ensemble; those of them with one architecture are a group, which shares weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data import (
    ClientData,
    DataError,
    DataSpec,
    PublicData,
    Shares,
    Split,
    TaskSpec,
    load_device_data,
    load_device_task_data,
    load_public,
    parse_tasks,
)
from models import (
    Shape,
    SplitModel,
    TaskModel,
    build_model,
    build_task_model,
    tokeniser_of,
)
from models.memory_format import to_channels_last
from models.skeleton import skeleton
from strategies.base.client import ClientContext
from strategies.base.messages import ClientInfo
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import NotScoredError, RegistrationError, ServerContext
from strategies.base.state import fill_module
from strategies.common.layerwise import Layout, layout_of
from strategies.common.public import PublicItems, evaluating
from strategies.common.shapes import shape_of
from strategies.common.training import EVALUATION_BATCH, Place, precision, to_inputs
from strategies.common.weights import copied

PLAIN = ("classification", "text")
"""Tasks of which the run's own data set is learned; their models are those of all methods."""


@dataclasses.dataclass(frozen=True)
class ServerPlace:
    """Where the server computes: on the run's device, the first GPU with "auto" if there is one."""

    run: RunConfig

    @property
    def device(self) -> torch.device:
        """The device."""
        if self.run.device != "auto":
            return torch.device(self.run.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# Models -------------------------------------------------------------------------------------------


def client_skeleton(context: ClientContext) -> SplitModel | TaskModel:
    """Return a client's own model without weights; one for its task where it has a task."""
    task = str(context.task or context.data.task)
    return _bare(context.run, context.model_name, task, context.shape)


def skeleton_of(run: RunConfig, info: ClientInfo) -> SplitModel | TaskModel:
    """Return the same model as the server knows it."""
    return _bare(run, info.model, info.task, shape_of(info))


def _bare(run: RunConfig, model: str, task: str, shape: Shape) -> SplitModel | TaskModel:
    with skeleton():
        return _build(run, model, task, shape)


def _build(run: RunConfig, model: str, task: str, shape: Shape) -> SplitModel | TaskModel:
    if task in PLAIN:
        return build_model(model, shape, run.feature_dim, "AP")
    return build_task_model(model, task, shape, run.feature_dim, lora_rank=run.lora_rank)


def group_of(info: ClientInfo) -> str:
    """Return the name of a client's group: its architecture, and its task if there are several."""
    return info.model if info.task in PLAIN else f"{info.model}, {info.task}"


def unlike_of_its_task(context: ServerContext, info: ClientInfo) -> str | None:
    """Return how a client's data differ from those of the first client of its task, or None.

    Its tokens have to be those of its own group.
    """
    others = sorted(context.clients.values(), key=lambda other: other.client_id)
    alike = [other for other in others if other.task == info.task][:1]
    grouped = [other for other in others if group_of(other) == group_of(info)][:1]
    pairs = [(n, o) for o in alike for n in ("num_classes", "class_hash", "channels", "image_size")]
    for name, other in [*pairs, *(("tokeniser", other) for other in grouped)]:
        mine, theirs = getattr(info, name), getattr(other, name)
        if mine != theirs:
            return (
                f"client {info.client_id}: {name} is {mine}, client {other.client_id}, which "
                f"learns the same task ({info.task}), has {theirs}; clients of one task need the "
                "same classes in the same order, images of one kind and, for one model, one "
                "tokeniser"
            )
    return None


def built(run: RunConfig, info: ClientInfo) -> SplitModel | TaskModel:
    """Build a client's model with weights, drawn from torch's own stream."""
    return _build(run, info.model, info.task, shape_of(info))


def first_weights(run: RunConfig, info: ClientInfo) -> dict[str, Tensor]:
    """Draw a group's weights and buffers of before round 1 from the run's seed, as FedAvg does."""
    with isolated_torch_rng(derive_seed(run.seed, SERVER, 0, f"weights-{group_of(info)}")):
        model = built(run, info)
    return copied(model.state_dict())


def layout_for(run: RunConfig, info: ClientInfo) -> Layout:
    """Return what travels of a client's model: weights and buffers."""
    return _layout(info.model, info.task, shape_of(info), run.feature_dim, run.lora_rank)


@lru_cache(maxsize=256)  # asked for with every message and every reply
def _layout(model: str, task: str, shape: Shape, width: int, rank: int) -> Layout:
    return layout_of(_bare(RunConfig(feature_dim=width, lora_rank=rank), model, task, shape), "")


def filled(
    run: RunConfig, info: ClientInfo, entries: Mapping[str, Tensor | NDArray[Any]]
) -> SplitModel | TaskModel:
    """Return a client's model with copies of these entries, on the server's device.

    In evaluation mode.
    """
    model = skeleton_of(run, info)
    set_to_work(model, entries, ServerPlace(run).device)
    return model


def set_to_work(
    model: nn.Module, entries: Mapping[str, Tensor | NDArray[Any]], device: torch.device
) -> None:
    """Fill a skeleton with copies of these entries, on a device, for evaluation."""
    copies = {
        name: torch.tensor(item, device=device)
        if isinstance(item, np.ndarray)
        else item.to(device, copy=True)
        for name, item in entries.items()
    }
    fill_module(model, copies)
    to_channels_last(model)
    model.eval()


# Public data --------------------------------------------------------------------------------------


def public_items(context: ServerContext, info: ClientInfo) -> PublicItems:
    """Return the public items as a client's model reads them; see `public_for`."""
    public = public_for(context, info)
    return PublicItems(public, info.model, info.vocabulary > 0, ServerPlace(context.run))


def public_for(context: ServerContext, info: ClientInfo) -> PublicData:
    """Load the public data as a client does, see `matching_public`."""
    return matching_public(context, info)[0]


def matching_public(context: ServerContext, info: ClientInfo) -> tuple[PublicData, Shares | None]:
    """Load the public data as a client does, and make sure that they are the client's.

    Returned with them is whose test examples they leave out.

    A simulation's items leave out what its clients test on, and only clients know how many they
    are; so the items are those whose fingerprint a client told.

    Raises
    ------
    RegistrationError
        If the server's files give other items than the clients have.
    """
    run = context.run
    found = []
    for avoid in _to_avoid(context):
        try:
            public = _open(run, info, avoid)
        except DataError as error:
            if avoid is None:
                raise RegistrationError(f"public data on the server: {error}") from error
            continue  # the run's data set is not here: clients are devices with data of their own
        if public.fingerprint == info.public_hash:
            return public, avoid
        found.append(public.fingerprint)
    raise RegistrationError(
        f"public-dataset = {run.public_dataset!r}: the server's items ({', '.join(found)}) are not "
        f"those of client {info.client_id} ({info.public_hash}); give the server the same source "
        "files in data-dir, or set public-overlap='allowed'"
    )


def _to_avoid(context: ServerContext) -> list[Shares | None]:
    run, clients = context.run, context.clients
    if run.public_overlap != "none":
        return [None]
    counts = dict.fromkeys((len(clients), max(clients, default=0) + 1))
    return [*(Shares(run.data_spec, tuple(parse_tasks(run.tasks)), n) for n in counts), None]


def _open(run: RunConfig, info: ClientInfo, avoid: Shares | None) -> PublicData:
    # A model of sentences reads captions; the size of the pictures is then of no matter.
    channels, side = info.channels, info.image_size
    return load_public(run.public_dataset, run.public_size, channels, side, run.data_dir, avoid)


def logits_of(items: PublicItems, model: nn.Module) -> NDArray[np.float32]:
    """Return a model's logits of all public items, (P, C)."""
    every = np.arange(len(items), dtype=np.int32)
    return items.outputs(model, every, model).cpu().numpy()


# The score of a model that classifies -------------------------------------------------------------

OFFICIAL_TEST = "the data set's official test examples"
"""What the server scores models on that classify, for `Method.server_scored_on`."""


def official_test(context: ServerContext, model_name: str) -> Split:
    """Return the official test examples as a model reads them.

    Only with `test-split = "global"`, where they are nobody's alone: with "personal" clients share
    them out. The server loads them from `data-dir`, as it loads public items.

    Raises
    ------
    NotScoredError
        If clients share them out, learn several tasks or something else than one class an example;
        or if the server has no such data set, or another one than the clients.
    """
    run, info = context.run, context.any_client
    if run.test_split != "global":
        raise NotScoredError(
            f"with test-split = {run.test_split!r} the data set's test examples are clients' own; "
            "set test-split = 'global'"
        )
    tasks = set(parse_tasks(run.tasks))
    if len(tasks) > 1 or any(task.metric != "accuracy" for task in tasks):
        raise NotScoredError(f"tasks = {run.tasks!r}: it is for clients that all classify alike")
    try:
        data = _loaded(run.data_spec, next(iter(tasks), None), model_name)
    except DataError as error:
        raise NotScoredError(f"dataset = {run.dataset!r} is not on the server: {error}") from error
    for name in ("num_classes", "class_hash", "channels", "image_size"):
        mine, theirs = getattr(data, name), getattr(info, name)
        if mine != theirs:
            raise NotScoredError(
                f"dataset = {run.dataset!r}: {name} is {mine} on the server, {theirs} on client "
                f"{info.client_id}; give the server the clients' data set in data-dir"
            )
    if not len(data.test):
        raise NotScoredError(f"dataset = {run.dataset!r} has no test examples on the server")
    return data.test


@lru_cache(maxsize=4)
def _loaded(spec: DataSpec, task: TaskSpec | None, model_name: str) -> ClientData:
    if task is None:
        return load_device_data(spec)
    return load_device_task_data(spec, task, tokeniser_of(model_name))


@torch.no_grad()
def accuracy_on(split: Split, model: nn.Module, place: Place) -> float:
    """Return the share of examples that a model labels right, in evaluation mode."""
    hits = 0
    with evaluating(model), precision(place):
        for raw, labels in split.batches(EVALUATION_BATCH):
            found = model(to_inputs(raw, place.device)).argmax(dim=1)
            hits += int((found.cpu() == labels).sum())
    return hits / len(split)
