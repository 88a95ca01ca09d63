"""What a run's training has cost: traffic, floating-point operations, and all until a score."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from server_app.records.curves import Point
from server_app.records.run_reader import RunRecords


def traffic_by_round(run: RunRecords) -> pd.DataFrame:
    """Sum the traffic of every recorded round; evaluation and registration are kept apart.

    Returns
    -------
    DataFrame
        By round: `up_bytes`, `down_bytes`, `up_scalars`, `down_scalars` of training, and
        `other_up_bytes`, `other_down_bytes`. A blank amount counts nothing.
    """
    rows = run.traffic
    training, up = rows["purpose"] == "train", rows["direction"] == "uplink"
    parts = {
        "up_bytes": rows["bytes"].where(training & up),
        "down_bytes": rows["bytes"].where(training & ~up),
        "up_scalars": rows["scalars"].where(training & up),
        "down_scalars": rows["scalars"].where(training & ~up),
        "other_up_bytes": rows["bytes"].where(~training & up),
        "other_down_bytes": rows["bytes"].where(~training & ~up),
    }
    return pd.DataFrame(parts).fillna(0.0).groupby(rows["round"]).sum()


def training_flops(run: RunRecords) -> dict[int, float | None]:
    """Floating-point operations of each round's training, summed over the clients that trained.

    None for a round in which one of them did not record its operations: the sum is unknown then.
    """
    rows = run.metrics[run.metrics["phase"] == "train"]
    trained = rows.groupby("round")["client"].nunique()
    counted = rows[rows["metric"] == "flops"].groupby("round")["value"].agg(["count", "sum"])
    return {
        number: float(counted["sum"][number])
        if number in counted.index and counted["count"][number] == clients
        else None
        for number, clients in trained.items()
    }


def flops_per_round(run: RunRecords) -> float | None:
    """Return the training operations of the fullest round; None if not every round has them."""
    amounts = list(training_flops(run).values())
    known = [amount for amount in amounts if amount is not None]
    return max(known) if known and len(known) == len(amounts) else None


@dataclass(frozen=True)
class Spent:
    """What training had cost when a score was measured; None is not recorded.

    Attributes
    ----------
    rounds : int
        Rounds of training up to then.
    bytes : float, optional
        Of the training messages, both directions.
    up_scalars, down_scalars : float, optional
        Of the training messages, as the methods' papers count them.
    flops : float, optional
        Floating-point operations of the clients' training steps.
    """

    rounds: int
    bytes: float | None
    up_scalars: float | None
    down_scalars: float | None
    flops: float | None


def spent_before(run: RunRecords, points: Iterable[Point]) -> list[Spent]:
    """Return what all clients' training had cost when each point was measured.

    A "pre" value of round t was measured before anything of round t was trained, so only the
    rounds before t count; a "post" value counts round t; the closing one counts everything.
    """
    traffic, flops = traffic_by_round(run).cumsum(), training_flops(run)
    spent = []
    for point in points:
        last = int(point.x) - 1 if point.phase == "pre" else int(point.x)
        up_to = traffic[traffic.index <= last]
        sums = up_to.iloc[-1] if len(up_to) else dict.fromkeys(traffic.columns, 0.0)
        done = [amount for number, amount in flops.items() if number <= last]
        known = [amount for amount in done if amount is not None]
        spent.append(
            Spent(
                last,
                float(sums["up_bytes"] + sums["down_bytes"]) if len(traffic) else None,
                float(sums["up_scalars"]) if len(traffic) else None,
                float(sums["down_scalars"]) if len(traffic) else None,
                math.fsum(known) if flops and len(known) == len(done) else None,
            )
        )
    return spent
