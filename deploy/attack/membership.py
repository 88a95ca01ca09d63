"""Membership inference: whether images that a client trained on fit what it sent better.

The attacker scores images by a loss on what was shared and calls those below a threshold members
(Yeom et al., Privacy Risk in Machine Learning, arXiv 1709.01604). What is reported is the area
under the ROC curve over all thresholds: 0.5 tells nothing, 1 tells all.

| what was sent | loss of an image |
|---|---|
| weights, of its own or a small model | cross entropy of the model that was sent |
| a head | cross entropy of that head on the client's own extractor (the worst case) |
| vectors, with classes | squared distance to the nearest vector of its class |
| vectors without | squared distance to the nearest |

Members are the client's training images; the others are its own test and validation images, in the
same numbers by class, so that no class and no style of a client gives them away. Controls: the same
loss on what the next client sent, and on what the client itself had received.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from deploy.attack.decoder import BLOCK
from deploy.attack.targets import LOGITS, REPRESENTATION, targets_of
from deploy.attack.update import model_before
from deploy.attack.victims import Scene, Victim
from deploy.attack.white_box import output_of
from strategies.base.options import ConfigError
from strategies.base.rng import numpy_generator
from strategies.common.head import load_head

ATTACK, OTHER, RECEIVED = "attack", "next client", "received"


@dataclass(frozen=True)
class Membership:
    """What came out for one client.

    Attributes
    ----------
    client : int
        Who it is.
    members : int
        Training images that were scored, and as many others.
    areas : Mapping of str to float
        Area under the ROC curve by `ATTACK` and the controls that there are.
    """

    client: int
    members: int
    areas: Mapping[str, float]


def infer_membership(scene: Scene, seed: int) -> list[Membership]:
    """Attack all clients of a round that have images to compare with.

    Raises
    ------
    ConfigError
        No client has test or validation images of a class that it trains on, or nothing that was
        sent has a loss.
    """
    found = []
    for victim, other in _beside_the_next(scene):
        client = victim.context.client_id
        generator = numpy_generator(seed, client, scene.round, "membership")
        rows = comparable(victim, generator)
        if rows is None:
            continue
        areas = {ATTACK: _area(victim, sent_by(victim), *rows)}
        if other.context.client_id != client:
            areas[OTHER] = _area(victim, sent_by(other, extractor=victim.model), *rows)
        if (before := received_by(victim)) is not None:
            areas[RECEIVED] = _area(victim, before, *rows)
        found.append(Membership(client, len(rows[0]), areas))
    if not found:
        raise ConfigError(
            "no client has test or validation images of a class that it trains on, so there is "
            "nothing to tell members from; run with test-split = 'personal'"
        )
    return found


def _beside_the_next(scene: Scene) -> Iterator[tuple[Victim, Victim]]:
    """Yield every client beside the next one, the last beside the first, which is loaded twice."""
    victim = scene.victim(scene.clients[0])
    for number in (*scene.clients[1:], scene.clients[0]):
        other = scene.victim(number)
        yield victim, other
        victim = other


def area_under_curve(members: NDArray[Any], others: NDArray[Any]) -> float:
    """Return the probability that a member's loss is below another's, ties counting half."""
    truth = np.repeat([1, 0], [len(members), len(others)])
    return float(roc_auc_score(truth, -np.concatenate([members, others])))


Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]


def comparable(victim: Victim, generator: np.random.Generator) -> Rows | None:
    """Draw members, and as many others of each class; None where there are no others.

    Returns
    -------
    tuple of ndarray, or None
        Positions (m,) in the training set; the members' labels (m,); and the others' images
        (m, C, H, W) and labels (m,), in the same order of classes.
    """
    data = victim.context.data
    parts = [split.batch(np.arange(len(split))) for split in (data.test, data.validation)]
    images = np.concatenate([part[0].numpy() for part in parts])
    labels = np.concatenate([part[1].numpy() for part in parts])
    inside, outside = [], []
    for label in np.unique(victim.labels):
        own, rest = np.flatnonzero(victim.labels == label), np.flatnonzero(labels == label)
        count = min(len(own), len(rest))
        inside.append(generator.permutation(own)[:count])
        outside.append(generator.permutation(rest)[:count])
    chosen, others = np.concatenate(inside), np.concatenate(outside)
    if not len(chosen):
        return None
    return chosen, victim.labels[chosen], images[others], labels[others]


class Loss:
    """The loss of images on something that was shared."""

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the losses (n,) of normalised images (n, C, H, W) with labels (n,)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class CrossEntropy(Loss):
    """Cross entropy of a model."""

    model: nn.Module

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of images."""
        return F.cross_entropy(self.model(images), labels, reduction="none")


@dataclass(frozen=True, eq=False)
class Distance(Loss):
    """Squared distance to the nearest of some vectors, of the same class where that is known.

    Attributes
    ----------
    model : SplitModel
        Makes vectors of images.
    output : str
        Which, see `deploy.attack.targets`.
    vectors : Tensor
        (m, d).
    classes : Tensor or None
        (m,) of each vector.
    """

    model: nn.Module
    output: str
    vectors: Tensor
    classes: Tensor | None

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of images; one of a class without a vector has the nearest of all."""
        own = output_of(self.model, self.output)(images).flatten(1)
        distances = torch.cdist(own, self.vectors).square()
        if self.classes is None:
            return distances.amin(dim=1)
        alike = labels[:, None] == self.classes[None]
        alike |= ~alike.any(dim=1, keepdim=True)
        return distances.masked_fill(~alike, torch.inf).amin(dim=1)


def sent_by(victim: Victim, extractor: nn.Module | None = None) -> Loss:
    """Return the loss on what a client sent.

    `extractor` is another client's model, to which heads and vectors are put instead of its own.
    """
    uplink, model = victim.uplink, extractor or victim.model
    if victim.shared is not None:
        return CrossEntropy(victim.shared.model)
    if "head_weight" in uplink:
        return CrossEntropy(_with_head(model, uplink))
    device = next(model.parameters()).device
    targets_of(uplink, victim.labels)  # refuses what has no vectors, by name
    classes = next((uplink[key] for key in ("class_ids", "labels") if key in uplink), None)
    known = None if classes is None else torch.from_numpy(classes).long().to(device)
    for field in ("entangled_rep", "representations", "prototypes", "logits"):
        if field in uplink:
            output = LOGITS if field == "logits" else REPRESENTATION
            return Distance(model, output, _vectors(uplink[field], device), known)
    raise AssertionError("targets_of refuses other uplinks")


def received_by(victim: Victim) -> Loss | None:
    """Return the loss on what a client had received, or None where that is no model of it."""
    if victim.shared is not None:
        return CrossEntropy(model_before(victim, victim.shared))
    if "head_weight" in victim.received:
        return CrossEntropy(_with_head(victim.model, victim.received))
    return None


def _with_head(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> nn.Module:
    changed: Any = copy.deepcopy(model)
    load_head(changed.head, arrays["head_weight"], arrays["head_bias"])
    return changed  # type: ignore[no-any-return]


def _vectors(rows: NDArray[Any], device: torch.device) -> Tensor:
    return (
        torch.from_numpy(rows).to(device).reshape(-1, rows[0].size if rows.ndim > 1 else rows.size)
    )


@torch.no_grad()
def _area(
    victim: Victim, loss: Loss, rows: NDArray[np.int64], labels: NDArray[np.int64],
    others: NDArray[np.uint8], other_labels: NDArray[np.int64],
) -> float:  # fmt: skip
    device = victim.context.device
    parts = []
    for images, classes in ((victim.images[rows], labels), (others, other_labels)):
        pixels, known = (
            torch.from_numpy(images).split(BLOCK),
            torch.from_numpy(classes).split(BLOCK),
        )
        losses = [
            loss(part.to(device).float() / 127.5 - 1, label.to(device))
            for part, label in zip(pixels, known, strict=True)
        ]
        parts.append(torch.cat(losses).double().cpu().numpy())
    return area_under_curve(*parts)


def controls_of(found: Sequence[Membership]) -> list[str]:
    """Return the controls that every client has."""
    return [name for name in (OTHER, RECEIVED) if all(name in item.areas for item in found)]
