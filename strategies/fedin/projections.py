"""Projections between the feature spaces of unlike networks and a common one.

FedIN (arXiv 2304.00759) exchanges pairs of a stem's feature maps s_in and the head's input s_out,
which needs stems and heads of one shape. Its future work, unlike widths and families, is done here:
a common space of c_in channels, s x s pixels and c_out features, into which every client projects
what it sends, and out of which it takes what it receives.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import SplitModel, Splittable
from strategies.base.client import ClientContext
from strategies.base.payload import PayloadError
from strategies.base.rng import torch_generator
from strategies.fedin.features import FeatureShape, feature_shape


def semi_orthogonal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return a (rows, columns) matrix whose rows, or columns if fewer, are orthonormal.

    It loses nothing that fits: P^T P = I where there are at least as many rows.
    """
    return nn.init.orthogonal_(torch.empty(rows, columns), generator=generator)


class Projections(nn.Module):
    """One client's projections between its own feature space and the common one.

    A and A' are 1x1 convolutions, Q and Q' linear, all without bias; adaptive average pooling
    changes the size of feature maps. At first A' = A^T and Q' = Q^T, so that an architecture gets
    back what it sent, where the common space is wide enough. Q' serves training only. Where own
    and common widths agree, there is no matrix: the axes need no change.

    Parameters
    ----------
    own, common : FeatureShape
        The two spaces.
    seed : int
        The run's.
    model_name : str
        The architecture: its clients draw the same matrices.
    trainable : bool
        Whether the four matrices are parameters to be trained, or stay as drawn.
    """

    maps_out: nn.Parameter | None
    maps_in: nn.Parameter | None
    features_out: nn.Parameter | None
    features_in: nn.Parameter | None

    def __init__(
        self, own: FeatureShape, common: FeatureShape, seed: int, model_name: str, trainable: bool
    ) -> None:
        super().__init__()
        self.own, self.common = own, common
        maps = torch_generator(seed, model_name, 0, "projection-maps")
        features = torch_generator(seed, model_name, 0, "projection-features")
        a = semi_orthogonal(common.channels, own.channels, maps)
        q = semi_orthogonal(common.width, own.width, features)
        for name, matrix in (("maps", a), ("features", q)):
            unlike = matrix.shape[0] != matrix.shape[1]
            for way, item in (("out", matrix), ("in", matrix.T.clone())):
                parameter = nn.Parameter(item, requires_grad=trainable) if unlike else None
                self.register_parameter(f"{name}_{way}", parameter)

    @property
    def trainable(self) -> bool:
        """Whether there are matrices to be trained."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def send_maps(self, s_in: Tensor) -> Tensor:
        """Take own feature maps (N, c, s, s) to common ones: A."""
        return _mix(_resize(s_in, self.common.size), self.maps_out)

    def take_maps(self, s_in: Tensor) -> Tensor:
        """Take common feature maps to own ones: A'."""
        return _resize(_mix(s_in, self.maps_in), self.own.size)

    def send_features(self, s_out: Tensor) -> Tensor:
        """Take own features (N, d) to common ones: Q."""
        return _linear(s_out, self.features_out)

    def take_features(self, s_out: Tensor) -> Tensor:
        """Take common features to own ones: Q'."""
        return _linear(s_out, self.features_in)

    def detour(self, model: Splittable, s_in: Tensor) -> Tensor:
        """Return the logits of own s_in on the way through the common space.

        Gradients reach the projections and not the model, whose parameters are constants here.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.requires_grad_(False)
        s_out = model.body(self.take_maps(self.send_maps(s_in)))
        logits: Tensor = model.head(self.take_features(self.send_features(s_out)))
        for parameter in parameters:
            parameter.requires_grad_(True)
        return logits


def projections_for(
    context: ClientContext, model: SplitModel, common: FeatureShape, saved: Mapping[str, Tensor]
) -> Projections:
    """Return a client's projections, on its device; they do nothing if its space is the common one.

    Reads the option `projection` of the method. `saved` are the matrices of its last training,
    empty if there are none.

    Raises
    ------
    PayloadError
        If the server's common space is another and `projection` is "none".
    """
    own, kind = feature_shape(model, context.shape), context.config.projection
    if kind == "none" and own != common:
        raise PayloadError(
            f"s_in, s_out: {common}, but client {context.client_id}'s model {context.model_name} "
            f"gives {own}; set {context.run.method}.projection = 'fixed'"
        )
    result = Projections(own, common, context.run.seed, context.model_name, kind == "trainable")
    if saved:
        result.load_state_dict(saved)
    return result.to(context.device)


def _mix(maps: Tensor, matrix: Tensor | None) -> Tensor:
    return maps if matrix is None else F.conv2d(maps, matrix[:, :, None, None])


def _linear(features: Tensor, matrix: Tensor | None) -> Tensor:
    return features if matrix is None else F.linear(features, matrix)


def _resize(maps: Tensor, size: int) -> Tensor:
    return maps if maps.shape[-1] == size else F.adaptive_avg_pool2d(maps, size)
