"""From a name to a ready `SplitModel`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from models.base import (
    InputShape,
    ModelError,
    SeriesShape,
    Shape,
    SplitModel,
    Splittable,
    SplittableBackbone,
    TableShape,
    TextShape,
)
from models.mapping import build_mapping
from models.registry import ModelInfo, list_models, model_info
from models.skeleton import run_blank

_TRIED: set[Hashable] = set()
_PROVEN: ContextVar[bool] = ContextVar("_PROVEN", default=False)


@contextmanager
def proven() -> Iterator[None]:
    """Try no backbone inside: there are weights of it, so it has run before."""
    token = _PROVEN.set(True)
    try:
        yield
    finally:
        _PROVEN.reset(token)


def build_model(
    name: str,
    shape: Shape,
    feature_dim: int = 512,
    mapping: str = "AP",
    *,
    seed: int | None = None,
) -> SplitModel:
    """Build a model for a data set; the first time in a process, also try a forward pass.

    To fill it with weights that exist already, build it under ``with skeleton():``, see
    `models.skeleton`, and call ``load_state_dict(weights, assign=True)``.

    Parameters
    ----------
    name : str
        A name of `list_models`, or ``"package.module:factory"`` for a backbone of your own.
    shape : Shape
        What the data asks for; for text see `models.tokens.text_shape_of`.
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
        Unknown name, a model that does not read what the data has, a backbone without the
        contract, or images that do not fit the model.
    """
    info = model_info(name)
    wanted = modality_of(shape)
    if info.modality != wanted:
        remedy = (
            f"choose one of {', '.join(list_models(modality=wanted))}"
            if wanted != "image"
            else "set dataset to one with sentences (tsv), give the client a task with text (key "
            f"tasks), or choose one of {', '.join(list_models('cnn?'))}, ..."
        )
        raise ModelError(f"model {name!r} reads {info.modality}, its data has {shape}; {remedy}")
    with nullcontext() if seed is None else private_stream(seed):
        backbone, raw_dim = build_backbone(info, shape, lora_rank=0)
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
    try_backbone(info, model, backbone, shape, raw_dim)
    return model


_MODALITIES = {
    InputShape: "image", TextShape: "text", TableShape: "table", SeriesShape: "series",
}  # fmt: skip


def modality_of(shape: Shape) -> str:
    """Return what a model of a shape reads, one of `models.registry.MODALITIES`."""
    return _MODALITIES[type(shape)]


@contextmanager
def private_stream(seed: int) -> Iterator[None]:
    """Draw from a fresh stream inside; leave torch's global CPU stream as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs too
        yield


def build_backbone(
    info: ModelInfo, shape: Shape, lora_rank: int, *, maps: bool = False
) -> tuple[nn.Module, int]:
    """Call the factory and return the backbone and its ``raw_dim``.

    `lora_rank` is passed to models that take adapters; 0 trains all weights. `maps` asks those
    that have another network for feature maps for it.

    Raises
    ------
    ModelError
        The factory failed, or its backbone lacks the contract.
    """
    extra: dict[str, Any] = {"place": info.place, "lora_rank": lora_rank} if info.pretrained else {}
    if maps and info.segments:
        extra["maps"] = True
    try:
        backbone = info.factory(shape, **extra)
    except Exception as cause:  # a user's factory may raise anything
        # A model's own errors say what to do; a library's do not.
        knows = isinstance(cause, ModelError) or info.advice is None
        advice = "" if knows else f"; {_advice(info, shape)}"
        raise ModelError(
            f"model {info.name!r} cannot be built for {shape}: {cause}{advice}"
        ) from cause
    if not isinstance(backbone, nn.Module):
        raise ModelError(
            f"model {info.name!r}: its factory returned {type(backbone).__name__}, not an nn.Module"
        )
    raw_dim = getattr(backbone, "raw_dim", None)
    if not isinstance(raw_dim, int) or raw_dim < 1:
        raise ModelError(
            f"model {info.name!r}: backbone {type(backbone).__name__} has raw_dim={raw_dim!r}; set "
            "self.raw_dim to the width of the feature vector it returns"
        )
    if _unfinished(backbone):
        _finish(info, backbone, shape)
    return backbone, raw_dim


def _unfinished(backbone: nn.Module) -> list[str]:
    """Return the names of weights whose shapes lazy layers learn in their first forward pass."""
    named = *backbone.named_parameters(), *backbone.named_buffers()
    return [name for name, item in named if is_lazy(item)]


def _finish(info: ModelInfo, backbone: nn.Module, shape: Shape) -> None:
    """Give lazy layers their shapes by two blank examples, so that there are weights to fill.

    Raises
    ------
    ModelError
        The examples do not fit the model, or do not pass every lazy layer.
    """
    device = next(backbone.parameters()).device
    backbone.eval()
    try:
        with torch.no_grad():
            backbone(blank(shape, device))
    except Exception as cause:  # a user's forward may raise anything
        raise ModelError(f"model {info.name!r} does not run on {shape}: {cause}") from cause
    finally:
        backbone.train()
    if left := _unfinished(backbone):
        raise ModelError(
            f"model {info.name!r}: forward does not pass the lazy layers of {', '.join(left[:3])}; "
            "give these layers their sizes, or leave them out"
        )


def try_backbone(
    info: ModelInfo,
    model: nn.Module,
    backbone: Any,
    shape: Shape,
    raw_dim: int,
    *,
    maps: bool = False,
) -> None:
    """Run a model's backbone, and its ``maps`` if wanted, once on two blank examples.

    One error now instead of one in round 1. It is half the cost of a skeleton, so a backbone is
    tried once in a process for every shape. The model is in training mode afterwards.

    Raises
    ------
    ModelError
        The examples do not fit the model, or what it returns is not as wide as it says.
    """
    trial = (info.factory, info.place, shape, maps)
    if trial in _TRIED or _PROVEN.get():
        return
    features: object = None
    model.eval()  # BatchNorm statistics stay untouched
    try:
        raw = run_blank(backbone, partial(blank, shape))
        if maps:
            features = run_blank(backbone, partial(blank, shape), "maps")
    except Exception as cause:  # a user's forward may raise anything
        raise ModelError(
            f"model {info.name!r} does not run on {shape}: {cause}; {_advice(info, shape)}"
        ) from cause
    finally:
        model.train()
    _check(info.name, raw, (2, raw_dim), shape, "raw_dim must be the width of a flat vector")
    if maps:
        wanted = (2, raw_dim, *_shape_of(features)[2:4])
        _check(info.name, features, wanted, shape, "maps must be (N, raw_dim, h, w)")
    _TRIED.add(trial)


def _advice(info: ModelInfo, shape: Shape) -> str:
    """Say what to do about a shape that a model cannot take."""
    if info.advice is not None:
        return info.advice(shape)
    if isinstance(shape, TextShape):
        return "take the shape from models.text_shape_of"
    if not isinstance(shape, InputShape):
        return "choose a model for this data"
    return "choose a model for this image size and these channels, or resize the images"


def blank(shape: Shape, device: torch.device) -> Tensor:
    """Make two examples: black images, texts of one word repeated, or numbers at their mean."""
    if isinstance(shape, TableShape):
        return torch.zeros(2, shape.features, device=device)
    if isinstance(shape, SeriesShape):
        return torch.zeros(2, shape.channels, shape.steps, device=device)
    if isinstance(shape, TextShape):
        return torch.ones(2, shape.length, dtype=torch.int64, device=device)
    return torch.zeros(2, shape.channels, shape.image_size, shape.image_size, device=device)


def _shape_of(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _check(
    name: str,
    value: object,
    expected: tuple[int, ...],
    shape: Shape,
    rule: str,
) -> None:
    if _shape_of(value) != expected or not isinstance(value, Tensor):
        got = _shape_of(value) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(
            f"model {name!r}: backbone returned {got} for 2 examples of {shape}, expected a "
            f"tensor {expected}; {rule}"
        )
