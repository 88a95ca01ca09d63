"""From a Flower message to the method's client half and back."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType, RecordDict

from client_app.evaluation import evaluate_client, score_rows
from client_app.first_state import initial_state, is_worth_keeping
from client_app.machine import machine_text
from client_app.model_trial import try_own_model
from client_app.node import client_context, client_id_of, simulated, state_root
from client_app.noise import noise_generator
from client_app.state_store import StateStore, state_directory
from models import (
    PairShape,
    TextShape,
    count_parameters,
    tokeniser_fingerprint,
)
from models.build import proven
from models.skeleton import skeleton
from strategies.base.checked import LONGEST_TEXT
from strategies.base.client import ClientContext
from strategies.base.messages import (
    CLIENT_INFO,
    CONTROL,
    INFO,
    LONGEST_PROBLEM,
    METRICS,
    TRAINED,
    ClientInfo,
    Control,
    MetricRow,
    ReplyInfo,
    SetUpProblem,
    metrics_record,
)
from strategies.base.method import Method
from strategies.base.payload import pack, unpack
from strategies.base.protection import protected
from strategies.base.received_text import visible
from strategies.base.rng import derive_seed, isolated_torch_rng
from strategies.base.round_files import prune_rounds
from strategies.base.state import modules_of, move_state, non_finite_entries
from strategies.common.flops import remembered
from strategies.common.public import PublicInputs, shown_in_public
from strategies.common.training import TrainingDivergedError

FLOPS = "flops.json"
"""Beside a client's private states: what a step of its training costs."""


def answer_query(message: Message, context: Context, method: Method) -> Message:
    """Answer the registration with this client's info."""
    local = client_context(context, 0)
    client = describe_client(local, method)
    if not simulated():
        place = Path(str(context.node_config.get("state-dir") or local.run.run_root))
        client = replace(client, machine=machine_text(place.expanduser()))
    return Message(RecordDict({CLIENT_INFO: client.to_record()}), reply_to=message)


def problem_reply(message: Message, context: Context, error: Exception) -> Message:
    """Answer the registration with what is wrong with this client's set-up.

    A mistake in the set-up is the user's to mend before anything is trained; it travels as text, so
    that the server can name it without a traceback.
    """
    node_id = context.node_config.get("client-id", context.node_config.get("partition-id"))
    text = visible(" ".join(f"{type(error).__name__}: {error}".split()))[:LONGEST_PROBLEM]
    problem = SetUpProblem(problem=text, who=visible(str(node_id))[:100])
    return Message(RecordDict({CLIENT_INFO: problem.to_record()}), reply_to=message)


def describe_client(context: ClientContext, method: Method) -> ClientInfo:
    """Describe a client; its model is built without weights, and one of its own is tried."""
    with skeleton():
        model = method.client().build(context).model
    try_own_model(context, method, model)
    data = context.data
    counts = data.train.class_counts()
    shape = context.task_shape
    text = shape.text if isinstance(shape, PairShape) else shape
    reading = _reading(context.model_name, text) if isinstance(text, TextShape) else {}
    return ClientInfo(
        client_id=context.client_id,
        model=context.model_name,
        parameters=count_parameters(model),
        raw_dim=model.raw_dim,
        feature_dim=model.feature_dim,
        num_classes=data.num_classes,
        channels=data.channels,
        image_size=data.image_size,
        class_hash=data.class_hash,
        classes=list(counts),
        class_counts=list(counts.values()) if context.shares_class_counts else [],
        train_examples=len(data.train),
        validation_examples=len(data.validation),
        test_examples=len(data.test),
        device=str(context.device),
        data_hash=data.data_hash,
        task=str(context.task or data.task),
        metric=data.metric,
        public_hash=PublicInputs(context).fingerprint if method.public_data else "",
        data_notes=_notes(context, method),
        rate=context.rate or 0.0,
        features=data.features,
        steps=data.steps,
        columns_hash=data.columns_hash,
        **reading,
    )


def _notes(context: ClientContext, method: Method) -> str:
    """Return what there is to know of the data: what files were read as, what is public of them."""
    public = shown_in_public(context) if method.public_data else ""
    return "; ".join(text for text in (public, context.data.notes) if text)[:LONGEST_TEXT]


def _reading(model: str, shape: TextShape) -> dict[str, Any]:
    """Return what the client's information says of a text model's tokens."""
    return {
        "vocabulary": shape.vocabulary,
        "text_length": shape.length,
        "tokeniser": tokeniser_fingerprint(model),
    }


def answer_train(message: Message, context: Context, method: Method) -> Message:
    """Receive the downlink, train, upload; evaluate before or after as the run wants it."""
    started = time.perf_counter()
    session = Session.open(message, context, method)
    local = session.context
    rows: list[MetricRow] = []
    evaluates = session.control.evaluate
    if evaluates and session.counts and local.run.evaluates_before_training:
        rows += session.evaluate("pre")
    examples = len(local.data.train)
    records = RecordDict()
    if examples:
        purpose = "layers" if local.exchange == 1 else f"layers-{local.exchange}"
        # Ray's workers answer many messages each, and count once
        ray = "ray" in sys.modules
        counts = nullcontext() if ray else remembered(session.store.directory / FLOPS)
        with counts, isolated_torch_rng(session.seed(purpose), local.device):
            uplink, metrics = session.half.train(local, session.state, session.downlink)
        session.refuse_divergence()
        rows += [MetricRow("train", name, value, examples) for name, value in metrics.items()]
        trained = session.rounds_trained + (local.exchange == 1)
        session.store.save(local.server_round, session.state, trained, local.kept)
        uplink = protected(
            uplink, session.downlink, local.run.privacy, local.data.num_classes,
            noise_generator(local),
        )  # fmt: skip
        records = pack(uplink, local.run.wire)
    if evaluates and not local.run.evaluates_before_training:
        rows += session.evaluate("post")
    if evaluates and examples and local.run.evaluates_trained:
        rows += session.evaluate_trained()
    return session.reply(message, records, rows, examples, started)


def answer_evaluate(message: Message, context: Context, method: Method) -> Message:
    """Receive the downlink and evaluate with the private model as it is; nothing is saved."""
    started = time.perf_counter()
    session = Session.open(message, context, method)
    rows = session.evaluate(session.control.phase) if session.counts else []
    return session.reply(message, RecordDict(), rows, 0, started)


@dataclass
class Session:
    """One client at work on one message."""

    context: ClientContext
    control: Control
    half: Any
    state: Any
    downlink: Any
    store: StateStore
    rounds_trained: int

    @classmethod
    def open(cls, message: Message, context: Context, method: Method) -> Session:
        """Load or build the client's state and put the downlink into it."""
        control = Control.from_record(message.content.config_records.get(CONTROL))
        local = client_context(context, control.round, control.exchange)
        root = state_root(local.run, context.node_config, control.run_name)
        directory = state_directory(root, client_id_of(context.node_config))
        store = StateStore(
            directory,
            about={
                "method": method.name,
                "model": local.model_name,
                "client": local.client_id,
                "seed": local.run.seed,
                "run": control.token,
            },
            session=control.session,
            resumed_at=control.resumed_at,
            # A simulation's states need not survive a power cut; a device's must.
            durable=not simulated(),
        )
        store.discard_lost()
        half = method.client()
        session = cls(local, control, half, None, None, store, 0)
        session.state, session.rounds_trained = session.restore(
            of_this_round=control.final or local.exchange > 1,
            evaluates=message.metadata.message_type == MessageType.EVALUATE,
        )
        session.downlink = unpack(
            method.downlink, message.content, local.dims, half.templates(local)
        )
        move_state(session.state, local.device)
        # Whether an evaluation came first or not, training starts from the same mode.
        for module in modules_of(session.state):
            module.eval()
        half.receive(session.context, session.state, session.downlink)
        prune_rounds(directory, control.keep_from)
        return session

    def restore(self, *, of_this_round: bool, evaluates: bool) -> tuple[Any, int]:
        """Return the newest saved state before this round, or the initial one.

        A round's later exchanges go on with the state that its first one left; and the closing
        evaluation comes after the last round, whose state it must see. A client that is only
        evaluated, and will be again, may keep its initial state as that of round 0.
        """
        number = self.context.server_round + (1 if of_this_round else 0)
        path = self.store.newest_before(number)
        if path is None:
            state = initial_state(self.half, self.context)
            if evaluates and is_worth_keeping(state, self.context, self.store.directory):
                self.store.save(0, state, 0)
            return state, 0
        with skeleton(), proven():
            bare = self.half.build(self.context)
        restored = self.store.load(path, bare)
        kept = self.store.load_kept(path, optimizers=self.context.run.keep_optimizer)
        self.context = replace(self.context, kept=kept)
        return restored

    @property
    def counts(self) -> bool:
        """Whether this client's model, as it was received, is one that the run evaluates."""
        return self.rounds_trained > 0 or self.context.run.evaluates_untrained

    def refuse_divergence(self) -> None:
        """Raise if training left NaN or infinite values, before they are saved or sent."""
        broken = non_finite_entries(self.state)
        if broken:
            raise TrainingDivergedError(
                f"client {self.context.client_id}, round {self.context.server_round}: after "
                f"training {broken[0]} holds NaN or infinite values; lower lr"
            )

    def evaluate(self, phase: str) -> list[MetricRow]:
        """Measure the state as it is now."""
        return evaluate_client(
            self.context, self.half, self.state, self.downlink, phase, test=self.control.test
        )

    def evaluate_trained(self) -> list[MetricRow]:
        """Measure the test split after training, where the main evaluation came before it."""
        if not self.control.test:
            return []
        splits = {TRAINED: self.context.data.test}
        return score_rows(self.context, self.half, self.state, self.downlink, "post", splits)

    def seed(self, purpose: str) -> int:
        """Return the seed of one of this round's private streams."""
        local = self.context
        return derive_seed(local.run.seed, local.client_id, local.server_round, purpose)

    def reply(
        self,
        message: Message,
        records: RecordDict,
        rows: list[MetricRow],
        examples: int,
        started: float,
    ) -> Message:
        """Return the answer: payload, metrics, and who took how long for which round."""
        records[METRICS] = metrics_record(rows)
        records[INFO] = ReplyInfo(
            client_id=self.context.client_id,
            round=self.context.server_round,
            num_examples=examples,
            compute_s=time.perf_counter() - started,
            worker=_worker_name(),
            rounds_trained=self.rounds_trained,
        ).to_record()
        return Message(records, reply_to=message)


def _worker_name() -> str:
    """Name this process in a text of fixed length, so that replies are of equal size in any run."""
    return hashlib.sha256(f"{platform.node()}:{os.getpid()}".encode()).hexdigest()[:8]
