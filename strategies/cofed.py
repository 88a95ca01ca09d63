"""CoFED: users label public items for each other, by the names of their classes.

Source: CoFED (Cao et al., 2023: co-training across unlike models and label spaces). Users train
locally. Then, once, every user names the public items it is sure of: item x gets its first class
where the first probability exceeds the second by `margin`. The server gives item u the class c if
votes(u, c) / (number of users whose label space has c) > `agreement`, classes being the same where
their names are. Every user receives the items of its own classes, drops those with more than one of
them, and from then on trains on its own and the pseudo-labelled items, with class weights 1 /
count, the largest scaled to 1.

Every round is one local training, and all of them but one go without arrays. That of the exchange
has two messages: votes up after its training, then labels down, on which no step is made; users
train on both from the next round on. A user that misses the exchange trains on alone.

Where the code departs from the source, and why:
- "Locally to convergence" is the rounds up to `exchange_round`, half of all by default; the
  retraining on both goes on from there.
- Multi-label users decide every class for itself: a vote needs p - (1 - p) >= `margin`. An item
  they receive is an example of the classes named, and says nothing of the others, which count
  neither in the loss. Users that segment have no class of a whole item: they train locally.
- Class names cross the network as 64-bit hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from data import Split, TaskSplit
from data.annotated import IGNORE
from models import TaskModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.options import ConfigError, option
from strategies.base.payload import array
from strategies.base.run_config import RunConfig
from strategies.base.server import ServerContext, ServerHalf
from strategies.base.state import Transient
from strategies.common.losses import LossFunction, task_loss
from strategies.common.public import PublicInputs
from strategies.common.training import train_epochs

Ids = NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of CoFED; defaults are the source's.

    Attributes
    ----------
    margin : float
        A user votes where its first probability exceeds the second by this much.
    agreement : float
        A label needs more than this share of the users that know the class.
    exchange_round : int
        The round after whose training users exchange labels; 0: half of `num-rounds`, rounded up.
        Of a run that is resumed with more rounds it stays what it was: give the number then.
    """

    margin: float = option(0.3, minimum=0, maximum=1)
    agreement: float = option(0.3, minimum=0, maximum=1)
    exchange_round: int = option(0, minimum=0)

    def in_rounds(self, num_rounds: int) -> Config:
        """Return these options with the round of the exchange as a number."""
        return dataclasses.replace(self, exchange_round=self.exchange_round or -(-num_rounds // 2))


@dataclasses.dataclass
class Uplink:
    """A user's label space, and its votes: item `items[v]` is of its class `classes[v]`."""

    class_keys: NDArray[np.int64] = array("c", dtype="int64", counted=False, unique=True)
    items: Ids = array("v", dtype="int32", minimum=0, below="P")
    classes: Ids = array("v", dtype="int32", minimum=0, below="c")


@dataclasses.dataclass
class Downlink:
    """Labelled items for one user, in its own class numbers; empty but once."""

    items: Ids = array("v", dtype="int32", minimum=0, below="P")
    classes: Ids = array("v", dtype="int32", minimum=0, below="C")


@dataclasses.dataclass
class ServerState:
    """Of a round's first exchange, for its second: agreed labels, and users' class keys (C,).

    `agreed_in` is the round. Its second exchange may have nobody to ask; nobody gets them then.
    """

    labels: Transient[list[tuple[int, int]]] = dataclasses.field(default_factory=list)
    class_keys: Transient[dict[int, NDArray[np.int64]]] = dataclasses.field(default_factory=dict)
    agreed_in: Transient[int] = 0


@dataclasses.dataclass
class ClientState:
    """The personal model, and the pseudo-labelled items (v,) with their classes (v,)."""

    model: TaskModel
    items: Tensor
    classes: Tensor


def class_keys(names: Sequence[str]) -> NDArray[np.int64]:
    """Return a 64-bit key of every class name, (C,); equal names have equal keys anywhere."""
    digests = [hashlib.sha256(name.encode()).digest()[:8] for name in names]
    return np.array([int.from_bytes(d, "little", signed=True) for d in digests], dtype=np.int64)


def confident_labels(probabilities: Tensor, margin: float, *, several: bool) -> tuple[Ids, Ids]:
    """Return the rows of (N, C) that are sure enough of a class, (v,), and which, (v,).

    With `several`, entries are probabilities of independent classes, and each is its own decision.
    """
    if several:
        rows, classes = torch.nonzero(2 * probabilities - 1 >= margin, as_tuple=True)
    else:
        top = probabilities.topk(2, dim=1)
        rows = torch.nonzero(top.values[:, 0] - top.values[:, 1] >= margin)[:, 0]
        classes = top.indices[rows, 0]
    return rows.numpy().astype(np.int32), classes.numpy().astype(np.int32)


def agree(uplinks: Mapping[int, Uplink], agreement: float) -> set[tuple[int, int]]:
    """Return the labels (item, class key) that enough of the users knowing the class gave."""
    knowing = Counter(int(key) for uplink in uplinks.values() for key in uplink.class_keys)
    votes: Counter[tuple[int, int]] = Counter()
    for uplink in uplinks.values():
        keys = uplink.class_keys[uplink.classes]
        # A user has one vote for a label, however often it sends it.
        votes.update({(int(i), int(k)) for i, k in zip(uplink.items, keys, strict=True)})
    return {label for label, n in votes.items() if n / knowing[label[1]] > agreement}


def without_ambiguous(items: Ids, classes: Ids) -> tuple[Ids, Ids]:
    """Drop items that were assigned to more than one class."""
    counts = Counter(items.tolist())
    keep = np.array([counts[int(item)] == 1 for item in items], dtype=bool)
    return items[keep], classes[keep]


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: local training, votes, then training with the labels received."""

    def build(self, context: ClientContext) -> ClientState:
        nothing = torch.zeros(0, dtype=torch.int32, device="cpu")
        return ClientState(context.build_task_model(), nothing, nothing.clone())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        if context.exchange > 1:  # the round's training is done: only labels are to be put away
            return _no_votes(), self._put_away(context, state, downlink)
        split = self._with_pseudo_labels(context, state)
        loss = self._loss(context, state.model, split)
        metrics = train_epochs(context, [state.model], loss, split=split)
        votes = context.server_round == exchange_round(context.run)
        return self._votes(context, state.model) if votes else _no_votes(), metrics

    def _put_away(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> dict[str, float]:
        """Keep the labels received for the rounds to come; return how many there are, if any."""
        items, classes = downlink.items, downlink.classes
        if not len(items):
            return {}
        if context.data.task != "multilabel":
            items, classes = without_ambiguous(items, classes)
        state.items, state.classes = torch.tensor(items), torch.tensor(classes)
        return {"pseudo_labelled": float(len(items))}

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": state.model(images)}

    def _votes(self, context: ClientContext, model: TaskModel) -> Uplink:
        if context.data.task == "segmentation":
            return _no_votes()
        public, several = PublicInputs(context), context.data.task == "multilabel"
        logits = public.outputs(model, np.arange(len(public), dtype=np.int32), model).cpu()
        shares = logits.sigmoid() if several else logits.softmax(dim=1)
        items, classes = confident_labels(shares, context.config.margin, several=several)
        return Uplink(class_keys(context.data.class_names), items, classes)

    def _with_pseudo_labels(self, context: ClientContext, state: ClientState) -> Split:
        """Return the training examples with the pseudo-labelled items after them."""
        own = context.data.train
        if not len(state.items):
            return own
        inputs, targets = own.batch(np.arange(len(own)))
        items, classes = state.items.cpu().numpy(), state.classes.cpu().long()
        if context.data.task == "multilabel":
            unique, rows = np.unique(items, return_inverse=True)
            added = torch.full((len(unique), context.data.num_classes), IGNORE, dtype=torch.uint8)
            added[torch.from_numpy(rows), classes] = 1
            items, classes = unique, added
        public = PublicInputs(context).raw(items)
        both = torch.cat([inputs, public.to(inputs.dtype)]), torch.cat([targets, classes])
        rows = np.arange(len(both[0]))
        return TaskSplit(own.dataset, rows, both[0].numpy(), both[1].numpy())

    def _loss(self, context: ClientContext, model: TaskModel, split: Split) -> LossFunction:
        """Return the task's loss, with class weights once there are pseudo-labels."""
        if split is context.data.train or context.data.task == "multilabel":
            return task_loss(context.data.task, model)
        counts = torch.zeros(context.data.num_classes)
        for label, count in split.class_counts().items():
            counts[label] = count
        weights = torch.where(counts > 0, 1 / counts.clamp_min(1), 0.0)
        weights = (weights / weights.max()).to(context.device)

        def loss(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return {"loss_ce": F.cross_entropy(model(inputs), targets, weight=weights)}

        return loss


def exchange_round(run: RunConfig) -> int:
    """Return the round in which labels are exchanged."""
    number: int = run.method_config.in_rounds(run.num_rounds).exchange_round
    return number


def _no_votes() -> Uplink:
    nothing = np.empty(0, dtype=np.int32)
    return Uplink(nothing.astype(np.int64), nothing, nothing)


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: counts votes once and tells every user the labels of its own classes."""

    def initial_state(self, context: ServerContext) -> ServerState:
        return ServerState()

    def check_run(self, run: RunConfig) -> tuple[str, ...]:
        if run.method_config.exchange_round > run.num_rounds:
            raise ConfigError(
                f"cofed.exchange-round = {run.method_config.exchange_round}: expected a round of "
                f"the run, at most num-rounds = {run.num_rounds}"
            )
        last = exchange_round(run)
        if last == run.num_rounds:
            return (f"cofed: labels come after round {last}, the last: nobody trains with them",)
        return ()

    def exchanges(self, context: ServerContext) -> int:
        return 2 if context.server_round == exchange_round(context.run) else 1

    def evaluated_exchange(self, context: ServerContext) -> int:
        """Return the first: the second changes no model."""
        return 1

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink | None:
        """Return the labels of a user's own classes, after the votes; else nothing."""
        if client is None:
            return None
        due = (context.server_round, context.exchange) == (state.agreed_in, 2)
        own = {int(key): n for n, key in enumerate(state.class_keys.get(client.client_id, ()))}
        mine = [(item, own[key]) for item, key in state.labels if due and key in own]
        pairs = np.array(mine, dtype=np.int32).reshape(-1, 2)
        return Downlink(pairs[:, 0].copy(), pairs[:, 1].copy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        voted = context.exchange == 1 and self.exchanges(context) == 2
        uplinks = {u.client_id: u.uplink for u in updates if voted}
        state.labels = sorted(agree(uplinks, context.config.agreement))
        state.class_keys = {client: uplink.class_keys for client, uplink in uplinks.items()}
        state.agreed_in = context.server_round
        return {"labels_agreed": float(len(state.labels))} if voted else {}


METHOD = register(
    __name__,
    summary="users label public items for each other once, by the names of their classes",
    evaluate_when="post",
    common_feature_dim=False,
    any_task=True,
    task_models=True,
    public_data=True,
)
