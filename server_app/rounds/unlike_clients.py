"""Checks of the registration that concern clients together: where one is unlike most others.

Each returns the ids of such clients, and what to say of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from strategies.base.messages import ClientInfo

Unlike = tuple[int, str]
"""A client, and what of it is unlike the others."""
SCHEMA = "give all clients one schema.json beside their data (python -m data FOLDER writes it)"
"""What makes tables on unlike devices the same."""


def unlike_data(known: Iterable[ClientInfo], infos: Sequence[ClientInfo]) -> list[Unlike]:
    """Return where new clients take the data set to be another than most clients do.

    Parameters
    ----------
    known : iterable of ClientInfo
        Clients admitted before; one that answers again counts with what it says now.
    infos : sequence of ClientInfo
        The new ones.
    """
    known = list(known)
    return [
        (
            info.client_id,
            f"client {info.client_id}: {name} is {getattr(info, name)}, the others have {usual}; "
            "all clients need the same classes in the same order and images of one kind"
            + f" (of numbers: {SCHEMA})"
            * (info.features > 0),
        )
        for name in ("num_classes", "class_hash", "channels", "image_size")
        for info, usual in _odd_ones(known, infos, name)
    ]


def unlike_public_data(known: Iterable[ClientInfo], infos: Sequence[ClientInfo]) -> list[Unlike]:
    """Return whose public data is not, item by item, what most clients have."""
    return [
        (
            info.client_id,
            f"client {info.client_id}: its public data (public-dataset, public-size) is not that "
            "of the others; give all clients the same source files (scenes are made from "
            "Fashion-MNIST, or from digits where that is absent), and a partition to all or to "
            "none, or set public-overlap='allowed'",
        )
        for info, _ in _odd_ones(known, infos, "public_hash")
    ]


def unlike_tokenisers(known: Iterable[ClientInfo], infos: Sequence[ClientInfo]) -> list[Unlike]:
    """Return whose sentences become other tokens than most clients' do."""
    return [
        (
            info.client_id,
            f"client {info.client_id}: model {info.model} turns sentences into other tokens than "
            "the others' models do, so weights that read them cannot be shared; give all clients "
            "models with one tokeniser (text-small, text-large), or choose a method that shares "
            "none",
        )
        for info, _ in _odd_ones(known, infos, "tokeniser")
    ]


def unlike_columns(known: Iterable[ClientInfo], infos: Sequence[ClientInfo]) -> list[Unlike]:
    """Return whose tables or series become other numbers than most clients' do."""
    return [
        (
            info.client_id,
            f"client {info.client_id}: {name} is {getattr(info, name)}, the others have {usual}: "
            "its columns, their order, categories or standardisation differ, so weights that read "
            f"them cannot be shared; {SCHEMA}, or choose a method that shares none",
        )
        for name in ("features", "steps", "columns_hash")
        for info, usual in _odd_ones(known, infos, name)
    ]


def _odd_ones(
    known: Iterable[ClientInfo], infos: Sequence[ClientInfo], name: str
) -> Iterator[tuple[ClientInfo, object]]:
    """Yield the new clients whose field differs from the most common value, and that value."""
    if not infos:
        return
    newer = {info.client_id for info in infos}
    earlier = [info for info in known if info.client_id not in newer] or infos
    usual = Counter(getattr(info, name) for info in earlier).most_common(1)[0][0]
    for info in infos:
        if getattr(info, name) != usual:
            yield info, usual
