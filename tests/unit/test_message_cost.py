"""What a device does for every message: nothing is imported or counted that need not be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from strategies.common import flops, optimizers
from tests.support import Outcome, run_federation

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
from tests.support import run_federation

directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
common = {"models": "resnet10-w4, cnn5"}
resume = {"resume": "run"} if rounds != 2 else {}
run_federation(directory, 2, method="fedre", num_rounds=rounds, **common, **resume)
for method in ("fedin", "fedgen", "fedtgp") if rounds == 2 else ():  # with more than fedre has
    run_federation(directory / method, 2, method=method, num_rounds=1, **common)
print(*(name for name in ("torch._dynamo", "torch.utils.flop_counter") if name in sys.modules))
"""


def rounds_in_a_new_process(directory: Path, rounds: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(directory), str(rounds)], cwd=ROOT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def test_no_round_needs_the_compiler_nor_a_later_one_the_counter(tmp_path: Path) -> None:
    """Rounds 1 and 2 count operations; round 3, in a new process, has the counts.

    The server, in the same process, trains a head, a generator, and prototypes, and needs no
    compiler either.
    """
    assert rounds_in_a_new_process(tmp_path, 2) == "torch.utils.flop_counter"
    assert rounds_in_a_new_process(tmp_path, 3) == ""
    run = Outcome(tmp_path / "run")
    for client in ("0", "1"):
        counts = {row["value"] for row in run.metrics(metric="flops", client=client)}
        assert len(run.metrics(metric="flops", client=client)) == 3
        assert len(counts) == 1
        assert float(counts.pop()) > 0


@pytest.mark.parametrize("content", [None, "{", "[]", '{"x": 1}', '{"x": ["a", 1]}'])
def test_counts_come_from_the_file_if_it_can_be_read(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "client" / "flops.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    flops._PER_EXAMPLE.clear()
    with flops.remembered(path):
        flops._PER_EXAMPLE["key"], flops._PER_STEP["key"] = 2.5, 7.0
    known = {"key": [2.5, 7.0]}
    assert json.loads(path.read_text()) == known
    flops._PER_EXAMPLE.clear()
    with flops.remembered(path):
        assert flops._PER_EXAMPLE == {"key": 2.5}
        assert flops._PER_STEP["key"] == 7.0
    assert [file.name for file in path.parent.iterdir()] == ["flops.json"]


def test_a_simulation_keeps_no_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers answer many messages."""
    monkeypatch.setitem(sys.modules, "ray", None)
    run = run_federation(tmp_path, 2, method="local", num_rounds=1)
    assert not list(run.path.rglob("flops.json"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_a_step_without_the_compiler_is_the_same(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = []
    for name in ("no such module", optimizers.COMPILER):
        monkeypatch.setitem(sys.modules, optimizers.COMPILER, torch._dynamo)
        monkeypatch.setattr(optimizers, "COMPILER", name)
        weights = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        optimizers.keep_compiler_out()
        optimizer = kind([weights], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            (weights**2).sum().backward()
            optimizers.take_step(optimizer)
        assert torch.is_grad_enabled()
        ways.append(weights.detach())
    assert torch.equal(*ways)
    assert not torch.equal(ways[0], torch.linspace(-1, 1, 12).reshape(3, 4))
