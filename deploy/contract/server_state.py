"""Checks of the server half apart from the loop, on the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from deploy.contract.rounds import Plain, digest
from deploy.contract.runs import expect
from models.own_code import searching
from server_app.records.checkpoints import Checkpoints
from server_app.rounds.method_server import MethodServer
from strategies.base.messages import INFO, ClientInfo, ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import pack
from strategies.base.state import load_state, save_state


def server_of(plain: Plain) -> MethodServer:
    """Return the server half of a run as it was before round 1, with the run's clients."""
    run = plain.run
    config = {k: v for k, v in run.config["config"].items() if k != "resume"}
    with searching(str(config.get("code-dir", ""))):
        server = MethodServer(parse_run_config(config))
    infos = []
    for row in run.rows("clients"):
        values: dict[str, object] = {}
        for field in dataclasses.fields(ClientInfo):
            text = row["client" if field.name == "client_id" else field.name]
            if field.type == "list[int]":
                values[field.name] = [int(v) for v in text.split()]
            else:
                read = {"int": int, "float": float}.get(str(field.type), str)
                values[field.name] = read(text)
        infos.append(ClientInfo.from_record(values))
    server.admit(infos)
    server.begin()
    return server


def state_survives_a_checkpoint(plain: Plain, directory: Path) -> None:
    """Save and load the server's state after two rounds: every field is restored bit for bit."""
    server = server_of(plain)
    loaded, fresh = (server.half.initial_state(server.context) for _ in range(2))
    found = Checkpoints(plain.run.path / "checkpoints", 2).load_newest(loaded)
    expect(found == 2, f"the newest checkpoint is of round {found}, expected 2")
    copy = directory / "copy.safetensors"
    save_state(copy, loaded, {})
    again = load_state(copy, fresh)
    for field in dataclasses.fields(loaded):
        before, after = getattr(loaded, field.name), getattr(again, field.name)
        if isinstance(before, torch.Tensor):
            expect(torch.equal(before, after), f"ServerState.{field.name} is not restored")


def server_half_holds_nothing(plain: Plain, directory: Path) -> None:
    """Require that what the server does follows from its state and the uplinks alone.

    A downlink leaves the state as it is; `aggregate` changes what downlinks are made of only when
    it has read all uplinks; and done twice from equal states, it comes to equal states.
    """
    results = []
    for attempt in range(2):
        server = server_of(plain)
        server.server_round = 1
        sent, state = _downlinks(server), _content_of(server.state, directory)
        expect(_downlinks(server) == sent, "downlink, asked twice, gives two payloads")
        expect(_content_of(server.state, directory) == state, "downlink changes the server's state")
        server.aggregate(_one_by_one(server, plain, sent))
        held = sorted(vars(server.half))
        expect(not held, f"the server half keeps {', '.join(held)} outside of its state")
        results.append(_content_of(server.state, directory / str(attempt)))
    expect(results[0] == results[1], "aggregate, done twice from equal states, gives two states")


def _one_by_one(server: MethodServer, plain: Plain, sent: list[bytes]) -> Iterator[ClientUpdate]:
    """Yield the updates of round 1's first exchange, as they come in a simulation."""
    answers: dict[int, Any] = {}
    for item in plain.sent:
        if item.what.startswith("round 1,") and item.what.endswith("uplink"):
            answers.setdefault(int(str(item.content[INFO]["client-id"])), item.content)
    updates = [server.read(client, answers[client]) for client in sorted(answers)]
    for update in updates:
        yield update
        expect(_downlinks(server) == sent, "aggregate changes downlinks before it has read all")


def _downlinks(server: MethodServer) -> list[bytes]:
    """Return digests of what all clients, or each of them, would be sent now."""
    half, context = server.half, server.context
    common = half.downlink(context, server.state, None)
    clients = server.clients.values()
    payloads = [common] if common is not None else [
        half.downlink(context, server.state, client) for client in clients
    ]  # fmt: skip
    return [digest(pack(payload)) for payload in payloads]


def _content_of(state: Any, directory: Path) -> dict[str, bytes]:
    """Return all that is saved of a state, by entry."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "state.safetensors"
    save_state(path, state, {})
    with safe_open(path, "numpy") as file:
        found = {key: file.get_tensor(key).tobytes() for key in file.keys()}  # noqa: SIM118
        found["fields without tensors"] = str(file.metadata()["fields"]).encode()
    return found
