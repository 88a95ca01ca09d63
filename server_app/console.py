"""What a run prints: the table of clients, one line a round, the final table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strategies.base.exchange import Card

SHOWN_CLIENTS = 20


def say(text: str = "") -> None:
    """Print at once; Flower forwards the ServerApp's output line by line."""
    print(text, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned text table; numbers to the right, texts to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [
        all(row[i].replace(".", "").replace(",", "").replace("-", "").isdigit() for row in cells)
        for i in range(len(header))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [list(header), *cells]
    ]
    return "\n".join("  " + line for line in lines)


def cards_table(cards: Mapping[int, Card]) -> str:
    """Return the table of clients, printed before round 1."""
    header = ("client", "model", "parameters", "width", "classes", "train", "val", "test", "device")
    shown = [cards[i] for i in sorted(cards)[:SHOWN_CLIENTS]]
    text = table(
        header,
        [
            (
                c.client_id, c.model, f"{c.parameters:,}", f"{c.raw_dim}-{c.feature_dim}",
                f"{len(c.classes)} of {c.num_classes}", c.train_examples, c.validation_examples,
                c.test_examples, c.device,
            )
            for c in shown
        ],
    )  # fmt: skip
    hidden = len(cards) - len(shown)
    return text + (f"\n  and {hidden} more, see clients.csv" if hidden else "")


def percent(value: float | None) -> str:
    """Return 0.8312 as "83.12 %", None as "not evaluated"."""
    return "not evaluated" if value is None else f"{100 * value:.2f} %"


def human(number: float, unit: str = "") -> str:
    """Return 5120 as "5.12k"."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{prefix}{unit}"
    return f"{number:g}{unit}"


def final_table(
    cards: Mapping[int, Card], accuracy: Mapping[int, float], trained: Mapping[int, int]
) -> str:
    """Return each client's last accuracy with its own model, worst clients included."""
    header = ("client", "model", "rounds trained", "test examples", "accuracy")
    shown = sorted(cards)[:SHOWN_CLIENTS]
    text = table(
        header,
        [
            (
                i, cards[i].model, trained.get(i, 0), cards[i].test_examples,
                percent(accuracy.get(i)),
            )
            for i in shown
        ],
    )  # fmt: skip
    hidden = len(cards) - len(shown)
    return text + (f"\n  and {hidden} more, see report.html" if hidden else "")


def closing_lines(summary: Mapping[str, Any]) -> str:
    """Return the last lines of a run: accuracies with what they rest on, traffic, time."""
    accuracy, traffic, time = summary["accuracy"], summary["traffic"], summary["time"]
    scope = (
        f"{accuracy['clients_evaluated']} of {summary['clients']} clients, "
        f"{accuracy['model']} models, {accuracy['test_split']} test split"
    )
    chosen = f" in round {accuracy['best_round']}, chosen by {accuracy['best_by']} accuracy"
    if accuracy["best"] is None:
        chosen = ""
    lines = [
        f"final accuracy {percent(accuracy['final'])} ({scope})",
        f"best accuracy  {percent(accuracy['best'])}{chosen}",
        f"a round moves  {human(traffic['uplink_scalars_per_round'])} scalars up, "
        f"{human(traffic['downlink_scalars_per_round'])} down",
        f"rounds took    {time['total_s']:.1f} s, client failures: {summary['clients_failed']}",
    ]
    over_models = accuracy["mean_over_models"]
    if accuracy["model"] == "global" and over_models is not None:
        text = f"mean of models {percent(over_models)} (every architecture counts alike)"
        lines.insert(1, text)
    return "\n".join(lines)
