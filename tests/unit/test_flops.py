"""The FLOPs metric equals a count by hand and does not depend on what ran before."""

from __future__ import annotations

from pathlib import Path

from client_app import flops
from tests.support import run_federation


def linear_flops(inputs: int, outputs: int) -> int:
    """Forward 2 i o; backward the same for the weights and again for the input."""
    return 3 * 2 * inputs * outputs


def test_training_flops_equal_a_count_by_hand(tmp_path: Path) -> None:
    """CNN-5 on 1x32x32: convolutions 16@28x28 of 25, 32@10x10 of 400; linears 800-500-500-10."""
    run = run_federation(tmp_path, 2, method="local", models="*=cnn5", num_rounds=2)
    conv1 = 2 * 28 * 28 * 16 * 25
    conv2 = 2 * 10 * 10 * 32 * 400
    per_example = 2 * conv1 + 3 * conv2  # the first layer needs no gradient of the images
    per_example += linear_flops(800, 500) + linear_flops(500, 500) + linear_flops(512, 10)
    for row in run.rows("clients"):
        for value in run.metrics(metric="flops", client=row["client"]):
            assert float(value["value"]) == per_example * int(row["train_examples"])


def test_counts_do_not_depend_on_the_memory_of_the_process(tmp_path: Path) -> None:
    first = run_federation(tmp_path / "a", 3)
    flops._PER_EXAMPLE.clear()
    again = run_federation(tmp_path / "b", 3)
    assert first.metrics(metric="flops") == again.metrics(metric="flops")
    assert len(first.metrics(metric="flops")) == 6
