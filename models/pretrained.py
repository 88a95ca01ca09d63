"""Weights, settings and tokenisers of pretrained models, from a folder or the Hugging Face hub.

Needs the extra ``hf`` (transformers and peft), which is imported on first use: it takes seconds.
Weights are read from safetensors files only, so nothing is ever unpickled, and no code that comes
with a model is run. From a hub only such files are fetched; they stay in the hub client's cache,
and what is in the cache is not asked for again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.base import ModelError
from models.image_network import Pixels
from models.libraries import library, package_folder
from models.registry import ModelInfo

LONGEST_TEXT = 64
"""Tokens kept of a text for a pretrained model, or fewer where it has fewer positions."""

PACKAGE = "package:"
"""What the place of weights in an installed package starts with."""

_FILES = (
    *("config.json", "preprocessor_config.json", "tokenizer*.json", "special_tokens_map.json"),
    *("vocab.txt", "*.safetensors", "*.safetensors.index.json"),
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def folder_of(place: str) -> Path:
    """Return the local folder of a place, after a download if it is a name on the hub.

    ``package:NAME/FOLDER`` is a folder in an installed package of the extra ``pretrained``.

    Raises
    ------
    ModelError
        There is neither such a folder nor such a model, or it has no ``config.json``.
    """
    package, _, inside = place.removeprefix(PACKAGE).partition("/")
    carried = place.startswith(PACKAGE)
    folder = package_folder(package, "pretrained") / inside if carried else Path(place).expanduser()
    if not folder.is_dir():
        folder = _from_hub(place)
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{place!r} has no config.json; name a folder that transformers' save_pretrained wrote"
        )
    return folder


def _from_hub(name: str) -> Path:
    """Return the cached files of a model on the hub; fetch them if they are not all there."""
    if not _HUB_NAME.fullmatch(name):
        raise ModelError(f"there is no folder {name!r} on this machine, and no model of that name")
    download = library("huggingface_hub").snapshot_download
    try:
        try:
            folder = Path(download(name, allow_patterns=_FILES, local_files_only=True))
            whole = any(folder.glob("*.safetensors"))
        except FileNotFoundError:  # nothing of it is in the cache
            whole = False
        if not whole:
            folder = Path(download(name, allow_patterns=_FILES))
    except Exception as cause:  # the client passes on its transport's errors too
        raise ModelError(
            f"{name!r} is no folder on this machine, and the hub did not give it "
            f"({type(cause).__name__}: {cause}); check the name and the network, or copy the "
            f"model into a folder and name that"
        ) from cause
    return folder


def settings_of(place: str, family: str) -> dict[str, Any]:
    """Return a place's ``config.json``, which must be of the family (transformers' model_type).

    Raises
    ------
    ModelError
        As `folder_of`; or the file is damaged or of another family.
    """
    settings = _read(folder_of(place) / "config.json")
    found = settings.get("model_type")
    if found != family:
        raise ModelError(f"{place!r} holds a model of type {found!r}, not {family!r}")
    return settings


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ModelError(f"{file} cannot be read as JSON: {cause}") from cause
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds no JSON object; copy the model's folder again")
    return content


def load_network(place: str, network: Any, config: Any, **extra: Any) -> nn.Module:
    """Make a network of transformers and fill it with the weights of a place.

    On the meta device the weights are left out: a saved state will replace them.

    Parameters
    ----------
    place : str
        A folder or a hub name; empty for random weights.
    network : type
        A class of transformers' models.
    config : object
        Its configuration.
    **extra
        Further arguments of `network`.

    Raises
    ------
    ModelError
        The place has no safetensors file, or its weights do not fill the network.
    """
    if not place or torch.empty(0).is_meta:
        made: nn.Module = network(config, **extra)
        return made
    folder = folder_of(place)
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{place!r} has no *.safetensors file, and other formats can hold code, so that they "
            "are not read; write one with transformers' save_pretrained"
        )
    library("transformers").utils.logging.disable_progress_bar()
    loaded: nn.Module
    loaded, report = network.from_pretrained(
        folder, config=config, dtype=torch.float32, use_safetensors=True, local_files_only=True,
        output_loading_info=True, **extra,
    )  # fmt: skip
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{place!r} lacks {len(missing)} weights of {network.__name__}, such as {missing[0]}; "
            "take a whole model"
        )
    return loaded


def pixels_of(place: str) -> Pixels:
    """Read how a place's images are prepared; nothing is known where it has no such file."""
    file = folder_of(place) / "preprocessor_config.json"
    if not file.is_file():
        return Pixels()
    settings = _read(file)
    size = settings.get("size")
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    mean, deviation = settings.get("image_mean"), settings.get("image_std")
    if not settings.get("do_normalize", True) or mean is None or deviation is None:
        mean, deviation = [0.0] * 3, [1.0] * 3
    return Pixels(tuple(map(float, mean)), tuple(map(float, deviation)), size)


def text_limits(info: ModelInfo) -> tuple[int, int]:
    """Return vocabulary and length of a pretrained text model."""
    settings = _read(folder_of(info.place) / "config.json")
    try:
        vocabulary, positions = settings["vocab_size"], settings["max_position_embeddings"]
    except KeyError as cause:
        raise ModelError(f"model {info.name!r}: its config.json names no {cause}") from cause
    return int(vocabulary), min(LONGEST_TEXT, int(positions))


@dataclass(frozen=True)
class OwnTokeniser:
    """A pretrained model's own tokeniser: sentences to token ids ``(N, length)``, 0 for padding."""

    tokeniser: Any
    length: int

    def __call__(self, sentences: Sequence[str]) -> NDArray[np.int64]:
        """Tokenise; longer texts are cut, shorter ones filled up."""
        if not len(sentences):
            return np.zeros((0, self.length), np.int64)
        encoded = self.tokeniser(
            list(sentences), padding="max_length", truncation=True, max_length=self.length
        )
        return np.asarray(encoded["input_ids"], np.int64)


def load_tokeniser(info: ModelInfo) -> OwnTokeniser:
    """Load the tokeniser in a text model's place.

    Raises
    ------
    ModelError
        There is none, it does not fit the model's vocabulary, or its padding is not 0.
    """
    vocabulary, length = text_limits(info)
    folder = folder_of(info.place)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        # transformers would make one without any word.
        raise ModelError(
            f"model {info.name!r}: its place has no tokeniser; put its tokenizer.json or vocab.txt "
            "there"
        )
    try:
        tokeniser = _tokeniser(str(folder))
    except Exception as cause:  # the library for tokenisers raises bare Exceptions
        raise ModelError(
            f"model {info.name!r}: the tokeniser in its place cannot be read "
            f"({type(cause).__name__}: {cause}); copy it there again"
        ) from cause
    if len(tokeniser) > vocabulary or tokeniser.pad_token_id != 0:
        raise ModelError(
            f"model {info.name!r}: its tokeniser has {len(tokeniser)} tokens and padding "
            f"{tokeniser.pad_token_id}; at most the model's {vocabulary} tokens and padding 0 are "
            "accepted; put the model's own tokeniser there"
        )
    return OwnTokeniser(tokeniser, length)


@lru_cache(maxsize=4)
def _tokeniser(folder: str) -> Any:
    return library("transformers").AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
