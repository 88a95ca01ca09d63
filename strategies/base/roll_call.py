"""Checks of the roll call that concern clients together: where one is unlike most others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from strategies.base.exchange import Card


def unlike_data(known: Iterable[Card], cards: Sequence[Card]) -> list[str]:
    """Return where new cards take the data set to be another than most clients do.

    Parameters
    ----------
    known : iterable of Card
        Clients admitted before; one that answers again counts with its new card only.
    cards : sequence of Card
        The new ones.
    """
    known = list(known)
    return [
        f"client {card.client_id}: {name} is {getattr(card, name)}, the others have {usual}; all "
        "clients need the same classes in the same order and images of one kind"
        for name in ("num_classes", "class_hash", "channels", "image_size")
        for card, usual in _odd_ones(known, cards, name)
    ]


def unlike_public_data(known: Iterable[Card], cards: Sequence[Card]) -> list[str]:
    """Return whose public data is not, item by item, what most clients have."""
    return [
        f"client {card.client_id}: its public data (public-dataset, public-size) is not that of "
        "the others; give all clients the same source files (scenes are made from Fashion-MNIST, "
        "or from digits where that is absent)"
        for card, _ in _odd_ones(known, cards, "public_hash")
    ]


def _odd_ones(
    known: Iterable[Card], cards: Sequence[Card], name: str
) -> Iterator[tuple[Card, object]]:
    """Yield the new cards whose field differs from the most common value, and that value."""
    newer = {card.client_id for card in cards}
    earlier = [card for card in known if card.client_id not in newer] or cards
    usual = Counter(getattr(card, name) for card in earlier).most_common(1)[0][0]
    for card in cards:
        if getattr(card, name) != usual:
            yield card, usual
