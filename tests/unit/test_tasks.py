"""Tasks: how they are named in a configuration, their losses and their scores."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from client_app.scores import new_score
from data import DataError
from data.annotated import IGNORE
from data.tasks import TASK_GROUPS, TaskSpec, assign_task, parse_task, parse_tasks
from strategies.common.losses import task_loss


def test_entries_are_read() -> None:
    assert parse_task(" multilabel@scenes ") == TaskSpec("multilabel", "scenes")
    assert parse_task("classification[0-2+9]") == TaskSpec("classification", "", (0, 1, 2, 9))
    assert parse_task("text@tsv[1+0]").classes == (0, 1)
    assert str(parse_task("classification@digits[0-2]")) == "classification@digits[0+1+2]"
    assert parse_task(str(parse_task("segmentation@voc[3-5]"))).classes == (3, 4, 5)


def test_entries_are_cycled_over_clients() -> None:
    text = "multilabel@scenes, text@tsv"
    assert assign_task(text, 3) == TaskSpec("text", "tsv")
    assert assign_task("", 3) is None
    assert [len(parse_tasks(group)) for group in TASK_GROUPS] == [6, 10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("multi-label@scenes", "write task@dataset"),
        ("multilable@scenes", "did you mean multilabel"),
        ("text@tvs", "did you mean tsv"),
        ("classification[3]", "one class alone"),
        ("classification[5-3]", "classes are like"),
        ("classification[0-]", "classes are like"),
        ("classification[1-2-3]", "classes are like"),
        ("text@tsv,", "write task@dataset"),
    ],
)
def test_wrong_entries_are_named(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        parse_tasks(text)


class Fixed(nn.Module):
    """Gives its input back: what a test writes down are the logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_multilabel_loss_ignores_unknown_classes() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
    targets = torch.tensor([[1, 0, IGNORE], [IGNORE, 1, 0]], dtype=torch.uint8)
    loss = task_loss("multilabel", Fixed())(logits, targets)["loss_bce"]
    known = [(2.0, 1), (-1.0, 0), (3.0, 1), (-2.0, 0)]
    each = [math.log1p(math.exp(-x if y else x)) for x, y in known]
    assert float(loss) == pytest.approx(sum(each) / 4, rel=1e-6)


def test_segmentation_loss_ignores_edges_and_survives_a_blank_mask() -> None:
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    masks = torch.randint(0, 3, (2, 4, 4), dtype=torch.uint8)
    masks[0, 0] = IGNORE
    loss = task_loss("segmentation", Fixed())(logits, masks)["loss_ce"]
    flat, wanted = logits.permute(0, 2, 3, 1).reshape(-1, 3), masks.reshape(-1).long()
    torch.testing.assert_close(loss, F.cross_entropy(flat[wanted != 255], wanted[wanted != 255]))
    blank = task_loss("segmentation", Fixed())(logits, torch.full_like(masks, IGNORE))["loss_ce"]
    blank.backward()
    assert float(blank.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_accuracy_over_batches() -> None:
    score = new_score("text")
    assert score.value() is None
    score.add(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    score.add(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    assert score.value() == 2 / 3


def test_mean_average_precision_by_hand() -> None:
    """Class 0: ranks 1 and 3 of 4 are right, (1/1 + 2/3) / 2. Class 1 has no positive. Class 2:
    one of the three known examples is right, at rank 2."""
    score = new_score("multilabel")
    outputs = torch.tensor([[9.0, 1.0, 3.0], [8.0, 2.0, 2.0], [7.0, 3.0, 1.0], [6.0, 4.0, 9.0]])
    targets = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, IGNORE]], dtype=torch.uint8)
    for rows in (slice(0, 1), slice(1, 4)):
        score.add(outputs[rows], targets[rows])
    assert score.value() == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2) / 2)
    empty = new_score("multilabel")
    empty.add(outputs, torch.zeros_like(targets))
    assert empty.value() is None


def test_mean_iou_by_hand() -> None:
    """Of 5 known pixels: class 0 shares 1 of 3, class 1 shares 2 of 4; class 2 is nowhere."""
    score = new_score("segmentation")
    predicted = torch.tensor([[[0, 0, 1, 1, 1, 2]]])
    mask = torch.tensor([[[0, 1, 1, 1, 0, IGNORE]]], dtype=torch.uint8)
    score.add(F.one_hot(predicted, 3).permute(0, 3, 1, 2).float(), mask)
    assert score.value() == pytest.approx((1 / 3 + 2 / 4) / 2)
    blank = new_score("segmentation")
    blank.add(torch.zeros(1, 3, 1, 6), torch.full_like(mask, IGNORE))
    assert blank.value() is None
