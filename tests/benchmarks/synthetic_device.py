"""A device that does what a SuperNode does, and trains nothing; see `fleet_load`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects, push_objects
from flwr.supernode.fleet_http_connection import http_request_response

from strategies.base.messages import (
    CLIENT_INFO,
    INFO,
    METRICS,
    ClientInfo,
    MetricRow,
    ReplyInfo,
    metrics_record,
)
from strategies.base.method import get_method
from strategies.base.payload import pack

POLL_SECONDS = 3.0
"""As in Flower's SuperNode."""
EXAMPLES, CLASSES, WIDTH = 60, 10, 512


class SyntheticDevice(threading.Thread):
    """Polls a SuperLink and answers it, until it is stopped.

    Attributes
    ----------
    polls : int
        How often it has asked for a message.
    silent : bool
        Whether it takes messages of training and never answers them.
    lost : int
        How many answers it could not give.
    problem : str
        The last reason, or what ended it.
    """

    def __init__(
        self, client_id: int, address: str, ca: str,
        keys: tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey], stop: threading.Event,
    ) -> None:  # fmt: skip
        super().__init__(name=f"device-{client_id}", daemon=True)
        self.client_id, self.address, self.ca, self.keys = client_id, address, ca, keys
        self.stop_asked = stop
        self.polls, self.silent, self.lost, self.problem = 0, False, 0, ""

    def run(self) -> None:
        """Connect and work."""
        try:
            with http_request_response(
                self.address, False, self.ca, self.keys, max_wait_time=60.0
            ) as connection:
                self._work(connection)
        except (Exception, SystemExit) as error:  # of Flower: whatever, it is one device's end
            self.problem = f"client {self.client_id}: {error!r}"

    def _work(self, connection: tuple[Any, ...]) -> None:
        _, receive, send, _, _, pull_object, push_object, confirm = connection
        while not self.stop_asked.is_set():
            self.polls += 1
            if (received := receive()) is None:
                self.stop_asked.wait(POLL_SECONDS)
                continue
            try:
                self._answer(received, send, pull_object, push_object, confirm)
            except Exception as error:  # as a SuperNode does: it is logged, and the answer is lost
                self.lost += 1
                self.problem = f"client {self.client_id}: {error!r}"

    def _answer(
        self, received: tuple[Message, Any], send: Any, pull_object: Any, push_object: Any,
        confirm: Any,
    ) -> None:  # fmt: skip
        message, tree = received
        run_id = message.metadata.run_id
        objects = [node.object_id for node in iterate_object_tree(tree)]
        pull_objects(objects, lambda name: pull_object(run_id, name))
        confirm(run_id, message.metadata.message_id)
        if self.silent and message.metadata.message_type != "query":
            return
        answer = Message(self._content(message), reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        everything = get_all_nested_objects(answer)
        wanted, session = send(answer, get_object_tree(answer), 0.0)
        push_objects(
            everything,
            lambda name, data: push_object(run_id, session, name, data),
            object_ids_to_push=wanted,
        )

    def _content(self, message: Message) -> RecordDict:
        if message.metadata.message_type == "query":
            return RecordDict({CLIENT_INFO: self._info().to_record()})
        number = int(message.metadata.group_id)
        draw = np.random.default_rng((self.client_id, number))
        method = get_method("fedre")
        vector = draw.standard_normal(WIDTH).astype(np.float32)
        content = pack(method.uplink(vector, np.full(CLASSES, 1 / CLASSES, np.float32)))
        content[METRICS] = metrics_record(
            [MetricRow("train", "loss", 1.0, EXAMPLES), MetricRow("post", "accuracy", 0.5, 10)]
        )
        content[INFO] = ReplyInfo(
            client_id=self.client_id, round=number, num_examples=EXAMPLES, compute_s=0.0,
            worker=f"{self.client_id:08x}", rounds_trained=number - 1,
        ).to_record()  # fmt: skip
        return content

    def _info(self) -> ClientInfo:
        return ClientInfo(
            client_id=self.client_id, model="cnn1", parameters=10**6, raw_dim=WIDTH,
            feature_dim=WIDTH, num_classes=CLASSES, channels=1, image_size=32, class_hash="load",
            classes=list(range(CLASSES)), class_counts=[EXAMPLES // CLASSES] * CLASSES,
            train_examples=EXAMPLES, validation_examples=0, test_examples=10, device="none",
            data_hash=f"{self.client_id}",
        )  # fmt: skip
