"""From a name to a ready `SplitModel`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from models.base import InputShape, ModelError, SplitModel, Splittable, SplittableBackbone
from models.mapping import build_mapping
from models.registry import BackboneFactory, ModelInfo, model_info

_TRIED: set[tuple[BackboneFactory, InputShape]] = set()


def build_model(
    name: str,
    shape: InputShape,
    feature_dim: int = 512,
    mapping: str = "AP",
    *,
    seed: int | None = None,
) -> SplitModel:
    """Build a model for a data set; the first time in a process, also try a forward pass.

    To fill it with weights that exist already, build it under ``with torch.device("meta"):`` and
    call ``load_state_dict(weights, assign=True)``: nothing is allocated or initialised.

    Parameters
    ----------
    name : str
        A name of `list_models`, or ``"package.module:factory"`` for a backbone of your own.
    shape : InputShape
        Image channels, image size and number of classes.
    feature_dim : int, default 512
        Width d of the head's input, common to all clients.
    mapping : {"AP", "MP", "FC", "none"}, default "AP"
        How raw features become d wide, see `models.mapping`. With ``"none"``, and for models
        registered with ``adapter=False``, the raw width is kept and `feature_dim` is not used.
    seed : int, optional
        Initial weights are drawn on the CPU from a private stream with this seed, and torch's
        global stream is left as it was. None: they are drawn from the global stream.

    Returns
    -------
    SplitModel
        In training mode; a `Splittable` when the backbone offers FedIN's cut.

    Raises
    ------
    ModelError
        Unknown name, a backbone without the contract, or images that do not fit the model.
    """
    info = model_info(name)
    with nullcontext() if seed is None else _private_stream(seed):
        backbone = _build_backbone(info, shape)
        raw_dim = _raw_dim(name, backbone)
        if mapping == "none" or not info.adapter:
            mapping, feature_dim = "none", raw_dim
        kind = Splittable if isinstance(backbone, SplittableBackbone) else SplitModel
        model = kind(
            name,
            backbone,
            build_mapping(mapping, raw_dim, feature_dim),
            raw_dim=raw_dim,
            feature_dim=feature_dim,
            num_classes=shape.num_classes,
        )
    trial = (info.factory, shape)
    if trial not in _TRIED:  # half the cost of a skeleton, so once per process is enough
        _try_forward(model, shape)
        _TRIED.add(trial)
    return model


@contextmanager
def _private_stream(seed: int) -> Iterator[None]:
    """Draw from a fresh stream inside; leave torch's global CPU stream as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs too
        yield


def _build_backbone(info: ModelInfo, shape: InputShape) -> nn.Module:
    """Call the factory; report its failure with the model's name."""
    try:
        backbone = info.factory(shape)
    except Exception as cause:  # a user's factory may raise anything
        raise ModelError(f"model {info.name!r} cannot be built for {shape}: {cause}") from cause
    if not isinstance(backbone, nn.Module):
        raise ModelError(
            f"model {info.name!r}: its factory returned {type(backbone).__name__}, not an nn.Module"
        )
    return backbone


def _raw_dim(name: str, backbone: nn.Module) -> int:
    """Read the one attribute the backbone contract asks for."""
    raw_dim = getattr(backbone, "raw_dim", None)
    if not isinstance(raw_dim, int) or raw_dim < 1:
        raise ModelError(
            f"model {name!r}: backbone {type(backbone).__name__} has raw_dim={raw_dim!r}; set "
            "self.raw_dim to the width of the feature vector it returns"
        )
    return raw_dim


def _try_forward(model: SplitModel, shape: InputShape) -> None:
    """Run the backbone once on two blank images: one error now instead of one in round 1."""
    parameter = next(model.parameters())  # the head always has some
    images = torch.zeros(
        2, shape.channels, shape.image_size, shape.image_size, device=parameter.device
    )
    expected = (2, model.raw_dim)
    model.eval()  # BatchNorm statistics and dropout's random stream stay untouched
    try:
        with torch.no_grad():
            raw = model.backbone(images)
    except Exception as cause:  # a user's forward may raise anything
        raise ModelError(
            f"model {model.name!r} does not run on {shape}: {cause}; choose a model for this "
            "image size and these channels, or resize the images"
        ) from cause
    finally:
        model.train()
    got = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
    if got != expected:
        raise ModelError(
            f"model {model.name!r}: backbone returned {got} for 2 images of {shape}, expected a "
            f"tensor {expected}; raw_dim must be the width of a flat feature vector"
        )
