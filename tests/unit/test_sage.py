"""SAGE: pseudo-labels and their loss by hand, labelled parts, wrong use, short runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from strategies.base.options import ConfigError
from strategies.base.parsing import parse_run_config
from strategies.sage import divergence, labelled_part, outcomes, pseudo_labels
from tests.support import ServerAtWork, run_federation
from tests.unit.test_roster import a_client_info


def logits_of(*probabilities: list[float]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_pseudo_labels_by_hand() -> None:
    """Threshold 0.9, gap 0.02: both sure and 0.02 apart; only the received one; none of them."""
    local = logits_of([0.96, 0.04], [0.70, 0.30], [0.60, 0.40])
    received = logits_of([0.06, 0.94], [0.05, 0.95], [0.30, 0.70])
    target, used = pseudo_labels(local, received, 0.9, 0.02)
    torch.testing.assert_close(target, torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]))
    assert used.tolist() == [True, True, False]


def test_a_sure_local_model_alone_counts_by_its_lead() -> None:
    """0.95 against 0.65 with a gap of 0.1: a share of 2^-3."""
    target, used = pseudo_labels(logits_of([0.95, 0.05]), logits_of([0.35, 0.65]), 0.9, 0.1)
    torch.testing.assert_close(target, torch.tensor([[0.125, 0.875]]))
    assert used.tolist() == [True]


def test_the_divergence_by_hand() -> None:
    """KL((1/2, 1/2) || (3/4, 1/4)) = ln(2 / sqrt 3); what is not used counts in the mean."""
    target, logits = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), logits_of([0.75, 0.25], [0.1, 0.9])
    loss = divergence(target, logits, torch.tensor([True, False]))
    assert loss.item() == pytest.approx(math.log(2 / math.sqrt(3)) / 2, rel=1e-5)
    hard = divergence(target, logits, torch.tensor([False, True]))
    assert hard.item() == pytest.approx(math.log(10) / 2, rel=1e-5)


def test_every_label_of_many_has_two_outcomes() -> None:
    two = outcomes("multilabel", torch.tensor([[0.0, 2.0]])).softmax(dim=-1)
    present = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(two, torch.tensor([[[0.5, 0.5], [1 - present, present]]]))


class Rows:
    """What `labelled_part` needs of a split."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, positions: np.ndarray) -> Rows:
        return Rows(self.rows[positions])


@pytest.mark.parametrize(("share", "labelled"), [(0.25, 5), (0.01, 1), (1.0, 20)])
def test_every_example_has_a_label_or_none(share: float, labelled: int) -> None:
    generator = np.random.default_rng(0)
    first, rest = labelled_part(Rows(np.arange(20)), share, generator)  # type: ignore[arg-type]
    assert len(first) == labelled
    assert sorted([*first.rows, *rest.rows]) == list(range(20))  # type: ignore[attr-defined]


def test_tasks_without_views_are_refused_before_data_are_loaded() -> None:
    with pytest.raises(ConfigError, match="those of segmentation keep no labels"):
        parse_run_config({"method": "sage", "tasks": "text@scenes, segmentation@scenes"})
    server = ServerAtWork(parse_run_config({"method": "sage"}))
    pixels = a_client_info(0, task="segmentation@scenes", metric="miou")
    assert "those of segmentation keep no labels" in str(server.check(pixels))


def test_a_run_learns_from_its_own_examples_without_labels(tmp_path: Path) -> None:
    """A quarter has labels: an epoch sees these alone, and the term is there."""
    run = run_federation(
        tmp_path, 2, method="sage", models="*=resnet10-w4", feature_dim=8, num_rounds=1,
        image_size=16, sage__labelled_fraction=0.25, sage__threshold=0.0,
    )  # fmt: skip
    sizes = [round(int(row["train_examples"]) / 4) for row in run.rows("clients")]
    assert [float(row["value"]) for row in run.metrics(metric="examples_seen")] == sizes
    assert all(float(row["value"]) > 0 for row in run.metrics(metric="loss_unlabelled"))
