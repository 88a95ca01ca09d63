"""The communication table of the FedRE paper, and why some of its figures cannot be met."""

from __future__ import annotations

from typing import NamedTuple

DIMENSION = 512
"""Width d of the representations."""

ROUNDING = 5
"""The paper gives two decimals of thousands."""


class Published(NamedTuple):
    """Scalars of one round over ten clients, from figures given in thousands."""

    uplink: int
    downlink: int


PUBLISHED: dict[str, Published] = {
    "lg-fedavg": Published(513_000, 513_000),
    "fedgh": Published(257_020, 512_000),
    "fedkd": Published(4_234_280, 4_234_280),
    "fedgen": Published(9_247_080, 513_000),
    "fedproto": Published(257_020, 512_000),
    "fedmrl": Published(8_863_080, 8_863_080),
    "fedre": Published(5_120, 513_000),
}
"""By method; the paper's order."""

_PAIRS = (
    f"the uplink is {DIMENSION} scalars for each (client, class) pair of the split; the paper's "
    "split had 502 pairs (257,024 scalars), another draw of the same scheme has another number"
)

WORDS: dict[str, str] = {
    "fedgh": _PAIRS + "; its 512.00 down counts the head without bias, while the same head is "
    "513.00 in the paper's other rows: here the bias is sent and counted",
    "fedkd": "4234.28 depends on the data: it is what an SVD with an energy threshold left of "
    "FedAvgCNN's 924,708 parameters, and does not follow from shapes",
    "fedgen": "9247.08 up is ten times the full FedAvgCNN (924,708 parameters), which FedGen has "
    "no need to send; its natural uplink is the head (513.00), and its real downlink is the head "
    "and the generator, which the paper's 513.00 leaves out",
    "fedproto": _PAIRS + "; down, 100 global prototypes go to each client from the second round on",
    "fedmuscle": "one contrastive step of B = 32 public items with M = 3 others; a round has T of "
    "them",
    "fedhenn": "an alignment set of 320 public items; the released code has 1,000",
    "cofed": "320 public items, voted on by models that were trained for a round",
    "fedmrl": "8863.08 is ten times FedAvgCNN's base pooled to 128 features plus "
    "Linear(128, 100): 886,308 scalars; run here with that small model",
}
"""By method: what to know where the figures differ from the paper's."""
