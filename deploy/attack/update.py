"""Weight-update inversion: seek the images whose gradient points where a client's weights moved.

What a client sends back is, up to the learning rate, the sum of its steps' gradients. The attacker
computes the gradient of images x with labels y at the weights the client was sent, and minimises
(Geiping et al., Inverting Gradients, arXiv 2003.14053)

    1 - cos(grad L(x, y), received - sent) + weight * TV(x).

Labels come from the last layer's bias (`labels`). Exact only where the client made one step of SGD
on the images that are sought; with more steps, other optimisers, or loss terms beside cross entropy
the direction is an approximation, and the controls say what is left of it.

Where the network's first layer is linear in the flattened image no search is needed: every row of
its weight's gradient is a sum of images, weighted as in the bias's gradient, so their quotient
dW_i / db_i is a weighted mean of images, and of a single image exactly that one (Phong et al.,
2018), after any number of steps of SGD.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from deploy.attack.attacker import Progress, Seek
from deploy.attack.auxiliary import Auxiliary
from deploy.attack.labels import proportions_of_update
from deploy.attack.targets import Target
from deploy.attack.victims import SharedModel, Victim
from deploy.attack.white_box import to_bytes, total_variation
from strategies.base.options import ConfigError
from strategies.common.optimizers import keep_compiler_out, take_step
from strategies.common.weights import load_arrays

UPDATE = "update"
"""`Target.output` of what is a change of weights."""


@dataclass(frozen=True)
class UpdateInversion:
    """How the attack is made.

    Attributes
    ----------
    steps : int
        Steps of Adam on the images.
    lr : float
        Their learning rate.
    tv_weight : float
        Weight of the total variation, of the mean over pixels.
    images : int
        At most so many images of a client are sought at once; fewer if it has fewer.
    """

    name: ClassVar[str] = "update"
    joint: ClassVar[bool] = True
    steps: int = 2000
    lr: float = 0.1
    tv_weight: float = 1e-2
    images: int = 8

    def about(self, output: str) -> str:
        """Say how it seeks."""
        return (
            "The attacker holds the weights that a client received and sent, and seeks up to "
            f"{self.images} images, with labels inferred from the last layer's bias, whose "
            f"gradient has the direction of the change: {self.steps} steps of Adam at {self.lr}, "
            f"total variation {self.tv_weight}, from noise. Where the first layer is linear in the "
            "image, the quotient of its weight's and its bias's change is taken instead."
        )

    def targets(self, victim: Victim) -> list[Target]:
        """Return one target for every image that is sought; all have the client's whole change."""
        change = update_of(victim)
        everyone = np.arange(len(victim.labels))
        count = min(self.images, len(everyone))
        names = (f"image {i + 1} of the update" for i in range(count))
        return [Target(name, UPDATE, change, everyone) for name in names]

    def against(
        self, victim: Victim, targets: list[Target], known: Auxiliary, generator: torch.Generator
    ) -> Seek:
        """Return the attack on the model as the client received it."""
        model, count = model_before(victim, shared_by(victim)), len(targets)
        shape = victim.images.shape[1:]
        shares = proportions_of_update(victim.uplink, victim.received)
        labels = labels_in_proportion(shares, count, victim.model.num_classes)
        linear = first_linear(model, shape)

        def seek(
            vectors: NDArray[np.float32], generator: torch.Generator, progress: Progress
        ) -> NDArray[np.uint8]:
            (change,) = vectors
            if linear is not None:
                return first_layer_inputs(slice_of(model, change, linear), count, shape)
            return self.invert(model, change, labels, shape, generator, progress)

        return seek

    def invert(
        self,
        model: nn.Module,
        change: NDArray[np.float32],
        labels: NDArray[np.int64],
        shape: tuple[int, ...],
        generator: torch.Generator,
        progress: Progress = lambda step: None,
    ) -> NDArray[np.uint8]:
        """Return the images found, (B, C, H, W), one for every label.

        Parameters
        ----------
        model : nn.Module
            With the weights that were received, in evaluation mode.
        change : NDArray[np.float32]
            (D,) sent less received, of all parameters that take gradients, in their order.
        labels : NDArray[np.int64]
            (B,) of the images.
        shape : tuple of int
            (C, H, W).
        generator : torch.Generator
            Draws the first images.
        progress : callable, optional
            Is told the number of every step.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        device = parameters[0].device
        wanted = -torch.from_numpy(change).to(device)
        targets = torch.from_numpy(labels).to(device)
        hidden = torch.randn(len(labels), *shape, generator=generator).to(device)
        hidden.requires_grad_(True)
        keep_compiler_out()
        optimizer = torch.optim.Adam([hidden], lr=self.lr)
        for step in range(self.steps):
            images = hidden.sigmoid()
            loss = F.cross_entropy(model(2 * images - 1), targets)
            own = torch.autograd.grad(
                loss, parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )  # a network with several exits does not use all
            flat = torch.cat([item.flatten() for item in own])
            distance = 1 - F.cosine_similarity(flat, wanted, dim=0)
            smooth = self.tv_weight * total_variation(images) / images.numel()
            (hidden.grad,) = torch.autograd.grad(distance + smooth, [hidden])
            take_step(optimizer)
            progress(step + 1)
        return to_bytes(hidden.detach().sigmoid())


def update_of(victim: Victim) -> NDArray[np.float32]:
    """Return sent less received, (D,), of the parameters that travel, in the model's order.

    Raises
    ------
    ConfigError
        The client sent no weights.
    """
    shared = shared_by(victim)
    names = [f"{shared.field}/{name}" for name in travelling(victim, shared)]
    parts = [(victim.uplink[name] - victim.received[name]).ravel() for name in names]
    return np.concatenate(parts).astype(np.float32)


def shared_by(victim: Victim) -> SharedModel:
    """Return the model whose weights a client sent; raises `ConfigError` if it sent none."""
    if victim.shared is not None:
        return victim.shared
    found = ", ".join(sorted({key.partition("/")[0] for key in victim.uplink})) or "nothing"
    raise ConfigError(
        f"client {victim.context.client_id}: the uplink has {found}, and --attacker update needs "
        "weights of a model; --attacker white-box seeks images in vectors and heads"
    )


def travelling(victim: Victim, shared: SharedModel) -> list[str]:
    """Return the names of the parameters that the client received and sent, in their order."""
    return [
        name
        for name, _ in shared.model.named_parameters()
        if f"{shared.field}/{name}" in victim.uplink and f"{shared.field}/{name}" in victim.received
    ]


def model_before(victim: Victim, shared: SharedModel) -> nn.Module:
    """Return a model with the weights that the client received; those take gradients."""
    model = copy.deepcopy(shared.model)
    entries: Mapping[str, Any] = {
        key.partition("/")[2]: item
        for key, item in victim.received.items()
        if key.startswith((f"{shared.field}/", "buffers/"))
    }
    load_arrays(model.state_dict(), entries)
    names = set(travelling(victim, shared))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return model.eval()


def labels_in_proportion(
    shares: NDArray[np.float64] | None, count: int, classes: int
) -> NDArray[np.int64]:
    """Return `count` labels in given proportions (C,), equal ones if None, by largest remainder."""
    wanted = count * (np.full(classes, 1 / classes) if shares is None else shares)
    whole = np.floor(wanted).astype(np.int64)
    order = np.argsort(whole - wanted, kind="stable")
    whole[order[: count - whole.sum()]] += 1
    return np.repeat(np.arange(classes), whole)


def first_linear(model: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the name of the layer that is linear in the flattened image, or None."""
    size = int(np.prod(shape))
    device = next(model.parameters()).device
    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if torch.equal(inputs[0].flatten(), image.flatten()):
                found.append(name)

        return hook

    hooks = [
        layer.register_forward_hook(watch(name))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.in_features == size and layer.bias is not None
    ]
    with torch.no_grad():
        model(image)
    for hook in hooks:
        hook.remove()
    return found[0] if found else None


def slice_of(
    model: nn.Module, change: NDArray[np.float32], layer: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the part of a change (D,) that is a linear layer's weight (m, d), and bias (m,)."""
    parts, start = {}, 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parts[name] = change[start : start + parameter.numel()].reshape(parameter.shape)
            start += parameter.numel()
    return parts[f"{layer}.weight"], parts[f"{layer}.bias"]


def first_layer_inputs(
    change: tuple[NDArray[np.float32], NDArray[np.float32]], count: int, shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """Return dW_i / db_i as images, (count, C, H, W), of the rows whose bias changed most.

    A row that did not change says nothing, and is grey.
    """
    weights, biases = (item.astype(np.float64) for item in change)
    rows = np.argsort(-np.abs(biases), kind="stable")[:count]
    known = biases[rows] != 0
    safe = np.where(known, biases[rows], 1.0)[:, None]
    inputs = np.where(known[:, None], weights[rows] / safe, 0.0)
    if len(rows) < count:  # the layer has fewer rows than images are sought
        inputs = np.resize(inputs, (count, inputs.shape[1]))
    images = torch.from_numpy((inputs.reshape(count, *shape) + 1) / 2)
    return to_bytes(images)
