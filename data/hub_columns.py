"""Which columns of an `hf:` data set are images or sentences, and which is the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data.columns import LABEL_NAMES, TEXT_NAMES, known_name
from data.spec import DataError, DataSpec

IMAGE_NAMES = frozenset(("image", "img", "picture", "photo", "pixels"))
_LABELS = LABEL_NAMES | {"y"}


@dataclass(frozen=True)
class HubColumns:
    """Names of the columns that are used.

    Attributes
    ----------
    example, label : str
        What is learned from, and the class.
    images : bool
        Whether examples are images; else they are sentences.
    """

    example: str
    label: str
    images: bool


def choose_columns(spec: DataSpec, features: dict[str, Any]) -> HubColumns:
    """Tell which columns are meant: those that are named, else the only ones that fit.

    Images are preferred to sentences, unless `text_column` is set.

    Parameters
    ----------
    spec : DataSpec
        Gives `image_column`, `text_column` and `label_column`.
    features : dict
        Of the training part, by column, as `datasets` describes them.

    Raises
    ------
    DataError
        If a named column is missing or of the wrong kind, or several fit; names them and the key.
    """
    if spec.image_column and spec.text_column:
        raise DataError(
            f"image-column={spec.image_column!r} and text-column={spec.text_column!r} are both "
            "set; set the one that clients learn from."
        )
    for key in ("image-column", "text-column", "label-column"):
        name = getattr(spec, key.replace("-", "_"))
        if name and name not in features:
            raise DataError(
                f"{key}={name!r}: {spec.dataset} has no such column; it has {_shown(features)}."
            )
    images = [name for name, feature in features.items() if _holds_images(name, feature)]
    label = _label(spec, features)
    if spec.image_column or (images and not spec.text_column):
        example = spec.image_column or _only(spec, "image-column", images, IMAGE_NAMES)
        if example not in images and not _holds_bytes(features[example]):
            raise _unfit(spec, "image-column", example, features, "images, as bytes or in files")
        return HubColumns(example, label, images=True)
    texts = [n for n, f in features.items() if n != label and _dtype(f) in _STRINGS]
    if not texts and not spec.text_column:
        raise DataError(
            f"{spec.dataset} has no column of images or sentences; it has {_shown(features)}. For "
            "a table of numbers set dataset=tabular and data-dir to its parquet or CSV file."
        )
    example = spec.text_column or _only(spec, "text-column", texts, TEXT_NAMES)
    if example not in texts:
        raise _unfit(spec, "text-column", example, features, "sentences other than the label")
    return HubColumns(example, label, images=False)


_STRINGS = ("string", "large_string")


def _label(spec: DataSpec, features: dict[str, Any]) -> str:
    if spec.label_column:
        if not _is_label(features[spec.label_column]):
            what = "one class an example, as a number or a word"
            raise _unfit(spec, "label-column", spec.label_column, features, what)
        return spec.label_column
    classes = [name for name, feature in features.items() if _class_names(feature)]
    named = [n for n, f in features.items() if known_name(n) in _LABELS and _is_label(f)]
    if not (found := classes or named):
        raise DataError(
            f"{spec.dataset}: which column is the label is not known; set label-column to one of "
            f"{_shown(features)}."
        )
    return _only(spec, "label-column", found, _LABELS)


def _only(spec: DataSpec, key: str, found: list[str], known: frozenset[str]) -> str:
    """Return the one column, or of several the one with a usual name."""
    usual = found if len(found) == 1 else [name for name in found if known_name(name) in known]
    if len(usual) == 1:
        return usual[0]
    raise DataError(
        f"{spec.dataset} has several columns that may be meant: {', '.join(found)}; set {key} to "
        "one of them."
    )


def _class_names(feature: Any) -> bool:
    return type(feature).__name__ == "ClassLabel"


def _dtype(feature: Any) -> str:
    """Return the kind of a column of single values, empty for others."""
    return str(feature.dtype) if type(feature).__name__ in ("Value", "ClassLabel") else ""


def _is_label(feature: Any) -> bool:
    dtype = _dtype(feature)
    return dtype.startswith(("int", "uint", "bool", "float")) or dtype in _STRINGS


def _holds_images(name: str, feature: Any) -> bool:
    if type(feature).__name__ == "Image":
        return True
    return known_name(name) in IMAGE_NAMES and _holds_bytes(feature)


def _holds_bytes(feature: Any) -> bool:
    """Whether values may be files of images: bytes, paths, or both."""
    if isinstance(feature, dict):
        return bool(feature.keys() & {"bytes", "path"})
    return type(feature).__name__ == "Image" or _dtype(feature) in (
        "binary",
        "large_binary",
        *_STRINGS,
    )


def _unfit(spec: DataSpec, key: str, name: str, features: dict[str, Any], what: str) -> DataError:
    return DataError(
        f"{key}={name!r}: that column of {spec.dataset} is {features[name]!s:.80}; expected are "
        f"{what}. It has {_shown(features)}."
    )


def _shown(features: dict[str, Any]) -> str:
    names = [f"{name} ({_dtype(f) or type(f).__name__})" for name, f in features.items()]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
