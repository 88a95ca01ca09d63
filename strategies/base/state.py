"""Declared state: everything that survives a round, saved and loaded generically.

A state is a dataclass. Its fields may be modules, tensors, mappings from names to tensors, plain
scalars, lists of scalars, or None. Saving walks over all fields that are not declared
`Transient`, so none can be forgotten; a file whose fields differ from the class's is refused. The
format is safetensors: nothing is ever unpickled, and loading maps the file instead of reading it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from models.memory_format import to_channels_last
from strategies.base.files import replacing

SCALARS = (bool, int, float, str)

T = TypeVar("T")

_TRANSIENT = "transient"
Transient = Annotated[T, _TRANSIENT]
"""Type of a state field that does not survive a round, neither saved nor loaded.

On a client, a module whose weights arrive anew: the client half's `build` makes it on the meta
device, without weights, and `receive` fills it with `fill_module`. On the server, what one exchange
of a round leaves for the next.
"""


class StateError(RuntimeError):
    """A state file is missing or damaged, or belongs to something else."""


class DamagedStateError(StateError):
    """A state file cannot be read as what `save_state` writes."""


_BESIDE = "beside:"
"""Before the names of tensors that lie in a state's file and are no part of the state."""


def save_state(
    path: Path,
    state: Any,
    about: Mapping[str, object],
    *,
    beside: Mapping[str, Tensor] | None = None,
    durable: bool = False,
) -> None:
    """Write a state atomically: a file under `path` is either whole or absent.

    Parameters
    ----------
    path : Path
        Target file; its directory is created.
    state : dataclass instance
        The state to write.
    about : Mapping[str, object]
        JSON-serialisable facts about the file, such as round and method; see `read_about`.
    beside : Mapping of str to Tensor, optional
        Tensors to keep in the same file; see `read_beside`.
    durable : bool
        Whether to wait until the bytes are on the disk, see `files.replacing`.

    Raises
    ------
    NotWrittenError
        If the disk is full, or the directory is not to be written to.
    """
    tensors, fields = _flatten(state)
    tensors |= {_BESIDE + key: item for key, item in (beside or {}).items()}
    stored = separate_entries(tensors)
    header = {"about": json.dumps(dict(about)), "fields": json.dumps(fields)}
    with replacing(path, durable=durable) as partial:
        save_file(stored, partial, metadata=header)


def read_about(path: Path) -> dict[str, Any]:
    """Return the facts given to `save_state`; raises `StateError` if the file is damaged."""
    return _header(path)[0]


def read_beside(path: Path) -> dict[str, Tensor]:
    """Return the tensors given to `save_state` beside the state, in no certain order."""
    start = len(_BESIDE)
    found = _read_tensors(path, lambda key: key.startswith(_BESIDE))
    return {key[start:]: item for key, item in found.items()}


def load_state(path: Path, skeleton: T) -> T:
    """Fill `skeleton` from a file and return it.

    Parameters
    ----------
    path : Path
        A file written by `save_state`.
    skeleton : dataclass instance
        A state of the class that was saved. Its modules give the structure and may live on the
        meta device; all other fields are replaced, transient ones excepted.

    Raises
    ------
    StateError
        If the file is damaged, or its fields or its modules' entries differ from the skeleton's.
    """
    _, fields = _header(path)
    tensors = _read_tensors(path, lambda key: not key.startswith(_BESIDE))
    names = [f.name for f in _lasting(skeleton)]
    if set(names) != set(fields):
        raise StateError(
            f"{path}: holds the fields {sorted(fields)}, {type(skeleton).__name__} has {names}"
        )
    try:
        for name in names:
            kind, value = fields[name]
            _fill_field(path, name, skeleton, kind, value, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(
            f"{path}: damaged, its list of fields is wrong ({error!r})"
        ) from error
    return skeleton


def move_state(state: T, device: torch.device) -> T:
    """Move every module and tensor of a state to `device`, in place where that is possible.

    Modules without weights, on the meta device, stay as they are. Convolution weights become
    channels last, as the images are.
    """
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        value = getattr(state, field.name)
        if isinstance(value, nn.Module):
            if any(item.is_meta for item in value.parameters()):
                continue
            to_channels_last(value, device)
        elif isinstance(value, Tensor):
            setattr(state, field.name, value.to(device))
        elif isinstance(value, dict):
            setattr(state, field.name, {key: item.to(device) for key, item in value.items()})
    return state


def modules_of(state: Any) -> list[nn.Module]:
    """Return the fields of a state that are modules."""
    values = (getattr(state, field.name) for field in dataclasses.fields(state))
    return [value for value in values if isinstance(value, nn.Module)]


def bytes_kept(state: Any) -> int:
    """Return the size of the tensors that `save_state` would write."""
    return sum(item.nbytes for item in _flatten(state)[0].values())


def non_finite_entries(state: Any) -> list[str]:
    """Return the keys of a state's tensors, and of transient modules', with NaN or infinity."""
    tensors, _ = _flatten(state)
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, nn.Module):
            tensors |= {f"{field.name}/{k}": t.detach() for k, t in value.state_dict().items()}
    return [k for k, t in tensors.items() if t.is_floating_point() and not _is_finite(t)]


def _is_finite(values: Tensor) -> bool:
    """Look at the sum first, which any NaN or infinity spoils: a tenth of looking at each value."""
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def _lasting(state: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a state that survive a round."""
    return _lasting_of(type(state))  # type: ignore[arg-type]


@lru_cache
def _lasting_of(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    return [field for field in fields if _TRANSIENT not in get_args(hints[field.name])[1:]]


def _flatten(state: Any) -> tuple[dict[str, Tensor], dict[str, list[Any]]]:
    """Return the tensors by key, uncopied, and for every field its kind and its keys or value."""
    tensors: dict[str, Tensor] = {}
    fields: dict[str, list[Any]] = {}
    for field in _lasting(state):
        name, value = field.name, getattr(state, field.name)
        if isinstance(value, nn.Module):
            entries: Mapping[str, Tensor] = value.state_dict()
            fields[name] = ["module", list(entries)]
        elif isinstance(value, dict) and all(isinstance(v, Tensor) for v in value.values()):
            entries = value
            fields[name] = ["mapping", list(entries)]
        elif isinstance(value, Tensor):
            tensors[name] = value.detach()
            fields[name] = ["tensor", None]
            continue
        elif value is None or isinstance(value, SCALARS) or _is_scalar_list(value):
            fields[name] = ["value", value]
            continue
        else:
            raise StateError(
                f"{type(state).__name__}.{name}: a {type(value).__name__} cannot be kept; use "
                "modules, tensors, mappings of tensors, scalars or lists of scalars"
            )
        for key, item in entries.items():
            if not isinstance(item, Tensor):  # of a module's get_extra_state
                raise StateError(
                    f"{type(state).__name__}.{name}: entry {key} is a {type(item).__name__} and "
                    "cannot be kept; use buffers instead of get_extra_state"
                )
            tensors[f"{name}/{key}"] = item.detach()
    return tensors, fields


def _is_scalar_list(value: object) -> bool:
    return isinstance(value, list) and all(v is None or isinstance(v, SCALARS) for v in value)


def separate_entries(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: on the CPU, contiguous, none sharing memory."""
    seen: set[int] = set()
    result = {}
    for key, item in tensors.items():
        tensor = item.cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        result[key] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def _header(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        return json.loads(metadata["about"]), json.loads(metadata["fields"])
    except FileNotFoundError:
        raise StateError(f"{path}: no such state file") from None
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedStateError(
            f"{path}: damaged or not a Wildflower state file ({error})"
        ) from error


def _read_tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Map a file's tensors into memory, copy on write: changing them leaves the file alone."""
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys() if wanted(key)}  # noqa: SIM118


def _fill_field(
    path: Path, name: str, skeleton: Any, kind: str, value: Any, tensors: dict[str, Tensor]
) -> None:
    if kind == "module":
        entries = {key: tensors[f"{name}/{key}"] for key in value}
        try:
            fill_module(getattr(skeleton, name), entries)
        except StateError as error:
            raise StateError(f"{path}: field {name} {error}") from error
    elif kind == "tensor":
        setattr(skeleton, name, tensors[name])
    elif kind == "mapping":
        setattr(skeleton, name, {key: tensors[f"{name}/{key}"] for key in value})
    else:
        setattr(skeleton, name, value)


def fill_module(module: nn.Module, entries: Mapping[str, Tensor]) -> None:
    """Give a module, which may live on the meta device, these tensors as its weights.

    Nothing is copied, and the module's own weights were never needed.

    Raises
    ------
    StateError
        If the entries differ from the module's, naming them.
    """
    before = dict(module.named_parameters(remove_duplicate=False))
    try:
        module.load_state_dict(entries, strict=True, assign=True)
    except RuntimeError as error:
        raise StateError(f"does not fit the model ({error})") from error
    # Assigning gives every entry a parameter of its own; what was one must be one again.
    first: dict[int, nn.Parameter] = {}
    loaded = dict(module.named_parameters(remove_duplicate=False))
    for key, old in before.items():
        owner, _, attribute = key.rpartition(".")
        kept = first.setdefault(id(old), loaded[key])
        if kept is not loaded[key]:
            setattr(module.get_submodule(owner), attribute, kept)
    left = [
        key for key, item in [*module.named_parameters(), *module.named_buffers()] if item.is_meta
    ]
    if left:
        raise StateError(
            f"{left} are not part of the model's state; register buffers as persistent"
        )
