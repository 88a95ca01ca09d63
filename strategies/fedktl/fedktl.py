"""FedKTL: images of the server's pretrained generator, and their latents, teach all clients.

Zhang et al., An Upload-Efficient Scheme for Transferring Knowledge From a Server-Side Pre-trained
Generator to Clients in Heterogeneous Federated Learning (CVPR 2024), and HtFLlib. The server has a
generator of images G with latents of width w. Heads are classified by angle: class c is column c of
an ETF (C, C), fixed for all, so that clients' outputs of a class mean the same.

Order of a round on a client: E epochs of

    CE(s c(x), y) + mu MSE(proj(g(x_G)), z_G),    c(x) cosines of the output to the ETF's columns,

with ArcFace's margin at the label; the second term, once there are generated pairs (round 2), on a
batch of them a step. Then, in evaluation mode, the mean of the normalised outputs of every class,
itself normalised, is sent: a prototype. The server aligns, see `alignment`: F brings prototypes to
where G's latents are, the means of classes become centroids z_c, and G makes one image x_c of each.

Uplink, per participant and round: m prototypes (C,) with class ids. Downlink, to everyone: an image
(uint8) and a latent (w,) for every class received so far. Private: the model, and the projection
proj, Linear(d, w), trained there from round to round. Evaluated: argmax of the cosines, personal.

The ETF and the projection's first weights are the same for all; they follow from the run's seed,
which all know, so that they are not sent. Widths d may differ between clients.

Where this departs from public code: cosines are cut off before their angle's gradient is infinite
(there one exact hit makes everything NaN); classes that nobody sent get no image of a random
latent; the projection goes on from the client's last round (HtFLlib begins every round with its
first weights); prototypes are means over all training examples; a round with one prototype alone
trains nothing on the server, where BatchNorm fails. Latents must not be so far apart that the
kernels vanish: the run says so. G is no part of checkpoints: a resumed run loads it again, and
stops if its weights are others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from models import SplitModel
from strategies.base.client import ClientContext, ClientHalf
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import register
from strategies.base.options import ConfigError, option
from strategies.base.payload import PayloadError, array
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng, torch_generator
from strategies.base.run_config import RunConfig
from strategies.base.server import LOSS_AFTER, ServerContext, ServerHalf
from strategies.base.state import Transient, fill_module
from strategies.base.treatments import UNIT_ROWS
from strategies.common.head import initial_linear
from strategies.common.prototypes import class_means, held_classes
from strategies.common.public import check_unit_rows
from strategies.common.training import (
    TrainingDivergedError,
    collect_representations,
    to_inputs,
    train_epochs,
)
from strategies.fedktl.alignment import FeatureTransformer, align, latents_apart, with_class_means
from strategies.fedktl.angles import arcface_loss, cosines, simplex_etf
from strategies.fedktl.generated import Source, open_source


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedKTL; defaults are the authors' with StyleGAN-XL.

    Attributes
    ----------
    generator : str
        The server's generator of images, `module:factory`, see models/README.md.
    generator_weights : str
        Its weights, a `*.safetensors` file on the server; empty: those that the factory gives it.
    margin, scale : float
        m, in radians, and s of ArcFace.
    transfer_weight : float
        mu, the weight of the term on generated pairs; 100 with the authors' Stable Diffusion.
    centroid_weight : float
        lambda, the weight of the server's term on centroids; 0.1 with the authors' StyleGAN3, 0.01
        with their Stable Diffusion.
    server_epochs, server_batch_size, server_lr
        Of the server's Adam, over the round's prototypes.
    clip_norm : float
        Largest norm of a gradient, on clients and on the server; 0 does not clip.
    """

    generator: str = option("", hint="a text: module:factory")
    generator_weights: str = option("", hint="a text: a *.safetensors file on the server, or empty")
    margin: float = option(0.5, minimum=0, maximum=3.14)
    scale: float = option(64.0, above=0)
    transfer_weight: float = option(50.0, minimum=0)
    centroid_weight: float = option(1.0, minimum=0)
    server_epochs: int = option(100, minimum=1)
    server_batch_size: int = option(100, minimum=2)
    server_lr: float = option(0.01, above=0)
    clip_norm: float = option(100.0, minimum=0)


@dataclasses.dataclass
class Uplink:
    """What a participant sends: by class the normalised mean of its normalised outputs."""

    class_ids: NDArray[np.int64] = held_classes()
    prototypes: NDArray[np.float32] = array("m", "C", protect=UNIT_ROWS)


@dataclasses.dataclass
class Downlink:
    """What every client receives: generated images of its own kind, and their latents."""

    images: NDArray[np.uint8] = array("g", "channels", "side", "side", dtype="uint8")
    latents: NDArray[np.float32] = array("g", "w")


@dataclasses.dataclass
class ServerState:
    """F, centroids (C, w), and which of them there are, (C,) bool; and the generated pairs.

    Images are (g, channels, S, S) uint8. Of the generator the fingerprint alone is kept.
    """

    transformer: FeatureTransformer
    centroids: Tensor
    known: Tensor
    images: Tensor
    latents: Tensor
    fingerprint: str
    source: Transient[Source]


@dataclasses.dataclass
class ClientState:
    """The personal model, the ETF (C, C), and the projection's weight and bias.

    The two last are empty until the first message tells w.
    """

    model: SplitModel
    etf: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    projection: dict[str, Tensor] = dataclasses.field(default_factory=dict)


def pair_batches(pairs: int, size: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield indices of generated pairs without end, each pass over them in a new order.

    A batch has `size` of them, or all if there are fewer; a single pair is taken twice, as
    BatchNorm has no statistics of one image.
    """
    wanted = max(2, min(size, pairs))
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < wanted:
            left = torch.cat([left, torch.randperm(pairs, generator=rng)])
        yield left[:wanted]
        left = left[wanted:]


class Client(ClientHalf[ClientState, Downlink, Uplink]):
    """Client half: training by angle and on generated pairs, then prototypes."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def receive(self, context: ClientContext, state: ClientState, downlink: Downlink) -> None:
        data, (_, width) = context.data, downlink.latents.shape
        wanted = data.channels, data.image_size, data.image_size
        if downlink.images.shape[1:] != wanted:
            raise PayloadError(f"images: shape {downlink.images.shape[1:]}, expected {wanted}")
        if not state.projection:
            seed, feature_dim = context.run.seed, state.model.feature_dim
            etf = simplex_etf(data.num_classes, torch_generator(seed, SERVER, 0, "etf"))
            first = initial_linear(width, feature_dim, torch_generator(seed, SERVER, 0, "proj"))
            named = zip(("weight", "bias"), first, strict=True)
            state.projection = {name: item.to(context.device) for name, item in named}
            state.etf = etf.to(context.device)
        if (known := len(state.projection["bias"])) != width:
            raise PayloadError(f"latents: {width} wide, expected {known} as in earlier rounds")

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config, model = context.config, state.model
        projection = nn.Linear(model.feature_dim, downlink.latents.shape[1], device="meta")
        fill_module(projection, {name: item.clone() for name, item in state.projection.items()})
        generated = to_inputs(torch.tensor(downlink.images), context.device)
        latents = torch.tensor(downlink.latents, device=context.device)
        batches = pair_batches(len(latents), context.run.batch_size, context.generator("generated"))

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            found = cosines(model(images), state.etf)
            terms = {"loss_arcface": arcface_loss(found, labels, config.margin, config.scale)}
            if len(latents):
                rows = next(batches).to(context.device)
                projected = projection(model.features(generated[rows])).float()
                pull = F.mse_loss(projected, latents[rows])
                terms["loss_transfer"] = config.transfer_weight * pull
            return terms

        metrics = train_epochs(
            context, [model, projection], loss, clip_norm=config.clip_norm or None,
            step_cost=len(latents),
        )  # fmt: skip
        state.projection = {n: item.detach().clone() for n, item in projection.state_dict().items()}
        return Uplink(*self._prototypes(context, model)), metrics

    def predict(self, state: ClientState, downlink: Downlink, images: Tensor) -> dict[str, Tensor]:
        return {"accuracy": cosines(state.model(images), state.etf)}

    @torch.no_grad()
    def _prototypes(
        self, context: ClientContext, model: SplitModel
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return class ids (m,), and the normalised means of normalised outputs (m, C)."""
        features, labels = collect_representations(context, model)
        outputs = model.head(features.to(context.device)).float().cpu()
        class_ids, means, _ = class_means(F.normalize(outputs, dim=1), labels)
        return class_ids, F.normalize(torch.from_numpy(means), dim=1).numpy()


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: aligns prototypes with the generator's latents, and generates by class."""

    def check_run(self, run: RunConfig) -> Sequence[str]:
        source = open_source(run)
        drawn = source.latents(64, torch_generator(run.seed, SERVER, 0, "apart"))
        if not latents_apart(drawn):
            return ()
        return (
            f"fedktl.generator = {run.method_config.generator!r}: its latents are so far apart "
            f"(width {drawn.shape[1]}) that the kernels of the alignment tell nothing of them; "
            "scale what its `latents` returns, and its input with it",
        )

    def check(
        self, context: ServerContext, state: ServerState | None, client: ClientInfo
    ) -> str | None:
        """Return that a client has a single class, of which no angle can tell anything."""
        if client.num_classes < 2:
            return (
                f"client {client.client_id}: num_classes is {client.num_classes}, fedktl needs two "
                "or more"
            )
        return super().check(context, state, client)

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        check_unit_rows("prototypes", update.uplink.prototypes, context.run)

    def initial_state(self, context: ServerContext) -> ServerState:
        source, classes, info = open_source(context.run), context.dims["C"], context.any_client
        width = source.generator.latent_dim
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "transformer")):
            transformer = FeatureTransformer(classes, width)
        return ServerState(
            transformer.eval(),
            torch.zeros(classes, width),
            torch.zeros(classes, dtype=torch.bool),
            torch.empty(0, info.channels, info.image_size, info.image_size, dtype=torch.uint8),
            torch.empty(0, width),
            source.fingerprint,
            source,
        )

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        if state.fingerprint != state.source.fingerprint:
            raise ConfigError(
                f"fedktl.generator = {context.config.generator!r}: its weights are not those that "
                "the run began with; resume it with the same generator-weights and factory"
            )
        return Downlink(state.images.numpy(), state.latents.numpy())

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        sent = [update.uplink for update in updates]
        prototypes = torch.from_numpy(np.concatenate([uplink.prototypes for uplink in sent]))
        labels = torch.from_numpy(np.concatenate([uplink.class_ids for uplink in sent]))
        source, draws = state.source, context.generator("latents")
        start = with_class_means(state.transformer, state.centroids, prototypes, labels)
        metrics = align(
            state.transformer, start, prototypes, labels,
            lambda count: source.latents(count, draws), context.config,
            context.generator("alignment"),
        )  # fmt: skip
        if not math.isfinite(loss := metrics[LOSS_AFTER]):
            raise TrainingDivergedError(
                f"fedktl: the server's loss became {loss}; lower fedktl.server-lr = "
                f"{context.config.server_lr}"
            )
        state.centroids = with_class_means(state.transformer, start, prototypes, labels)
        state.known = state.known.index_fill(0, labels, True)
        state.latents = state.centroids[state.known]
        info = context.any_client
        images = source.images(state.latents, info.channels, info.image_size)
        state.images = torch.from_numpy(images)
        return {**metrics, "classes_generated": float(len(images))}


METHOD = register(
    __name__,
    summary="images of the server's pretrained generator, one a class, and their latents teach",
    common_feature_dim=False,
    reads=("image",),  # what the server generates
)
