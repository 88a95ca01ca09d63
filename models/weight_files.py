"""Weights from a file into a network: every entry fits, or the mistake is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from models.base import ModelError


def read_safetensors(place: str) -> dict[str, Tensor]:
    """Read a ``*.safetensors`` file; other formats can hold code, so that they are not read.

    Raises
    ------
    ModelError
        There is no such file, it is of another kind, or it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(place).expanduser()
    if path.suffix != ".safetensors":
        raise ModelError(
            f"{place!r} is no *.safetensors file, and other formats can hold code, so that they "
            "are not read; write one with safetensors.torch.save_file(model.state_dict(), path)"
        )
    if not path.is_file():
        raise ModelError(f"there is no file {place!r} on this machine; copy the weights there")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as cause:
        raise ModelError(f"{place!r} cannot be read ({cause}); copy it there again") from cause


def fill(
    net: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    *,
    ignored: Iterable[str] = (),
    remedy: str = "these are the weights of another model",
) -> None:
    """Copy weights into a network.

    Parameters
    ----------
    net : nn.Module
        Changed in place.
    weights : mapping
        Entry to tensor, named as in the network's state.
    source : str
        Names the weights in errors.
    ignored : iterable of str
        Modules, such as the classifier, whose entries may be there though the network has none.
    remedy : str
        What to do about weights that do not fit.

    Raises
    ------
    ModelError
        Entries are missing, unknown, or of another shape; nothing was copied then.
    """
    wanted = net.state_dict()
    left_out = tuple(f"{name}." for name in ignored)
    unknown = sorted(
        name for name in weights if name not in wanted and not name.startswith(left_out or "\n")
    )
    missing = sorted(wanted.keys() - weights.keys())
    for problem, names in (("lack", missing), ("have unknown", unknown)):
        if names:
            raise ModelError(
                f"the weights of {source}, {problem} {len(names)} entries, such as "
                f"{', '.join(names[:3])}; {remedy}"
            )
    for name, item in wanted.items():
        if weights[name].shape != item.shape:
            raise ModelError(
                f"the weights of {source}: {name} is {tuple(weights[name].shape)}, the model has "
                f"{tuple(item.shape)}; {remedy}"
            )
    net.load_state_dict({name: weights[name] for name in wanted})
