"""Public data: what a model reads of item i, whatever its modality."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data import PublicData
from models import TaskModel, tokeniser_of
from strategies.base.client import ClientContext
from strategies.base.options import ConfigError
from strategies.base.payload import PayloadError
from strategies.base.run_config import RunConfig
from strategies.common.training import EVALUATION_BATCH, Place, precision, to_inputs

UNIT, COARSE_UNIT = 1e-3, 0.05
"""How far the length of a representation that arrives may be from 1; the second after int8."""


class PublicItems:
    """Public items as one model reads them, by index.

    Parameters
    ----------
    public : PublicData
        The items, pictures as the model takes them.
    model_name : str
        The model's name, which decides on its tokens.
    reads_text : bool
        Whether it reads captions or sentences, which the data must then have, instead of pictures.
    place : Place
        Where, and in what precision, `outputs` computes.
    """

    def __init__(self, public: PublicData, model_name: str, reads_text: bool, place: Place) -> None:
        self._place = place
        self.fingerprint = public.fingerprint
        items = _tokens(public, model_name) if reads_text else public.images
        assert items is not None, "clients are asked for what they read at the registration"
        self._items: NDArray[np.uint8] | NDArray[np.int64] = items

    def __len__(self) -> int:
        return len(self._items)

    def raw(self, indices: NDArray[np.int32]) -> Tensor:
        """Return items (B, ...) as stored, on the CPU: uint8 pixels or int64 token ids."""
        return torch.from_numpy(self._items[indices])

    def batch(self, indices: NDArray[np.int32]) -> Tensor:
        """Return items (B, ...) as a model reads them, on the device."""
        return to_inputs(self.raw(indices), self._place.device)

    @torch.no_grad()
    def outputs(
        self, model: nn.Module, indices: NDArray[np.int32], function: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return what a function of the model gives for items (n, ...), in their order.

        In evaluation mode, not augmented, float32 and on the device.
        """
        with evaluating(model), precision(self._place):
            parts = [
                function(self.batch(indices[start : start + EVALUATION_BATCH])).float()
                for start in range(0, len(indices), EVALUATION_BATCH)
            ]
        return torch.cat(parts)


class PublicInputs(PublicItems):
    """The public items as a client's model reads them, by index.

    An image client reads the picture of an item, a text client its caption, or the item where it
    is a sentence: index i is the same item on all clients.

    Raises
    ------
    ConfigError
        If the client reads text and the public data has no captions, or images and it has none.
    """

    def __init__(self, context: ClientContext) -> None:
        self.reads_text = context.data.task == "text"
        public = context.public
        said = f"public-dataset = {context.run.public_dataset!r}: client {context.client_id}"
        if self.reads_text and public.captions is None:
            raise ConfigError(
                f"{said} reads text, and these items have no captions; expected scenes, coco, or "
                "sentences (tsv, hf:ORG/NAME)"
            )
        if not self.reads_text and public.images is None:
            raise ConfigError(
                f"{said} reads images, and these items are sentences; expected images, with "
                "captions (scenes, coco) where other clients read text"
            )
        super().__init__(public, context.model_name, self.reads_text, context)

    def represent(self, model: TaskModel, indices: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the representations Z (n, d) of items in their order, none for no items."""
        if not len(indices):
            return np.empty((0, model.feature_dim), dtype=np.float32)
        return self.outputs(model, indices, model.represent).cpu().numpy()


def check_unit_rows(field: str, rows: NDArray[np.float32], run: RunConfig) -> None:
    """Raise `PayloadError` naming the first row (n, d) of a field that is not of length 1."""
    length = np.linalg.norm(rows, axis=1)
    off = COARSE_UNIT if run.wire_dtype == "int8" else UNIT
    odd = np.flatnonzero(np.abs(length - 1) > off)
    if len(odd):
        raise PayloadError(f"{field}: row {odd[0]} is {length[odd[0]]:.4g} long, expected 1")


def shown_in_public(context: ClientContext) -> str:
    """Say how many of a client's test examples public items show; empty where it is none."""
    data, public = context.data, context.public
    if context.shares is None or data.dataset.name != public.shown:
        return ""
    count = int(np.isin(data.test.indices, public.rows).sum())
    things = "pictures" if public.images is not None else "sentences"
    text = f"public items show {count} of its {len(data.test)} test {things} (public-overlap)"
    return text if count else ""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode inside, so that BatchNorm neither uses nor learns statistics.

    Every layer gets its own mode back.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@lru_cache(maxsize=8)  # a server and its clients in one process read some of them each
def _tokens(public: PublicData, model_name: str) -> NDArray[np.int64]:
    """Return the captions as token ids, once for a model and process."""
    assert public.captions is not None
    return tokeniser_of(model_name)(public.captions)
