"""FedMuscle's cost of communication: what the paper sends beside what is sent here.

The paper's server sends a user, in every contrastive step, the sums of all B^M tuples of the M
others' representations and a weight each: (d + 1) B^M scalars. Here it sends the M matrices (M, B,
d), which give the same loss (see `strategies.fedmuscle`). The figures of this side are those of
real payloads: a server half with the representations of enough users builds and packs them.

The paper publishes gigabytes a round and user for M = 1, 3 and 5. They fit B^M d + B d scalars a
step with B = 20 and T x d x (bytes of a scalar) = 128,000, for example T = 125 steps with d = 256
and 4 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from deploy.costs.table import aligned
from strategies.base.messages import ClientInfo, ClientUpdate, count_bytes
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars, pack
from strategies.base.server import ServerContext
from strategies.fedmuscle.fedmuscle import Server, Uplink

WIDTH = 256
USERS, BATCHES = (1, 3, 5), (20, 32)
PUBLISHED_GIB = {1: 0.004, 3: 0.956, 5: 381.565}
PUBLISHED_BATCH, PUBLISHED_STEPS = 20, 125
FLOAT = 4


@dataclasses.dataclass(frozen=True)
class StepCost:
    """One contrastive step of one user: scalars and bytes that are sent to it and by it.

    Attributes
    ----------
    batch, users : int
        B and M.
    uplink, downlink : int
        Scalars of the payloads here.
    downlink_bytes : int
        Of the packed downlink, manifest and public indices included.
    paper_downlink : int
        (d + 1) B^M.
    """

    batch: int
    users: int
    uplink: int
    downlink: int
    downlink_bytes: int
    paper_downlink: int


def measure(batch: int, users: int) -> StepCost:
    """Measure one step on real payloads of M + 1 users."""
    run = parse_run_config(
        {
            "method": "fedmuscle", "feature-dim": WIDTH, "public-size": batch,
            "fedmuscle.users": users, "fedmuscle.batch-size": batch, "fedmuscle.exchange": "step",
        }
    )  # fmt: skip
    server, clients = Server(), {info.client_id: info for info in _cards(users + 1)}
    first = ServerContext(run, clients, server_round=1)
    state = server.initial_state(first)
    sent = dict(_representations(batch, users + 1))
    server.aggregate(first, state, _updates(sent))
    second = dataclasses.replace(first, exchange=2)
    downlink = server.downlink(second, state, clients[0])
    return StepCost(
        batch=batch,
        users=users,
        uplink=count_scalars(sent[0])[0],
        downlink=count_scalars(downlink)[0],
        downlink_bytes=count_bytes(pack(downlink)),
        paper_downlink=(WIDTH + 1) * batch**users,
    )


def _cards(count: int) -> list[ClientInfo]:
    about = {
        "model": "none", "parameters": 0, "raw_dim": WIDTH, "feature_dim": WIDTH, "num_classes": 2,
        "channels": 1, "image_size": 8, "class_hash": "", "classes": [0], "class_counts": [1],
        "train_examples": 1, "validation_examples": 0, "test_examples": 0, "device": "cpu",
        "data_hash": "",
    }  # fmt: skip
    return [ClientInfo(client_id=client, **about) for client in range(count)]  # type: ignore[arg-type]


def _representations(batch: int, users: int) -> Iterator[tuple[int, Uplink]]:
    for user in range(users):
        z = np.random.default_rng(user).normal(size=(batch, WIDTH))
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        yield user, Uplink(z.astype(np.float32))


def _updates(uplinks: dict[int, Uplink]) -> Iterable[ClientUpdate]:
    for client, uplink in uplinks.items():
        yield ClientUpdate(client, 1, uplink, [], 0.0, 0, 0, "")


def render() -> str:
    """Return the table and what the paper publishes, as text."""
    header = (
        "B", "M", "up scalars", "paper's down scalars", "down scalars here", "down bytes here",
        "times fewer", "paper's GiB a round", "GiB from B^M d", "GiB a round here",
    )  # fmt: skip
    rows = [_row(measure(batch, users)) for batch in BATCHES for users in USERS]
    words = (
        f"One contrastive step of one user, d = {WIDTH}. A round is T = {PUBLISHED_STEPS} steps of "
        f"float32, which with B = {PUBLISHED_BATCH} fits what the paper publishes; both ways are "
        "counted.\nThe paper's downlink is computed, the one here is measured on real payloads."
    )
    return "\n".join([words, "", *aligned([header, *rows])])


def _row(cost: StepCost) -> tuple[str, ...]:
    def gib(downlink: int) -> float:
        return PUBLISHED_STEPS * (downlink + cost.uplink) * FLOAT / 2**30

    published = PUBLISHED_GIB[cost.users] if cost.batch == PUBLISHED_BATCH else None
    return (
        str(cost.batch),
        str(cost.users),
        f"{cost.uplink:,}",
        f"{cost.paper_downlink:,}",
        f"{cost.downlink:,}",
        f"{cost.downlink_bytes:,}",
        f"{cost.paper_downlink / cost.downlink:,.1f}",
        "not published" if published is None else f"{published:.3f}",
        f"{gib(WIDTH * cost.batch**cost.users):,.3f}",
        f"{gib(cost.downlink):.4f}",
    )
