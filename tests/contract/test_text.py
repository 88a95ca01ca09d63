"""Every method that serves sentences trains unlike text models on one data set of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.rounds.method_server import MethodServer
from strategies.base.messages import ClientInfo
from strategies.base.method import get_method, method_names
from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.base.server import RegistrationError
from tests.support import run_federation

SERVING = [name for name in method_names() if "text" in get_method(name).reads]
IMAGES_ONLY = [name for name in method_names() if name not in SERVING]
READ_PUBLIC = [
    name for name in SERVING if get_method(name).public_data and not get_method(name).pairs
]
WORDS = {"good": ("fine", "bright", "warm"), "bad": ("dull", "grey", "cold")}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file of 400 sentences of four words, of which one tells the class."""
    generator = np.random.default_rng(3)
    lines = []
    for number in range(400):
        label = ("good", "bad")[number % 2]
        words = [f"word{generator.integers(40)}" for _ in range(3)]
        lines.append(f"{label}\t{' '.join([*words, str(generator.choice(WORDS[label]))])}")
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    path.write_text("label\ttext\n" + "\n".join(lines) + "\n")
    return str(path)


def settings(reviews: str, method: str) -> dict[str, Any]:
    return {
        "method": method,
        "dataset": "tsv",
        "data_dir": reviews,
        "subset": 1.0,
        "partition": "iid",
        "models": "text-small, text-large",
        "feature_dim": 32,
        "public_size": 48,
        **({"fedmrl__d1": 32} if method == "fedmrl" else {}),
    }


@pytest.mark.parametrize("method", SERVING)
def test_two_rounds(method: str, reviews: str, tmp_path: Path) -> None:
    config = {**settings(reviews, method), "subset": 0.3}
    whole = run_federation(tmp_path / "whole", 3, num_rounds=2, **config)
    assert whole.config["status"] == "completed"
    clients = whole.rows("clients")
    assert [row["model"] for row in clients] == ["text-small", "text-large", "text-small"]
    assert {row["task"] for row in clients} == {"text"}
    values = [float(row["value"]) for row in whole.rows("metrics")]
    assert all(map(math.isfinite, values))
    assert whole.rows("failures") == []
    assert {r["client"] for r in whole.metrics(metric="accuracy", round=2)} == {"0", "1", "2"}
    if method not in ("fedre", "fml", "fedmuscle"):
        return  # `test_resume` has every method; what is saved of a text model is alike
    run_federation(tmp_path / "parts", 3, num_rounds=1, **config)
    parts = run_federation(tmp_path / "parts", 3, num_rounds=2, resume="run", **config)
    assert parts.text("metrics.csv") == whole.text("metrics.csv")


@pytest.mark.parametrize("method", READ_PUBLIC)
def test_public_items_may_be_sentences(method: str, reviews: str, tmp_path: Path) -> None:
    """Of the clients' own kind, though none that a client tests on, instead of scenes' captions."""
    config = {**settings(reviews, method), "public_dataset": "tsv", "num_rounds": 2}
    run = run_federation(tmp_path / "own", 3, **config)
    assert run.rows("failures") == []
    (public,) = {row["public_hash"] for row in run.rows("clients")}
    assert "public items show" not in run.text("clients.csv")
    allowed = run_federation(tmp_path / "allowed", 3, public_overlap="allowed", **config)
    assert "test sentences (public-overlap)" in allowed.text("clients.csv")
    assert {row["public_hash"] for row in allowed.rows("clients")} != {public}


def test_public_sentences_need_clients_that_read(reviews: str, tmp_path: Path) -> None:
    config = {**settings(reviews, "fedmuscle"), "tasks": "text@tsv, classification@digits"}
    config |= {"public_dataset": "tsv", "models": "text-small, cnn5"}
    with pytest.raises(RegistrationError, match=r"client 1 reads images, and these items are sent"):
        run_federation(tmp_path, 2, **config)


@pytest.mark.parametrize("method", ["fedre", "fml"])
def test_sentences_are_learned(method: str, reviews: str, tmp_path: Path) -> None:
    config = {**settings(reviews, method), "num_rounds": 5, "local_epochs": 2}
    run = run_federation(tmp_path, 2, optimizer="adam", lr=3e-3, **config)
    assert run.summary["accuracy"]["final"] > 0.9


@pytest.mark.parametrize("method", ["fedproto", "fedkd", "scaffold"])
def test_one_text_task_for_all_is_the_same(method: str, reviews: str, tmp_path: Path) -> None:
    """`tasks='text@tsv'` says what `dataset='tsv'` says; captions are a text data set, too."""
    config = {**settings(reviews, method), "num_rounds": 1}
    plain = run_federation(tmp_path / "plain", 2, **config)
    named = run_federation(tmp_path / "named", 2, **{**config, "tasks": "text@tsv"})
    assert named.text("metrics.csv") == plain.text("metrics.csv")
    captions = {**config, "tasks": "text@scenes", "data_dir": "", "subset": 0.02}
    run = run_federation(tmp_path / "captions", 2, **captions)
    assert {row["task"] for row in run.rows("clients")} == {"text@scenes"}
    assert len(run.metrics(metric="accuracy", phase="pre")) == 2


@pytest.mark.parametrize("method", IMAGES_ONLY)
@pytest.mark.parametrize("key", ["dataset = 'tsv'", "tasks = 'text@tsv'"])
def test_a_method_for_images_is_refused(method: str, key: str) -> None:
    name, _, value = key.partition(" = ")
    with pytest.raises(ConfigError, match=f"{key}: method '{method}' works on images"):
        parse_run_config({"method": method, name: value.strip("'")})


def test_what_does_not_fit_is_refused_by_name(reviews: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="augment = 'crop-flip': expected none with dataset"):
        parse_run_config({"dataset": "tsv", "augment": "crop-flip"})
    with pytest.raises(ConfigError, match="expected an empty text, or one task on text"):
        parse_run_config({"tasks": "text@tsv, text@scenes"})
    config = settings(reviews, "fedre")
    with pytest.raises(RegistrationError, match=r"client 0: .*'cnn5' reads images.*text-small"):
        run_federation(tmp_path / "1", 2, **{**config, "models": "cnn5, text-small"})
    with pytest.raises(RegistrationError, match=r"client 1: .*'text-small' reads text.*dataset"):
        run_federation(tmp_path / "2", 2, method="fedre", models="cnn5, text-small")
    small = {**settings(reviews, "fml"), "fml__small_model": "cnn1"}
    with pytest.raises(RegistrationError, match="small model 'cnn1' reads images"):
        run_federation(tmp_path / "3", 2, **small)
    with pytest.raises(RegistrationError, match="small model 'text-small' reads text"):
        run_federation(tmp_path / "4", 2, method="fml", fml__small_model="text-small")


def test_unlike_tokenisers_are_refused_where_weights_that_read_are_shared() -> None:
    run = parse_run_config({"method": "fml", "dataset": "tsv"})
    info = ClientInfo(
        0, "text-small", 9, 64, 512, 2, 0, 0, "c", [0, 1], [3, 3], 6, 0, 0, "cpu", "d",
        task="text", vocabulary=4096, text_length=32, tokeniser="one",
    )  # fmt: skip
    other = dataclasses.replace(info, client_id=1, model="hf-bert", tokeniser="two")
    same = dataclasses.replace(info, client_id=2)
    server = MethodServer(run)
    with pytest.raises(RegistrationError, match="client 1: model hf-bert turns sentences into"):
        server.admit([info, other, same])
    server.admit([info, same])


def test_devices_with_sentences_and_with_images_are_refused(reviews: str, tmp_path: Path) -> None:
    images = {"dataset": "digits", "model": "cnn5", "data-dir": ""}
    nodes = {1: {"partition-id": 1, "num-partitions": 3, **images}}
    with pytest.raises(RegistrationError, match=r"client 1: .*the others have"):
        run_federation(tmp_path, 3, nodes=nodes, **settings(reviews, "fedproto"))
