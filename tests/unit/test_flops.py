"""The FLOPs metric equals a count by hand and does not depend on what ran before."""

from __future__ import annotations

from pathlib import Path

from strategies.common import flops
from tests.support import run_federation
from tests.unit.test_fedin import a_downlink, context_of, trained


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


def test_a_hook_is_counted_per_step_whoever_comes_first() -> None:
    """FedIN's pass over 4 others' pairs costs the same in a step on 12 examples and in one on 2."""
    counts = []
    for order in ((12, 2), (2, 12)):
        flops._PER_EXAMPLE.clear()
        counts.append({})
        for examples in order:
            context = context_of(examples)
            counts[-1][examples] = trained(context, a_downlink(context, pairs=4))[1]["flops"]
    assert counts[0] == counts[1]
    context = context_of(6, batch_size=2)
    steps = trained(context, a_downlink(context, pairs=4))[1]["flops"]
    per_example = (counts[0][12] - counts[0][2]) / 10
    per_step = counts[0][2] - 2 * per_example
    assert steps == 6 * per_example + 3 * per_step
    assert per_step > 0
