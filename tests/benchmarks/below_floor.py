"""What could make a bare loop on a CPU faster: torch.compile, inference mode, packed weights.

python -m tests.benchmarks.below_floor [--repetitions N]

Training is forward, backward and step of SGD on 32 CIFAR-10-sized images in channels-last layout;
evaluation is a forward pass of 256. All ways are measured in turn, on one thread, and their medians
shown, with the seconds that compiling took before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import InputShape, build_model
from tests.benchmarks.machine import machine

MODELS = ("fedavgcnn", "resnet18", "resnet10-w4")
TRAIN, EVALUATE = 32, 256
Way = Callable[[], object]


def model_of(name: str) -> nn.Module:
    """Return a model with first weights, channels last as a client has it."""
    model: nn.Module = build_model(name, InputShape(3, 32, 10), seed=0)
    return model.to(memory_format=torch.channels_last)


def images(count: int) -> Tensor:
    """Return random images (count, 3, 32, 32), channels last."""
    drawn = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return drawn.to(memory_format=torch.channels_last)


def training(name: str, *, compiled: bool) -> Way:
    """Return a training step; compiled or not."""
    model = model_of(name).train()
    forward: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = images(TRAIN), torch.arange(TRAIN) % 10

    def step() -> None:
        loss = F.cross_entropy(forward(inputs), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def evaluation(name: str, how: str) -> Way:
    """Return a forward pass: "no_grad", "inference_mode", "packed" or "compiled"."""
    model = model_of(name).eval()
    inputs = images(EVALUATE)
    forward: Any = model
    if how == "packed":  # frozen, BatchNorm folded, weights in oneDNN's own layout
        with torch.no_grad():
            traced = torch.jit.trace(model, inputs, check_trace=False)
            forward = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    if how == "compiled":
        forward = torch.compile(model)
    mode = torch.inference_mode if how == "inference_mode" else torch.no_grad

    def step() -> None:
        with mode():
            forward(inputs)

    return step


def seconds_of(way: Way) -> float:
    """Return how long one call took."""
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def measure(name: str, repetitions: int) -> dict[str, dict[str, float]]:
    """Return, by way, milliseconds a call and seconds of its first call or preparation."""
    makers: dict[str, Callable[[], Way]] = {
        "train": lambda: training(name, compiled=False),
        "train, compiled": lambda: training(name, compiled=True),
        **{
            f"evaluate, {how}": lambda how=how: evaluation(name, how)  # type: ignore[misc]
            for how in ("no_grad", "inference_mode", "packed", "compiled")
        },
    }
    ways, first = {}, {}
    for label, make in makers.items():
        started = time.perf_counter()
        ways[label] = make()
        ways[label]()
        first[label] = time.perf_counter() - started
        ways[label]()
    times: dict[str, list[float]] = {label: [] for label in ways}
    for _ in range(repetitions):
        for label, way in ways.items():
            times[label].append(seconds_of(way))
    return {
        label: {"ms": 1000 * statistics.median(found), "first_s": first[label]}
        for label, found in times.items()
    }


def main() -> None:
    """Measure all models, and print a table and the figures as JSON."""
    parser = argparse.ArgumentParser(description="ways below the bare loop's floor")
    parser.add_argument("--repetitions", type=int, default=9)
    repetitions = parser.parse_args().repetitions
    torch.set_num_threads(1)
    found = {name: measure(name, repetitions) for name in MODELS}
    for name, ways in found.items():
        for label, figures in ways.items():
            print(
                f"{name:12} {label:26} {figures['ms']:8.1f} ms   first {figures['first_s']:6.1f} s"
            )
    print(json.dumps({"machine": machine(), "found": found}))


if __name__ == "__main__":
    main()
