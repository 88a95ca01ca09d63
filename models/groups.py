"""Which client gets which model: the run-config key ``models`` in its three forms.

=============================  ===================================================================
``"five-cnns"``                a group, cycled over client ids
``"cnn1, resnet18, my.pkg:f"`` a list, cycled over client ids
``"0=cnn1, 1=vit-b16, *=cnn2"``  a map from client id; ``*`` stands for all other clients
=============================  ===================================================================

A model of the extra ``hf`` may name a place with pretrained weights: ``hf-vit@FOLDER`` or
``hf-vit@HUB-NAME``. Such a place cannot hold a comma or an equals sign.

A group name stands alone. ``cnn5`` is a model: ``"*=cnn5"`` gives all clients that model. Alone it
still means the group ``five-cnns``, as earlier versions called it, see `FORMER_GROUPS`.
"""

from __future__ import annotations

from models.base import ModelError
from models.registry import model_info

_SETUP_1 = ("vit-tiny", "resnet10-w4", "vit-small", "cnn5", "vit-tiny", "resnet14-w4")

GROUPS: dict[str, tuple[str, ...]] = {
    "five-cnns": ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5"),
    "resnet5": ("resnet10", "resnet14", "resnet18", "resnet22", "resnet26"),
    "htm10": (
        "fedavgcnn",
        "googlenet",
        "mobilenetv2",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet152",
        "vit-b16",
        "vit-b32",
    ),
    "setup1": _SETUP_1,
    "setup2": (*_SETUP_1, "seg-small", "seg-large", "text-small", "text-large"),
}
"""Named lists: FedMRL's five CNNs, FedIN's five ResNets, HtFLlib's ten unlike models; and models
for the groups of tasks of the same names in `data.tasks`, which have FedMuscle's shape."""

FORMER_GROUPS: dict[str, str] = {"cnn5": "five-cnns"}
"""Names of groups in earlier versions and their names now. They work for one version more; the
run-config's reader says so."""

_OTHERS = "*"


def current_group(text: str) -> str:
    """Return a value of ``models`` with the former name of a group replaced by the present one."""
    return FORMER_GROUPS.get(text.strip(), text.strip())


def resolve_models(text: str) -> tuple[str, ...]:
    """Check the value of ``models`` and return the models it names.

    Parameters
    ----------
    text : str
        A group, a list or a map, see the module's head.

    Returns
    -------
    tuple of str
        Names in the order written: the cycle of a group or list, or, for a map, each model once.

    Raises
    ------
    ModelError
        An entry that names no model, with the nearest spellings; or a malformed value.
    """
    group = current_group(text)
    if group in GROUPS:
        return GROUPS[group]
    if "=" in text:
        return tuple(dict.fromkeys(_parse_map(text).values()))
    return tuple(_checked(entry, entry, text) for entry in _entries(text))


def names_in(text: str) -> frozenset[str]:
    """Return all names in a value of ``models``, looked up or not; of a group its models'."""
    group = current_group(text)
    if group in GROUPS:
        return frozenset(GROUPS[group])
    entries = (entry.strip() for entry in text.split(","))
    return frozenset(entry.rpartition("=")[2].strip() for entry in entries if entry)


def assign_model(text: str, client: int) -> str:
    """Return the model of one client.

    Parameters
    ----------
    text : str
        The value of ``models``: a group, a list or a map, see the module's head.
    client : int
        Client id, 0 or more: the partition id in simulation, ``client-id`` on a device.

    Returns
    -------
    str
        A name for `build_model`.

    Raises
    ------
    ModelError
        As `resolve_models`; or a map without ``*`` that leaves this client out.
    """
    if client < 0:
        raise ModelError(f"client id {client!r}, must be 0 or more")
    if "=" not in text:
        cycle = resolve_models(text)
        return cycle[client % len(cycle)]
    assignment = _parse_map(text)
    for key in (str(client), _OTHERS):
        if key in assignment:
            return assignment[key]
    raise ModelError(
        f"client {client} has no model in models={text!r}; add '{client}=<model>', "
        f"or '{_OTHERS}=<model>' for all other clients"
    )


def _parse_map(text: str) -> dict[str, str]:
    """Read ``"0=cnn1, *=cnn2"`` into client id (or ``*``) to model name."""
    assignment: dict[str, str] = {}
    for entry in _entries(text):
        client, equals, model = (part.strip() for part in entry.partition("="))
        if not equals or not (client == _OTHERS or (client.isascii() and client.isdigit())):
            raise ModelError(
                f"entry {entry!r} of models={text!r}: in a map every entry reads "
                f"'<client id>=<model>' or '{_OTHERS}=<model>'"
            )
        key = client if client == _OTHERS else str(int(client))  # "07" is client 7
        if key in assignment:
            raise ModelError(f"client {key} has two models in models={text!r}; keep one")
        assignment[key] = _checked(model, entry, text)
    return assignment


def _entries(text: str) -> list[str]:
    """Split at the commas; an empty entry is a slip worth reporting."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ModelError(
            f"models={text!r} has an empty entry; name a group ({', '.join(GROUPS)}), "
            "a comma list of models, or a map such as '0=cnn1, *=cnn2'"
        )
    return entries


def _checked(model: str, entry: str, text: str) -> str:
    """Return the name when a model can be built from it."""
    try:
        model_info(model)
    except ModelError as cause:
        alone = "; a group stands alone, outside lists and maps" if model in GROUPS else ""
        raise ModelError(f"entry {entry!r} of models={text!r}: {cause}{alone}") from cause
    return model
