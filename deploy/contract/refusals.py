"""Check of clients that answer with damaged uplinks: each is refused by name, and nothing else.

One client of a run answers as it should. The others send its answer again under their own ids,
each with one seeded damage. The server's state must be that of a run with the first client alone.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from deploy.contract.damages import DAMAGES, Answer, Entries, sprung
from deploy.contract.runs import TINY, Candidate, Outcome, expect
from server_app.rounds.in_process import InProcessGrid
from strategies.base.messages import CLIENT_INFO, INFO

DAMAGED = 50
"""Damaged answers."""
SETTINGS: dict[str, Any] = {**TINY, "num_rounds": 1, "models": "resnet10-w4", "min_clients": 1}


class Recorded(InProcessGrid):
    """Keeps what the only client answers, by the kind of the message."""

    answers: dict[str, RecordDict]

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if not reply.has_error():
            kind = message.metadata.message_type
            self.answers.setdefault(kind, copy.deepcopy(reply.content))
        return reply


def replaying(
    tested: Candidate, answers: dict[str, RecordDict], named: dict[int, str], seed: int
) -> ClientApp:
    """Return a ClientApp that gives recorded answers, damaged on all clients but client 0.

    What the refusal of each client's answer has to name is put into `named`.
    """
    app, uplink = ClientApp(), tested.method.uplink

    def answer(message: Message, context: Context) -> Message:
        kind, client = message.metadata.message_type, int(str(context.node_config["partition-id"]))
        content = copy.deepcopy(answers[kind])
        if kind == "query":
            content.config_records[CLIENT_INFO]["client_id"] = client
        else:
            content.config_records[INFO]["client-id"] = client
        if kind == "train" and client:
            damaged = Answer(content, uplink, np.random.default_rng([seed, client]))
            named[client] = DAMAGES[client % len(DAMAGES)](damaged)
        return Message(content, reply_to=message)

    app.query()(answer)
    app.train()(answer)
    app.evaluate()(answer)
    return app


def server_state(run: Outcome) -> Entries:
    """Return the tensors of the only checkpoint."""
    (path,) = (run.path / "checkpoints").glob("round-*")
    state: Entries = load_file(path)
    return state


def damaged_uplinks_are_refused(tested: Candidate, directory: Path, *, seed: int = 0) -> None:
    """Fifty damaged uplinks are refused, each by name, and leave nothing behind."""
    answers: dict[str, RecordDict] = {}
    grid = type("Grid", (Recorded,), {"answers": answers})
    # Who answers as another has to have the same part of a common network: the whole of it.
    nodes = {0: {"partition-id": 0, "num-partitions": 1, "rate": 1.0}}
    alone = tested.run(directory / "alone", 1, grid_class=grid, nodes=nodes, **SETTINGS)
    named: dict[int, str] = {}
    app = replaying(tested, answers, named, seed)
    run = tested.run(directory / "among", 1 + DAMAGED, app=app, **SETTINGS)
    expect(run.config["status"] == "completed", f"the run is {run.config['status']}")
    expect(len(named) == DAMAGED, f"{len(named)} clients answered, expected {DAMAGED}")
    reasons = {int(r["client"]): r["reason"] for r in run.rows("failures") if r["kind"] == "train"}
    for client, name in sorted(named.items()):
        expected, said = f"refused payload: {name}", reasons.get(client, "it was accepted")
        expect(said.startswith(expected), f"client {client}: expected '{expected}...', but {said}")
    expect(len(reasons) == DAMAGED, f"also failed: {sorted(reasons.keys() - named.keys())}")
    failed = run.rows("rounds")[0]["failed"]
    expect(failed == str(DAMAGED), f"rounds.csv has {failed} failed clients, not {DAMAGED}")

    # Nothing of what was refused is in the server's state or among what clients measured.
    expected_state, state = (server_state(outcome) for outcome in (alone, run))
    expect(state.keys() == expected_state.keys(), "the server's state has other entries")
    for key, item in state.items():
        same = item.tobytes() == expected_state[key].tobytes()
        expect(same, f"the server's state differs from that of one client alone: {key}")
    measured = {row["client"] for row in run.metrics(phase="train")}
    expect(measured == {"0"}, f"metrics.csv has training of clients {sorted(measured)}")
    expect(sprung == [], "an answer was unpickled")
