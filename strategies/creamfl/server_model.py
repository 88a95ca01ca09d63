"""CreamFL's server model, the public pairs as it reads them, and the pairs that it is scored on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from data import DataError, PublicData, load_public
from models import (
    InputShape,
    ModelError,
    PairModel,
    PairShape,
    build_task_model,
    model_info,
    recalls,
    text_shape_of,
)
from models.skeleton import skeleton
from strategies.base.options import ConfigError
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.run_config import RunConfig
from strategies.base.server import NotScoredError, RegistrationError, ServerContext
from strategies.common.public import PublicItems
from strategies.common.server_models import ServerPlace, matching_public, set_to_work
from strategies.common.weights import copied
from strategies.creamfl.contrast import IMAGES, TEXTS, Side
from strategies.creamfl.learning import represented

HELD_OUT = "held-out public pairs"
"""What its model is scored on, for `Method.server_scored_on`."""


def tower_names(run: RunConfig) -> str:
    """Return the model's name, "image-model+text-model".

    Raises
    ------
    ModelError
        If one of them is unknown, or reads something else.
    """
    config = run.method_config
    image, text = config.server_image_model, config.server_text_model
    for name, wanted in ((image, "image"), (text, "text")):
        if (reads := model_info(name).modality) != wanted:
            raise ModelError(f"model {name!r} reads {reads}, the server needs one for {wanted}")
    return f"{image}+{text}"


def server_pairs(context: ServerContext, further: int = 0) -> PublicData:
    """Load the public pairs, and `further` ones that follow them, as the server's towers read them.

    Images have the run's `image-size` and the channels of the source.

    Raises
    ------
    RegistrationError
        If the server's files have no captions, or are not the clients'.
    """
    run = context.run
    _, avoid = matching_public(context, context.any_client)
    public = load_public(
        run.public_dataset, run.public_size + further, 0, run.image_size, run.data_dir, avoid
    )
    if public.captions is None:
        raise RegistrationError(
            f"public-dataset = {run.public_dataset!r}: these files have no captions, and creamfl "
            "needs pairs of images and captions; set public-dataset='scenes', or give COCO's "
            "captions_*.json"
        )
    return public


def server_sides(context: ServerContext, model: PairModel, further: int = 0) -> dict[str, Side]:
    """Return both sides of `server_pairs` as the towers read and represent them."""
    public, place = server_pairs(context, further), ServerPlace(context.run)
    return {
        IMAGES: Side(PublicItems(public, model.name, False, place), model.represent),
        TEXTS: Side(PublicItems(public, model.name, True, place), model.represent_text),
    }


def _build(context: ServerContext) -> PairModel:
    run, name = context.run, tower_names(context.run)
    images = server_pairs(context).images
    assert images is not None, "creamfl refuses public sentences"
    _, channels, side, _ = images.shape
    shape = PairShape(InputShape(channels, side, 1), text_shape_of(name, 1))
    model = build_task_model(name, "retrieval", shape, run.feature_dim, lora_rank=run.lora_rank)
    assert isinstance(model, PairModel), "built for the shape of pairs"
    return model


def first_towers(context: ServerContext) -> dict[str, Tensor]:
    """Draw the towers' weights and buffers of before round 1 from the run's seed."""
    try:
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "towers")):
            model = _build(context)
    except ModelError as error:
        keys = "creamfl.server-image-model, creamfl.server-text-model"
        raise ConfigError(f"{keys}: {error}") from error
    return copied(model.state_dict())


def towers(context: ServerContext, entries: Mapping[str, Tensor]) -> PairModel:
    """Return the server's model with copies of these entries, on its device, evaluating."""
    with skeleton():
        model = _build(context)
    set_to_work(model, entries, ServerPlace(context.run).device)
    return model


def held_out_pairs(context: ServerContext) -> NDArray[np.int32]:
    """Return where in `server_pairs(context, held_out)` the pairs are that only the server has.

    They follow the clients' public pairs, and no client tests on what they show, unless
    `public-overlap` allows that. Scenes are drawn for this alone, though of small pictures that
    clients may train on; of another data set they are pictures that clients may train on.

    Raises
    ------
    NotScoredError
        If there are not so many, or clients of this run train on some of them.
    """
    run, count = context.run, context.config.held_out
    if not count:
        raise NotScoredError("creamfl.held-out = 0; set how many pairs it is scored on")
    try:
        every = server_pairs(context, count)
    except DataError as error:
        raise NotScoredError(f"creamfl.held-out = {count}: {error}") from error
    public, avoid = matching_public(context, context.any_client)
    if avoid is not None and run.public_dataset != "scenes":
        fresh = np.setdiff1d(every.rows, public.rows)
        known = int(np.isin(fresh, avoid.held(run.public_dataset, run.data_dir)).sum())
        if known:
            raise NotScoredError(
                f"clients train on {known} of the {count} held-out pictures of "
                f"{run.public_dataset}; set another public-dataset, or public-overlap='allowed' "
                "to be scored on them all the same"
            )
    return _after_the_public(context)


def _after_the_public(context: ServerContext) -> NDArray[np.int32]:
    first, count = context.run.public_size, context.config.held_out
    return np.arange(first, first + count, dtype=np.int32)


def recalls_on(context: ServerContext, model: PairModel) -> tuple[float, float]:
    """Return R@1 image to text and text to image on `held_out_pairs`, which were found before."""
    rows = _after_the_public(context)
    sides = server_sides(context, model, len(rows))
    z = [represented(model, sides[name], rows) for name in (IMAGES, TEXTS)]
    return recalls(z[0], z[1], sides[TEXTS].items.raw(rows))
