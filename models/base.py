"""The contract every architecture fulfils: backbone, mapping, head.

A client's model is cut in three: the backbone gives raw features ``(N, L)``, the mapping makes them
features ``(N, d)``, the head makes them class scores ``(N, C)``. Only the backbone differs between
architectures. The head has one shape for all of them, so that a method can exchange heads,
prototypes or representations between unlike clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


class ModelError(ValueError):
    """A model name, an assignment or a user's backbone that cannot be used as written."""


@dataclass(frozen=True)
class InputShape:
    """What a data set asks of a model: images go in, class scores come out.

    Attributes
    ----------
    channels : int
        Colour channels of an image.
    image_size : int
        Height and width in pixels; images are square.
    num_classes : int
        Width of the head's output, C.
    """

    channels: int
    image_size: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ModelError(f"input shape: {name}={value!r}, must be 1 or more")

    def __str__(self) -> str:
        return (
            f"{self.channels}x{self.image_size}x{self.image_size} images, "
            f"{self.num_classes} classes"
        )


@dataclass(frozen=True)
class TextShape:
    """What a text data set asks of a model: token ids ``(N, length)`` go in, class scores come out.

    Attributes
    ----------
    vocabulary : int
        Token ids are below it; 0 is padding.
    length : int
        Tokens of an example, padding included.
    num_classes : int
        Width of the head's output, C.
    """

    vocabulary: int
    length: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ModelError(f"text shape: {name}={value!r}, must be 1 or more")

    def __str__(self) -> str:
        return f"texts of {self.length} tokens out of {self.vocabulary}, {self.num_classes} classes"


@dataclass(frozen=True)
class TableShape:
    """What a table asks of a model: standardised rows ``(N, features)`` go in.

    Attributes
    ----------
    features : int
        Inputs of an example.
    num_classes : int
        Width of the head's output, C; 1 for a number that is predicted.
    """

    features: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ModelError(f"table shape: {name}={value!r}, must be 1 or more")

    def __str__(self) -> str:
        return f"rows of {self.features} numbers, {_outputs(self.num_classes)}"


@dataclass(frozen=True)
class SeriesShape:
    """What a time series asks of a model: windows ``(N, channels, steps)`` go in.

    Attributes
    ----------
    channels, steps : int
        Of a window.
    num_classes : int
        Width of the head's output, C; 1 for a number that is predicted.
    """

    channels: int
    steps: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ModelError(f"series shape: {name}={value!r}, must be 1 or more")

    def __str__(self) -> str:
        size = f"{self.channels} channels and {self.steps} steps"
        return f"windows of {size}, {_outputs(self.num_classes)}"


def _outputs(num_classes: int) -> str:
    return f"{num_classes} classes" if num_classes > 1 else "one number"


Shape = InputShape | TextShape | TableShape | SeriesShape
"""What one data set asks of a model."""


@dataclass(frozen=True)
class PairShape:
    """What pairs of an image and its caption ask of a model with two towers."""

    image: InputShape
    text: TextShape

    @property
    def num_classes(self) -> int:
        """The classes of the data set, which nothing is predicted of."""
        return self.image.num_classes

    def __str__(self) -> str:
        return f"pairs of {self.image} and {self.text}"


class Backbone(nn.Module):
    """Base for architectures: images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``.

    Those for text read token ids ``(N, length)`` instead, those for tables rows ``(N, features)``,
    those for series windows ``(N, channels, steps)``. One that has a method ``maps`` too,
    images to feature maps ``(N, raw_dim, h, w)`` whose mean over h and w is ``forward``, serves
    segmentation.

    Subclassing is a convenience: `build_model` takes any ``nn.Module`` with an integer ``raw_dim``.

    Parameters
    ----------
    raw_dim : int
        Width L of the feature vector that ``forward`` returns.
    """

    raw_dim: int

    def __init__(self, raw_dim: int) -> None:
        super().__init__()
        self.raw_dim = raw_dim

    def feature_levels(self) -> list[nn.Module]:
        """Return the modules whose outputs ``(N, c, h, w)`` or ``(N, c)`` are features on the way.

        Each of another depth, the first nearest to the examples; the raw features are none. By
        default none is named.
        """
        return []


class SplittableBackbone(Backbone):
    """A backbone that FedIN can cut after its stem.

    Subclasses give `stem` and `body`; ``forward`` is their composition. The stem has the same
    architecture in the whole family, so its outputs can be exchanged between members.
    """

    def stem(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to feature maps ``(N, c, s, s)``."""
        raise NotImplementedError(f"{type(self).__name__} must define stem(x)")

    def body(self, s: Tensor) -> Tensor:
        """Feature maps of `stem` to raw features ``(N, raw_dim)``."""
        raise NotImplementedError(f"{type(self).__name__} must define body(s)")

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to raw features ``(N, raw_dim)``."""
        return self.body(self.stem(x))


class ChannelBackbone(SplittableBackbone):
    """A backbone of which narrower parts can be cut, see `models.channels`.

    All its weights belong to ungrouped convolutions, BatchNorm and linear layers. Only the layer
    that `modules` gives first reads images, and only convolutions come before a linear layer that
    reads flattened maps.
    """


class SplitModel(nn.Module):
    """A client's whole model: private backbone and mapping, and a head of the common shape.

    Parameters
    ----------
    name : str
        The name it was built from, as in the run configuration.
    backbone : nn.Module
        Images to raw features ``(N, raw_dim)``.
    mapping : nn.Module
        Raw features to features ``(N, feature_dim)``; see `models.mapping`.
    raw_dim, feature_dim, num_classes : int
        The widths L, d and C.

    Attributes
    ----------
    head : nn.Linear
        ``Linear(feature_dim, num_classes)``, whatever the backbone.
    """

    def __init__(
        self,
        name: str,
        backbone: nn.Module,
        mapping: nn.Module,
        *,
        raw_dim: int,
        feature_dim: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.name = name
        self.raw_dim = raw_dim
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.backbone = backbone
        self.mapping = mapping
        self.head = nn.Linear(feature_dim, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to the head's input ``(N, feature_dim)``."""
        features: Tensor = self.mapping(self.backbone(x))
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to class scores (logits) ``(N, num_classes)``."""
        logits: Tensor = self.head(self.features(x))
        return logits


class Splittable(SplitModel):
    """A `SplitModel` that FedIN can cut: ``forward(x) == head(body(stem(x)))``.

    `build_model` returns this class when the backbone is a `SplittableBackbone`; test with
    ``isinstance(model, Splittable)``.
    """

    backbone: SplittableBackbone

    def stem(self, x: Tensor) -> Tensor:
        """Images ``(N, channels, S, S)`` to FedIN's ``s_in``, feature maps ``(N, c, s, s)``."""
        return self.backbone.stem(x)

    def body(self, s: Tensor) -> Tensor:
        """``s_in`` to FedIN's ``s_out`` ``(N, feature_dim)``.

        ``s_out`` is the classifier's input, so the mapping is applied. It is the identity for the
        ResNets of the paper at ``feature_dim=512``.
        """
        s_out: Tensor = self.mapping(self.backbone.body(s))
        return s_out


def count_parameters(module: nn.Module) -> int:
    """Count the scalars of all parameters; buffers such as BatchNorm statistics are left out."""
    return sum(parameter.numel() for parameter in module.parameters())
