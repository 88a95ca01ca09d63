"""FD: leave-one-out means and targets by hand, absent clients, loss terms, uplink size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strategies.base.messages import ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.common.prototypes import ClassAverage, ClassVectors
from strategies.fd import Server, Uplink, distillation_loss
from tests.support import Outcome, ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


def small_server(**options: Any) -> ServerAtWork:
    """A server of three classes."""
    run = parse_run_config({"method": "fd", "feature-dim": 2, **options})
    return ServerAtWork(run, [a_client_info(i, num_classes=3) for i in range(3)])


def update(client_id: int, sent: dict[int, list[float]]) -> ClientUpdate:
    uplink = Uplink(np.array(list(sent), np.int64), np.array(list(sent.values()), np.float32))
    return ClientUpdate(client_id, 1, uplink, [], 0.0, 0, 0, "")


def received(server: ServerAtWork, client_id: int) -> dict[int, list[float]]:
    down = server.downlink_for(client_id, 1)
    return dict(zip(down.class_ids.tolist(), down.logits.tolist(), strict=True))


def values(run: Outcome, metric: str, **wanted: object) -> list[float]:
    return [float(row["value"]) for row in run.metrics(metric=metric, **wanted)]


ROUND = [
    update(0, {0: [2.0, 0.0, 1.0], 1: [0.0, 9.0, 0.0]}),
    update(1, {0: [4.0, 2.0, 3.0]}),
    update(2, {0: [6.0, 4.0, 8.0]}),
]


def test_leave_one_out_by_hand() -> None:
    """Class 0 is held by all, class 1 by client 0 alone, class 2 by nobody."""
    server = small_server()
    assert received(server, 0) == {}
    server.aggregate_in(1, ROUND)
    assert received(server, 0) == {0: [5.0, 3.0, 5.5]}
    assert received(server, 1) == {0: [4.0, 2.0, 4.5], 1: [0.0, 9.0, 0.0]}
    assert received(server, 7) == {0: [4.0, 2.0, 4.0], 1: [0.0, 9.0, 0.0]}


def test_include_own() -> None:
    server = small_server(**{"fd.include-own": True})
    server.aggregate_in(1, ROUND)
    for client_id in (0, 1, 7):
        assert received(server, client_id) == {0: [4.0, 2.0, 4.0], 1: [0.0, 9.0, 0.0]}


def test_who_was_away_is_not_averaged_in() -> None:
    """Round 2 has client 1 with class 0 only: class 0 is its word now, class 1 keeps round 1's."""
    server = small_server()
    server.aggregate_in(1, ROUND)
    assert server.aggregate_in(2, [update(1, {0: [1.0, 1.0, 1.0]})]) == {"clients_known": 2.0}
    assert set(server.state.logits) == {"0", "1"}  # nothing of client 2 is needed any more
    assert received(server, 0) == {0: [1.0, 1.0, 1.0]}
    assert received(server, 2) == {0: [1.0, 1.0, 1.0], 1: [0.0, 9.0, 0.0]}
    # Client 1 is left out of what it alone said last.
    assert received(server, 1) == {1: [0.0, 9.0, 0.0]}


def test_average_over_all_keeps_everybodys_last_word() -> None:
    server = small_server(**{"fd.average-over": "all"})
    server.aggregate_in(1, ROUND)
    server.aggregate_in(2, [update(1, {2: [1.0, 1.0, 1.0]})])
    # Client 1 no longer speaks for class 0; clients 0 and 2 are away and still do.
    assert received(server, 1) == {0: [4.0, 2.0, 4.5], 1: [0.0, 9.0, 0.0]}
    assert received(server, 2) == {0: [2.0, 0.0, 1.0], 1: [0.0, 9.0, 0.0], 2: [1.0, 1.0, 1.0]}


def test_sums_do_not_depend_on_who_joined_first() -> None:
    rows = [[0.1, 1e8, -0.7], [0.2, -1e8, 1e-3], [0.3, 3.0, 1e-9]]
    updates = [update(k, {0: row}) for k, row in enumerate(rows)]
    both = (small_server(**{"fd.average-over": "all"}) for _ in range(2))
    at_once, one_by_one = both
    at_once.aggregate_in(1, updates)
    for number, item in enumerate(reversed(updates), 1):
        one_by_one.aggregate_in(number, [item])
    assert torch.equal(at_once.state.sums, one_by_one.state.sums)


def test_loss_by_hand() -> None:
    """Uniform outputs cost log C whatever the target; a missing class costs nothing."""
    targets = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]).softmax(dim=1)
    assert torch.allclose(targets.sum(dim=1), torch.ones(3))
    known = torch.tensor([True, False, True])
    outputs = torch.zeros(2, 3, requires_grad=True)
    loss = distillation_loss(outputs, torch.tensor([0, 1]), targets, known)
    assert loss.item() == pytest.approx(math.log(3) / 2)
    loss.backward()
    assert outputs.grad is not None
    # d CE / d out = (softmax(out) - target) / B.
    assert torch.allclose(outputs.grad[0], (torch.full((3,), 1 / 3) - targets[0]) / 2)
    assert outputs.grad[1].tolist() == [0.0, 0.0, 0.0]


def test_loss_is_least_at_the_target() -> None:
    mean_logit = torch.tensor([[1.0, 3.0, -2.0]])
    known, label = torch.tensor([True]), torch.tensor([0])
    targets = mean_logit.softmax(dim=1)
    least = distillation_loss(mean_logit + 5, label, targets, known)
    entropy = -(targets * targets.log()).sum()
    assert least.item() == pytest.approx(entropy.item())
    assert distillation_loss(torch.zeros(1, 3), label, targets, known) > least


def test_loss_terms_and_uplink_size(tmp_path: Path) -> None:
    """U08, U11: the uplink does not grow with the model; no distillation in round 1."""
    run = run_federation(tmp_path, 3, method="fd", num_rounds=3, partition="iid", local_epochs=2)
    assert values(run, "loss_distillation", round=1) == [0.0, 0.0, 0.0]
    for number in (2, 3):
        assert min(values(run, "loss_distillation", round=number)) > 0
    traffic = [r for r in run.rows("traffic") if r["purpose"] == "train"]
    sizes = [int(r["bytes"]) for r in traffic if r["direction"] == "uplink"]
    assert max(sizes) <= 1.01 * min(sizes)
    assert len({row["parameters"] for row in run.rows("clients")}) == 3
    for row in traffic:
        nothing_yet = row["direction"] == "downlink" and row["round"] == "1"
        assert int(row["scalars"]) == (0 if nothing_yet else 10 * 10)


def test_uplink_averages_all_local_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Averages are over sample visits, examples of the class times local epochs; none is sent."""
    seen: list[Uplink] = []
    visits: list[list[int]] = []

    class Watched(ClassAverage):
        def result(self) -> ClassVectors:
            visits.append(self.weights[self.weights > 0].long().tolist())
            return super().result()

    def listen(self: Server, context: Any, state: Any, updates: Any) -> dict[str, float]:
        seen.extend(item.uplink for item in updates)
        return {}

    monkeypatch.setattr(Server, "aggregate", listen)
    monkeypatch.setattr("strategies.fd.ClassAverage", Watched)
    run = run_federation(tmp_path, 2, method="fd", models="five-cnns", num_rounds=1, local_epochs=2)
    for row, uplink, visited in zip(run.rows("clients"), seen, visits, strict=True):
        assert uplink.class_ids.tolist() == [int(c) for c in row["classes"].split()]
        assert visited == [2 * int(n) for n in row["class_counts"].split()]
