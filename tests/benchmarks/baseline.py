"""The baseline: what a bare PyTorch loop needs for a workload's local steps and evaluation.

    python -m tests.benchmarks.baseline request.json      # one JSON line comes back

As many processes as the run has workers, one thread each, take clients from one queue, those first
that took longest in the round before. No Flower, no round loop, no state of clients: a process
holds one model of each architecture and trains it for whatever client comes next. Models, arrays,
batch size and optimiser are those of the run, and so are its passes over the data: local epochs,
the method's own collection of representations over the training examples, and evaluation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data import load_client_data
from models import InputShape, SplitModel, assign_model, build_model
from strategies.base.parsing import default_run_config, parse_run_config
from strategies.base.run_config import RunConfig
from tests.benchmarks.workloads import ROOT, Workload

TASK_SECONDS = 600.0
"""Longest time a client may take."""
EVALUATION_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What the bare loop needed.

    Attributes
    ----------
    round_s : list of float
        Wall seconds of every counted round.
    busy_s : list of float
        Seconds that the processes computed in it, summed over them.
    parts_s : dict of str to float
        Mean of these by part: "train", "collect", "evaluate".
    peak_bytes : int
        Largest resident set of one process.
    gpu_bytes : int
        Most memory that torch had allocated in one process on a GPU; 0 on a CPU.
    """

    round_s: list[float]
    busy_s: list[float]
    parts_s: dict[str, float]
    peak_bytes: int
    gpu_bytes: int = 0


def measure_baseline(
    workload: Workload, workers: int, device: str = "cpu", limit: float = 3600.0
) -> Baseline:
    """Run the bare loop in a process group of its own, and end that whatever happens."""
    request = {
        "config": workload.config, "clients": workload.clients, "workers": workers,
        "rounds": workload.baseline_rounds, "device": device,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "request.json"
        path.write_text(json.dumps(request))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.baseline", str(path)],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
        finally:
            _end_group(process)
    if process.returncode != 0:
        raise RuntimeError(f"the bare loop ended with status {process.returncode}, see above")
    return Baseline(**json.loads(output.splitlines()[-1]))


def _end_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10.0)


class Bare:
    """One process of the bare loop."""

    def __init__(self, request: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.run: RunConfig = parse_run_config({**default_run_config(), **request["config"]})
        self.clients = int(request["clients"])
        self.device = torch.device(request["device"])
        self.splits: dict[int, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = {}
        self.models: dict[str, SplitModel] = {}
        self.classes = 0

    def serve(self, client: int, trains: bool, evaluates: bool) -> dict[str, float]:
        """Do a client's work of a round; return seconds by part."""
        train, test = self.open(client)
        name = assign_model(self.run.models, client)
        model, seconds = self.models[name], {}
        if trains and len(train[1]):
            started = time.perf_counter()
            self._train(model, *train)
            self._wait()
            seconds["train"] = time.perf_counter() - started
            started = time.perf_counter()
            self._collect(model, *train)
            self._wait()
            seconds["collect"] = time.perf_counter() - started
        if evaluates:
            started = time.perf_counter()
            self._evaluate(model, *test)
            seconds["evaluate"] = time.perf_counter() - started
        return seconds

    def _train(self, model: SplitModel, images: Tensor, labels: Tensor) -> None:
        defaults = self.run.chosen_method.training
        optimizer = torch.optim.SGD(
            model.parameters(), defaults.lr, defaults.momentum, weight_decay=defaults.weight_decay
        )
        table = torch.zeros(self.classes, self.run.feature_dim, device=self.device)
        model.train()
        for _ in range(self.run.local_epochs):
            for rows in torch.randperm(len(labels)).split(self.run.batch_size):
                inputs, targets = self._inputs(images[rows]), labels[rows].to(self.device)
                with self._precision():
                    features = model.features(inputs)
                    loss = F.cross_entropy(model.head(features), targets)
                    if self.run.method == "fedproto":
                        loss = loss + F.mse_loss(features, table[targets])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        model.eval()

    @torch.no_grad()
    def _collect(self, model: SplitModel, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean representation of every class."""
        found = [model.features(self._inputs(part)) for part in images.split(EVALUATION_BATCH)]
        features = torch.cat(found).float().cpu()
        sums = torch.zeros(self.classes, features.shape[1]).index_add_(0, labels, features)
        return sums / labels.bincount(minlength=self.classes).clamp_min(1).unsqueeze(1)

    @torch.no_grad()
    def _evaluate(self, model: SplitModel, images: Tensor, labels: Tensor) -> float:
        correct = 0
        table = torch.zeros(self.classes, self.run.feature_dim, device=self.device)
        for part, targets in zip(
            images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True
        ):
            if not len(targets):
                continue
            with self._precision():
                features = model.features(self._inputs(part))
                scores = model.head(features)
            if self.run.method == "fedproto":
                scores = -torch.cdist(features.float(), table)
            correct += int((scores.argmax(dim=1).cpu() == targets).sum())
        return correct / max(1, len(labels))

    def _precision(self) -> torch.autocast:
        enabled = self.run.amp == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _inputs(self, images: Tensor) -> Tensor:
        moved = images.to(self.device, non_blocking=True)
        if moved.dtype != torch.uint8:
            return moved
        return moved.float().mul(1 / 127.5).sub_(1.0).to(memory_format=torch.channels_last)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def open(self, client: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return a client's training and test arrays; the first time, also build its model."""
        if client not in self.splits:
            data = load_client_data(self.run.data_spec, client, self.clients)
            train, test = (s.batch(np.arange(len(s))) for s in (data.train, data.test))
            self.splits[client] = train, test
            self.classes = data.num_classes
            name = assign_model(self.run.models, client)
            if name not in self.models:
                shape = InputShape(data.channels, data.image_size, data.num_classes)
                model = build_model(name, shape, self.run.feature_dim, seed=0)
                self.models[name] = model.to(self.device).to(memory_format=torch.channels_last)
        return self.splits[client]


def _worker(request: dict[str, Any], tasks: Queue[Any], results: Queue[Any]) -> None:
    bare = Bare(request)
    for client in range(bare.clients):
        bare.open(client)
    while (task := tasks.get(timeout=TASK_SECONDS)) is not None:
        results.put((task[0], bare.serve(*task)))
    gpu = torch.cuda.max_memory_allocated() if bare.device.type == "cuda" else 0
    results.put((_peak_bytes(), gpu))


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def run_baseline(request: dict[str, Any]) -> Baseline:
    """Run two rounds that do not count and then those that do."""
    spawn = multiprocessing.get_context("spawn")
    tasks, results = spawn.Queue(), spawn.Queue()
    workers = [
        spawn.Process(target=_worker, args=(request, tasks, results), daemon=True)
        for _ in range(request["workers"])
    ]
    for worker in workers:
        worker.start()
    run = parse_run_config({**default_run_config(), **request["config"]})
    count, clients = max(1, round(run.sample_fraction * request["clients"])), request["clients"]
    evaluates = run.evaluate_every == 1
    round_s, busy_s = [], []
    parts: defaultdict[str, float] = defaultdict(float)
    last: dict[int, float] = {}
    for number in range(2 + request["rounds"]):
        chosen = set(np.random.default_rng(number).permutation(clients)[:count].tolist())
        # Longest first, as the federation has it.
        asked = range(clients) if evaluates else chosen
        order = sorted(asked, key=lambda i: (i not in chosen, -last.get(i, math.inf), i))
        started = time.perf_counter()
        for client in order:
            tasks.put((client, client in chosen, evaluates))
        served = dict(results.get(timeout=TASK_SECONDS) for _ in order)
        wall = time.perf_counter() - started
        answers = list(served.values())
        last |= {client: sum(seconds.values()) for client, seconds in served.items()}
        if number >= 2:
            round_s.append(wall)
            busy_s.append(sum(sum(seconds.values()) for seconds in answers))
            for seconds in answers:
                for part, value in seconds.items():
                    parts[part] += value / request["rounds"]
    for _ in workers:
        tasks.put(None)
    peaks = [results.get(timeout=TASK_SECONDS) for _ in workers]
    for worker in workers:
        worker.join(timeout=30)
    return Baseline(round_s, busy_s, dict(parts), *(max(values) for values in zip(*peaks)))  # noqa: B905


def main() -> None:
    """Answer the request in the file that is named."""
    request = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(dataclasses.asdict(run_baseline(request))), flush=True)


if __name__ == "__main__":
    main()
