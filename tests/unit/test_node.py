"""Node-config: what a device is told, checked before anything costs time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from client_app.node import _shares_class_counts, client_context, state_root
from models import ModelError
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config


def context(node: dict[str, Any], **run: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in run.items()}
    return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=config)  # type: ignore[arg-type]


SHARE = {"partition-id": 0, "num-partitions": 2}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "client-id = None: this node needs an identity"),
        ({"client-id": 1}, "data-dir: this node has neither a data folder nor a partition"),
        ({"client-id": "1"}, "client-id = '1'"),
        ({**SHARE, "modle": "cnn1"}, "node-config: modle.*did you mean model"),
        ({**SHARE, "device": "gpu"}, "device = 'gpu'.*cuda:N"),
        ({**SHARE, "device": "cuda:99"}, "cuda:99.*CUDA devices"),
        ({**SHARE, "threads": 0}, "threads = 0"),
        ({"partition-id": 0}, "num-partitions = None"),
    ],
)
def test_mistakes_are_named(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        client_context(context(node), 0)


def test_a_wrong_model_is_noticed_before_the_data_is_looked_for() -> None:
    node = {**SHARE, "model": "resnet99", "dataset": "imagefolder", "data-dir": "/nowhere"}
    with pytest.raises(ModelError, match="resnet99"):
        client_context(context(node), 0)
    with pytest.raises(ConfigError, match=r"models = 'cnn1, resnet99'"):
        parse_run_config({"models": "cnn1, resnet99"})


def test_a_partition_of_a_data_set_that_lies_elsewhere_on_this_node(tmp_path: Path) -> None:
    """With a partition id, data-dir is where this node has the shared data set."""
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for k in range(20):
            Image.new("L", (32, 32), color=5 * k).save(tmp_path / "train" / name / f"{k}.png")
    node = {**SHARE, "dataset": "imagefolder", "data-dir": str(tmp_path)}
    local = client_context(context(node, partition="iid", data_dir="/elsewhere"), 0)
    assert local.data.class_names == ("a", "b")
    assert local.client_id == 0


def test_where_private_states_are_kept(tmp_path: Path) -> None:
    run = parse_run_config({"output-dir": "/runs"})
    assert state_root(run, {}, "r") == Path("/runs/r/clients")
    assert state_root(run, {"state-dir": str(tmp_path)}, "r") == tmp_path / "r"
    with pytest.raises(ConfigError, match="from the server"):
        state_root(run, {}, "../../etc")


@pytest.mark.parametrize(
    ("node", "run", "told"),
    [
        (SHARE, {}, True),
        (SHARE, {"share-class-counts": False}, False),
        ({"client-id": 0}, {}, False),
        ({"client-id": 0}, {"share-class-counts": True}, False),  # a device decides for itself
        ({"client-id": 0, "share-class-counts": True}, {"share-class-counts": False}, True),
    ],
)
def test_who_tells_how_many_examples_of_each_class(
    node: dict[str, Any], run: dict[str, Any], told: bool
) -> None:
    assert _shares_class_counts(parse_run_config(run), node) == told


def test_a_consent_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match=r"share-class-counts = 'yes' in node-config: expe"):
        _shares_class_counts(parse_run_config({}), {"share-class-counts": "yes"})
