"""What clients were asked to send under noise, and the epsilon that it comes to.

`privacy.csv` has a row for every training message, written before it is sent and never cut back: a
round that a resume makes again tells of a client's data again. In a simulation noise follows from
the seed, so that a message made again is the same one, and counts once.

What is accounted: all of one client's messages, against the server and whoever sees what it sees,
between any two data sets of that client. The norm of a contribution is at most C, so two differ by
at most 2 C, and noise of deviation z C is a Gaussian mechanism of multiplier z / 2; k messages are
one of z / (2 sqrt(k)), whatever depends on what before (Dong et al., Gaussian Differential Privacy,
2022). Epsilon at delta is exact for it (Balle and Wang, Improving the Gaussian Mechanism for
Differential Privacy, ICML 2018), computed by the library dp-accounting. That not every client takes
part in every round counts for nothing: who is drawn is known to the server that draws, and
`sample-fraction` is a fixed number without replacement, not a Poisson sample. The client that was
asked most often decides.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from server_app.records.csv_files import iterate_rows
from strategies.base.files import written
from strategies.base.protection import Privacy

FILE = "privacy.csv"
HEADER = ("round", "exchange", "client", "noise_from")
SEED, SYSTEM = "seed", "operating system"
SEEDED = (
    "a simulation's noise follows from the seed, which the server knows: it measures what "
    "protection costs and protects nobody"
)
NOT_COVERED = (
    "what is measured (losses, scores), numbers of examples and what the registration tells, "
    "classes among it"
)
"""What leaves a client beside its uplinks, without noise."""


def missing_accountant(privacy: Privacy) -> str | None:
    """Return what to install for the epsilon that a run needs, or None."""
    if not privacy.noisy or find_spec("dp_accounting") is not None:
        return None
    return (
        f"privacy.noise-multiplier = {privacy.noise_multiplier}: epsilon needs the package "
        "dp-accounting where the ServerApp runs; pip install 'wildflower[privacy]'"
    )


def epsilon(noise_multiplier: float, messages: int, delta: float) -> float:
    """Return the epsilon of `messages` messages of one client at `delta`.

    Parameters
    ----------
    noise_multiplier : float
        z, above 0: deviation of the noise in units of the clipping norm.
    messages : int
        k, how many; 0 tell nothing.
    delta : float
        In (0, 1).
    """
    if not messages:
        return 0.0
    from dp_accounting import get_epsilon_gaussian  # seconds, and only the server needs it

    return float(get_epsilon_gaussian(noise_multiplier / (2 * math.sqrt(messages)), delta))


class PrivacyLedger:
    """Notes who is asked to send what; nothing where the run has no noise.

    Parameters
    ----------
    directory : Path
        Of the run.
    privacy : Privacy
        The run's settings.
    devices : bool
        Whether clients draw noise from their operating system.
    """

    def __init__(self, directory: Path, privacy: Privacy, *, devices: bool) -> None:
        self._path = directory / FILE
        self._noisy = privacy.noisy
        self._source = SYSTEM if devices else SEED

    def note(self, server_round: int, exchange: int, clients: Iterable[int]) -> None:
        """Write that these clients are asked to train and send, on the disk before they are."""
        rows = [(server_round, exchange, client, self._source) for client in sorted(clients)]
        if not self._noisy or not rows:
            return
        with written(self._path), self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not file.tell():
                writer.writerow(HEADER)
            writer.writerows(rows)
            file.flush()
            os.fsync(file.fileno())


def privacy_summary(directory: Path, privacy: Privacy) -> dict[str, Any] | None:
    """Return what a run's summary says of its protection; None where there is none."""
    if not privacy.clip_norm:
        return None
    settings = {"clip_norm": privacy.clip_norm, "noise_multiplier": privacy.noise_multiplier}
    if not privacy.noisy:
        return settings
    rows = [
        (int(row["client"]), int(row["round"]), int(row["exchange"]), row["noise_from"])
        for row in iterate_rows(directory / FILE)
    ]
    once = [key for key in dict.fromkeys(rows) if key[3] == SEED]
    sent = [*once, *(key for key in rows if key[3] != SEED)]
    of_round = max(Counter((client, number) for client, number, *_ in sent).values(), default=0)
    of_run = max(Counter(client for client, *_ in sent).values(), default=0)
    return settings | {
        "delta": privacy.delta,
        "epsilon_round": epsilon(privacy.noise_multiplier, of_round, privacy.delta),
        "epsilon": epsilon(privacy.noise_multiplier, of_run, privacy.delta),
        "messages_of_a_client": of_run,
        "noise_from": sorted({key[3] for key in sent}),
        "unit": "all messages of one client, any data against any other",
        "sampling": "none assumed: the server knows who takes part",
        "not_covered": NOT_COVERED,
    }
