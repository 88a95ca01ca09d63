"""Checks of whole runs: unlike clients, few participants, the same numbers for the same seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Message, RecordDict

from client_app.app import make_client_app
from deploy.contract.runs import Candidate, NotKept, Outcome, expect
from server_app.rounds.in_process import InProcessGrid
from strategies.base.payload import ARRAYS, MANIFEST

SETTINGS: dict[str, Any] = {
    "sample_fraction": 0.7,
    "image_size": 16,  # convolutions are most of the time otherwise
}


WIDE: dict[str, Any] = {"models": "*=resnet10", "subset": 0.05}
"""Where clients have parts of one network: its names and shapes are little beside a part of it."""


def settings_for(tested: Candidate) -> dict[str, Any]:
    """Return the settings of a method's plain run."""
    return {**SETTINGS, **(WIDE if tested.method.one_network else {})}


def halves_are_declared(tested: Candidate, directory: Path) -> None:
    """Payloads declare every field's shape, and both halves can be made."""
    method = tested.method
    for payload in (method.uplink, method.downlink):
        for field in dataclasses.fields(payload):
            expect(
                "array" in field.metadata,
                f"{payload.__name__}.{field.name}: declared by neither array() nor arrays()",
            )
    expect(method.summary, "register() was given no summary")
    expect(dataclasses.is_dataclass(method.config), "Config is no dataclass")
    expect(make_client_app(method) is not None, "there is no ClientApp")


def unlike_clients_finish(tested: Candidate, directory: Path) -> None:
    """Three architectures, one client with a single example, another with a single class."""
    run = tested.run(
        directory,
        6,
        alpha=0.05,
        min_examples=1,
        partition_seed=4,
        models="resnet10-w4, cnn5, cnn2",
        image_size=16,
    )
    first = run.rows("clients")[0]
    setting = (first["model"], first["train_examples"], len(first["classes"].split()))
    expect(setting == ("resnet10-w4", "1", 1), f"client 0 is not as it was to be: {setting}")
    expect(run.config["status"] == "completed", f"the run is {run.config['status']}")
    no_failures(run)
    rows = run.rows("metrics")
    expect(rows, "nothing was measured")
    for row in rows:
        expect(
            math.isfinite(float(row["value"])),
            f"round {row['round']}, client {row['client']}: {row['phase']} {row['metric']} is "
            f"{row['value']}",
        )
    for what, column, measured in (
        ("training loss", "train_examples", run.metrics(phase="train", metric="loss")),
        ("accuracy in round 2", "test_examples", run.metrics(metric="accuracy", round=2)),
    ):
        able = {r["client"] for r in run.rows("clients") if r[column] != "0"}
        found = {r["client"] for r in measured}
        expect(found == able, f"{what}: of clients {sorted(found)}, expected {sorted(able)}")


def no_failures(run: Outcome) -> None:
    """Raise `NotKept` naming the first client that failed in a run, if any did."""
    for row in run.rows("failures"):
        raise NotKept(f"round {row['round']}, client {row['client']}: {row['reason']}")


def one_client_a_round(tested: Candidate, directory: Path) -> None:
    """With one participant a round, clients never seen before are evaluated as they are."""
    run = tested.run(directory, 4, sample_fraction=0.25, num_rounds=3, image_size=16)
    no_failures(run)
    for number in (1, 2, 3):
        trained = [r["client"] for r in run.metrics(phase="train", metric="loss", round=number)]
        expect(len(trained) == 1, f"round {number}: clients {trained} report a training loss")
        sent = [
            row["client"]
            for row in run.rows("traffic")
            if (row["round"], row["direction"], row["purpose"])
            == (str(number), "downlink", "train")
        ]
        expect(sent == trained, f"round {number}: client {trained} trained, {sent} were asked to")
        evaluated = {row["client"] for row in run.metrics(metric="accuracy", round=number)}
        expect(
            evaluated == {"0", "1", "2", "3"},
            f"round {number}: an accuracy of clients {sorted(evaluated)} only, there are 4",
        )


# One run for several checks -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a client got or answered in a run, and its digest at that time."""

    what: str
    content: RecordDict
    digest: bytes


@dataclasses.dataclass(frozen=True)
class Plain:
    """A finished run of a method, and all contents with a payload that clients got and sent."""

    tested: Candidate
    run: Outcome
    sent: list[Sent]


def digest(content: RecordDict) -> bytes:
    """Return a digest of a payload's bytes."""
    data = hashlib.blake2b(digest_size=16)
    for key, item in sorted(content[ARRAYS].items()):
        data.update(key.encode())
        data.update(item.data)  # type: ignore[union-attr]
    return data.digest()


def plain_run(tested: Candidate, directory: Path) -> Plain:
    """Two rounds of two of three clients, in which all three train: one run for several checks."""
    sent: list[Sent] = []

    def keep(kind: str, client: int, message: Message) -> None:
        if MANIFEST in message.content:
            what = f"round {message.metadata.group_id}, client {client}: {kind}"
            sent.append(Sent(what, message.content, digest(message.content)))

    class Tapped(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            node = self.contexts[message.metadata.dst_node_id]
            client = int(str(node.node_config["partition-id"]))
            keep("downlink", client, message)
            reply = super()._answer(message)
            if not reply.has_error():
                keep("uplink", client, reply)
            return reply

    run = tested.run(directory, 3, grid_class=Tapped, **settings_for(tested))
    no_failures(run)
    trained = {row["client"] for row in run.metrics(phase="train")}
    expect(trained == {"0", "1", "2"}, f"clients {sorted(trained)} of 3 report training")
    return Plain(tested, run, sent)


def same_seed_same_numbers(plain: Plain, directory: Path) -> None:
    """Two runs of one seed are equal, in whatever order messages are made and answered.

    In the second, as on real devices, all messages of a round are made before any is answered.
    """
    run, settings = plain.tested.run, settings_for(plain.tested)
    other = run(directory / "other", 3, seed=1, num_rounds=1, **settings)
    with mock.patch("server_app.rounds.exchange.window_of", return_value=None):
        again = run(directory / "again", 3, **settings)
    for name in ("metrics", "traffic"):
        same_rows(plain.run, again, name, "two runs of one seed")
    losses = [
        {row["value"] for row in of.metrics(phase="train", metric="loss", round=1)}
        for of in (plain.run, other)
    ]
    expect(all(losses), "round 1: no training loss")
    expect(losses[0].isdisjoint(losses[1]), "seeds 0 and 1 give the same training loss in round 1")


def same_rows(one: Outcome, other: Outcome, name: str, who: str) -> None:
    """Raise `NotKept` naming the first row of a CSV file in which two runs differ, if any."""
    if one.text(f"{name}.csv") == other.text(f"{name}.csv"):
        return
    rows = [run.rows(name) for run in (one, other)]
    for left, right in zip(*rows, strict=False):
        if left != right:
            raise NotKept(f"{who} differ: {name}.csv has {_told(left)} and {_told(right)}")
    raise NotKept(f"{who} differ: {name}.csv has {len(rows[0])} and {len(rows[1])} rows")


def _told(row: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in row.items())


def payloads_stay_as_sent(plain: Plain, directory: Path) -> None:
    """Neither half writes into a payload it was given: others are given the same bytes."""
    for item in plain.sent:
        expect(digest(item.content) == item.digest, f"{item.what} was changed after it was sent")


def wire_is_what_is_declared(plain: Plain, directory: Path) -> None:
    """Require records within 2 % of the bytes of a payload's elements, from 12 KB on.

    What is added, about 230 bytes for two dtypes, is 2.3 % of 10 KB.
    """
    expect(plain.sent, "nothing was sent")
    for item in plain.sent:
        content = item.content
        entries = json.loads(str(content.config_records[MANIFEST]["entries"]))
        declared = sum(np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in entries)
        size = content[ARRAYS].count_bytes() + content[MANIFEST].count_bytes()
        most = 1.02 * declared if declared > 12_000 else math.inf
        expect(
            declared <= size <= most,
            f"{item.what} has {declared} bytes of elements and {size} bytes of records",
        )
