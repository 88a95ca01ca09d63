"""Who a client is: identity, model, data and device, from node-config and run-config."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context

from data import (
    TEXT_DATASETS,
    VECTOR_DATASETS,
    ClientData,
    Shares,
    load_client_data,
    load_device_data,
    load_device_task_data,
    load_task_data,
)
from data.spec import is_from_hub
from data.tasks import (
    TASKS_WITH_TEXT,
    TaskSpec,
    assign_task,
    implied_task,
    parse_task,
    parse_tasks,
)
from models import assign_model, model_info, tokeniser_of
from models.own_code import Refusal
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError, unknown_key
from strategies.base.parsing import parse_run_config, refuse_unserved, without_other_methods
from strategies.base.run_config import DEVICE, NAME, RunConfig

NODE_KEYS = (
    "partition-id", "num-partitions", "client-id", "data-dir", "dataset", "model", "device",
    "threads", "state-dir", "task", "public-dir", "code-dir", "share-class-counts",
    "allow-custom-models", "rate",
)  # fmt: skip
"""Node-config keys that Wildflower reads."""


def client_id_of(node: Mapping[str, object]) -> int:
    """Return the client's stable identity: `client-id`, else `partition-id`.

    Raises
    ------
    ConfigError
        If the node was given neither, or not a whole number.
    """
    value = node.get("client-id", node.get("partition-id"))
    if type(value) is not int or value < 0:
        raise ConfigError(
            f"client-id = {value!r}: this node needs an identity; start it with --node-config "
            "'client-id=0 data-dir=\"/path/to/folder\"' or 'partition-id=0 num-partitions=10'"
        )
    return value


def client_context(context: Context, server_round: int, exchange: int = 1) -> ClientContext:
    """Assemble everything a client half needs for one exchange of a round."""
    run = _parse(tuple(sorted(context.run_config.items())))
    node = context.node_config
    known = dict.fromkeys(NODE_KEYS)
    for key in node:
        if key not in known:
            raise ConfigError(f"node-config: {unknown_key(key, known)}")
    client_id = client_id_of(node)
    torch.set_num_threads(_count(node, "threads", 1))
    # What costs nothing to check comes before the data, which may be a download.
    device = _device(str(node.get("device", run.device)))
    model_name = str(node.get("model") or assign_model(run.models, client_id))
    model_info(model_name)
    task = task_of(run, node, client_id)
    return ClientContext(
        client_id=client_id,
        server_round=server_round,
        run=run,
        data=_data(run, node, task, model_name),
        model_name=model_name,
        device=device,
        exchange=exchange,
        task=task,
        public_dir=str(node.get("public-dir", run.data_dir)),
        shares=_shares(run, node),
        shares_class_counts=_shares_class_counts(run, node),
        rate=_rate(node),
    )


def code_dir(context: Context) -> str:
    """Return the folder in which the user's own code is looked up; empty: where it is anyway.

    On a device its node-config decides alone: the server, or who submits a run, cannot make a
    device load files of its disk. A simulation's workers belong to the server's own machine.
    """
    own = context.node_config.get("code-dir")
    simulated = context.run_config.get("code-dir", "") if "ray" in sys.modules else ""
    return str(own or simulated)


def simulated() -> bool:
    """Return whether this process belongs to the server's own machine, in a simulation."""
    return "ray" in sys.modules or "server_app.rounds.in_process" in sys.modules


def unasked_code(context: Context) -> Refusal:
    """Return what refuses code that a run names and that a device's owner did not agree to.

    On a device a run imports no module by its name, of a model or of a method, unless node-config
    says `allow-custom-models = true`. What node-config itself names is the owner's choice.
    """
    node = context.node_config
    allowed = _flag(node, "allow-custom-models", default=simulated())
    own = str(node.get("model", "")).partition(":")[0]

    def refusal(name: str) -> str | None:
        if allowed or name == own or "@" in name:
            return None
        return (
            f"the run names code, {name!r}, and this device runs none that it did not choose; its "
            "owner allows it by allow-custom-models=true in node-config, or names the model there"
        )

    return refusal


def task_of(run: RunConfig, node: Mapping[str, object], client_id: int) -> TaskSpec | None:
    """Return what this node learns: `task` of its node-config, else its entry of `tasks`.

    Raises
    ------
    ConfigError
        If the node names a task and the method is one for classification alone.
    """
    own = node.get("task")
    if own is None:
        return assign_task(run.tasks, client_id)
    if not run.chosen_method.any_task:
        raise ConfigError(
            f"task = {own!r} in node-config: method {run.method!r} has all clients classify the "
            "same images; leave task out, or choose a method for any task"
        )
    task = parse_task(str(own))
    named = str(node.get("dataset", run.dataset))
    refuse_unserved(run.chosen_method, task, named, f"task = {own!r} in node-config")
    return task


def state_root(run: RunConfig, node: Mapping[str, object], run_name: str) -> Path:
    """Return where this node keeps private states of a run.

    By default inside the run's directory, below `output-dir` on this node's own disk; `state-dir`
    in node-config names another place. In a simulation over several Ray nodes it must be a
    directory that all of them share, because a client may be simulated on any of them.
    """
    if not NAME.fullmatch(run_name):  # it comes over the network and becomes a path
        raise ConfigError(f"run-name = {run_name!r} from the server: not the name of a run")
    own = node.get("state-dir")
    if own:
        return Path(str(own)).expanduser() / run_name
    return run.run_root / run_name / "clients"


@lru_cache(maxsize=8)
def _parse(items: tuple[tuple[str, bool | int | float | str], ...]) -> RunConfig:
    return parse_run_config(without_other_methods(dict(items)))


def _data(
    run: RunConfig, node: Mapping[str, object], task: TaskSpec | None, model_name: str
) -> ClientData:
    """Return what this node learns from: for its task, if it has one, else what its data is."""
    if task is None and (task := implied_task(_dataset(run, node))) is not None:
        if task.task == "text":
            _refuse_sentences(run, node)
        else:
            key = f"dataset = {task.dataset!r} in node-config"
            refuse_unserved(run.chosen_method, task, task.dataset, key)
    if task is not None:
        return _task_data(run, node, task, model_name)
    return _image_data(run, node)


def _dataset(run: RunConfig, node: Mapping[str, object]) -> str:
    """Return the name of the data set that a node without a task has."""
    # A device's own data are images in folders, unless the run's are sentences, numbers or `hf:`.
    others = (*TEXT_DATASETS, *VECTOR_DATASETS)
    images = (
        "partition-id" not in node and run.dataset not in others and not is_from_hub(run.dataset)
    )
    return str(node.get("dataset", "imagefolder" if images else run.dataset))


def _refuse_sentences(run: RunConfig, node: Mapping[str, object]) -> None:
    if "text" not in run.chosen_method.reads:
        raise ConfigError(
            f"dataset = {_dataset(run, node)!r} in node-config: method {run.method!r} works on "
            "images, and these are sentences; give the node images, or choose another method"
        )


def _image_data(run: RunConfig, node: Mapping[str, object]) -> ClientData:
    """Return this node's share of a data set (its own copy may lie elsewhere), or its own data."""
    spec, folder = run.data_spec, node.get("data-dir")
    if "partition-id" in node:
        places: dict[str, Any] = {"data_dir": str(folder)} if folder else {}
        if "dataset" in node:
            places["dataset"] = str(node["dataset"])
        partitions = _count(node, "num-partitions", None)
        number = _count(node, "partition-id", None, minimum=0)
        return load_client_data(dataclasses.replace(spec, **places), number, partitions)
    if not folder:
        raise _nothing_to_learn_from()
    own = dataclasses.replace(spec, dataset=_dataset(run, node), data_dir=str(folder))
    return load_device_data(own)


def _task_data(
    run: RunConfig, node: Mapping[str, object], task: TaskSpec, model_name: str
) -> ClientData:
    """Return this node's share of its task's data set, or its own data for the task."""
    spec, folder = run.data_spec, node.get("data-dir")
    dataset = task.dataset or str(node.get("dataset", run.dataset))
    task = dataclasses.replace(task, dataset=dataset)
    tokenise = tokeniser_of(model_name) if task.task in TASKS_WITH_TEXT else None
    if folder:
        spec = dataclasses.replace(spec, data_dir=str(folder))
    if "partition-id" not in node:
        if not folder:
            raise _nothing_to_learn_from()
        return load_device_task_data(spec, task, tokenise)
    entries = parse_tasks(run.tasks) or (task,)
    number = _count(node, "partition-id", None, minimum=0)
    partitions = _count(node, "num-partitions", None)
    everyone = [task if i == number else entries[i % len(entries)] for i in range(partitions)]
    return load_task_data(spec, everyone, number, partitions, tokenise)


def _shares(run: RunConfig, node: Mapping[str, object]) -> Shares | None:
    """Return how all clients share the run's data, whatever this node has instead."""
    if "partition-id" not in node:
        return None
    return Shares(run.data_spec, parse_tasks(run.tasks), _count(node, "num-partitions", None))


def _shares_class_counts(run: RunConfig, node: Mapping[str, object]) -> bool:
    """Say whether the server is told how many examples of each class this node has.

    A node with data of its own decides for itself, and tells nothing unless its node-config says
    so. One with a share of the run's data set, as in a simulation, does what the run-config says.
    """
    default = run.share_class_counts if "partition-id" in node else False
    return _flag(node, "share-class-counts", default=default)


def _flag(node: Mapping[str, object], key: str, *, default: bool) -> bool:
    value = node.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} = {value!r} in node-config: expected true or false")
    return value


def _nothing_to_learn_from() -> ConfigError:
    return ConfigError(
        "data-dir: this node has neither a data folder nor a partition; start it with "
        "--node-config 'client-id=0 data-dir=\"/path/to/folder\"' or "
        "'partition-id=0 num-partitions=10'"
    )


def _count(node: Mapping[str, object], key: str, default: int | None, minimum: int = 1) -> int:
    value = node.get(key, default)
    if type(value) is not int or value < minimum:
        raise ConfigError(f"{key} = {value!r} in node-config: expected an integer >= {minimum}")
    return value


def _rate(node: Mapping[str, object]) -> float | None:
    """Return how much of a shared network this node trains, if it says so."""
    value = node.get("rate")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"rate = {value!r} in node-config: expected a number above 0, at most 1")
    return float(value)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not DEVICE.fullmatch(name):
        raise ConfigError(f"device = {name!r} in node-config: expected auto, cpu or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {name!r}: this node has {torch.cuda.device_count()} CUDA devices; "
            "expected auto, cpu or an existing cuda:N"
        )
    return device
