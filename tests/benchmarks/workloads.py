"""What is measured: the federations as run-configs, and the images of B1."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from data.cache import cache_root
from deploy.flower.text import Value

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT.parent / "shared" / "data" / "cifar10-jpeg.tar.gz"
WARM_UP = 2
"""Rounds left out of every median."""


class BenchmarkError(RuntimeError):
    """A measurement could not be made."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One federation to be measured.

    Attributes
    ----------
    name, title : str
        For the table.
    clients : int
        How many there are.
    config : dict
        Run-config keys that differ from the defaults.
    baseline_rounds : int
        Rounds of the bare loop that count, before and after the run alike.
    images : tuple of int
        Training and test images of CIFAR-10 to unpack; empty for a bundled data set.
    note : str
        What a reader has to know about the numbers.
    """

    name: str
    title: str
    clients: int
    config: dict[str, Value]
    baseline_rounds: int = 5
    images: tuple[int, ...] = ()
    note: str = ""

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return int(self.config["num-rounds"])

    def with_values(self, **values: Value) -> Workload:
        """Return this workload with further run-config keys, `_` for `-`."""
        extra = {key.replace("_", "-"): value for key, value in values.items()}
        return dataclasses.replace(self, config={**self.config, **extra})


def workloads(quick: bool) -> dict[str, Workload]:
    """Return all federations by name; `quick` shrinks them until they only show that all works."""
    small: dict[str, Value] = {"dataset": "digits", "partition": "iid", "validation-fraction": 0.0}
    fedre: dict[str, Value] = {
        **small,
        "method": "fedre",
        "models": "five-cnns",
        "sample-fraction": 0.1,
    }
    per_client = (100, 20) if quick else (1000, 200)
    b1_clients = 4 if quick else 10
    found = [
        Workload(
            "B1",
            "CIFAR-10, FedAvgCNN and ResNet18, FedProto",
            b1_clients,
            {
                "method": "fedproto", "models": "fedavgcnn, resnet18", "dataset": "imagefolder",
                "partition": "iid", "test-split": "global", "validation-fraction": 0.0,
                "batch-size": 32, "local-epochs": 1, "num-rounds": 4 if quick else 8,
            },
            baseline_rounds=2 if quick else 4,
            images=(b1_clients * per_client[0], per_client[1]),
            note="every client is tested on the same held-out images (test-split = global), which "
            "gives exactly the issue's sizes",
        ),
        Workload(
            "B2", "digits, CNN-1..5, FedRE, 10 % a round", 20 if quick else 100,
            {**fedre, "num-rounds": 5 if quick else 20}, baseline_rounds=3 if quick else 10,
        ),
        Workload(
            "B3", "the same with ten times the clients", 200 if quick else 1000,
            {**fedre, "min-examples": 0, "num-rounds": 4 if quick else 20},
            baseline_rounds=2 if quick else 5,
            note="digits has 1,797 images: a client trains on one, and who has a second is tested "
            "on it",
        ),
        Workload(
            "B4", "20 x ResNet18, FedRE, one batch a round", 4 if quick else 20,
            {
                **small, "method": "fedre", "models": "resnet18", "batch-size": 64,
                "subset": 0.095 if quick else 0.475, "num-rounds": 4 if quick else 7, "lr": 0.01,
            },
            baseline_rounds=2 if quick else 4,
            note="32 training images a client, one batch; the other quarter of its images is its "
            "test set; with FedRE's own lr, 0.06, training diverges in round 6",
        ),
    ]  # fmt: skip
    found += [
        dataclasses.replace(
            workload, name=f"{workload.name}-train", note="",
            title=f"{workload.title}, without evaluation",
        ).with_values(evaluate_every=workload.rounds)
        for workload in found[1:3]
    ]  # fmt: skip
    return {workload.name: workload for workload in found}


def with_images(workload: Workload) -> Workload:
    """Unpack the images that a workload needs, once, and point it at them."""
    if not workload.images:
        return workload
    train, test = workload.images
    target = cache_root() / "benchmarks" / f"cifar10-jpeg-{train}-{test}"
    if not target.is_dir():
        _unpack(target, train, test)
    return workload.with_values(data_dir=str(target))


def _unpack(target: Path, train: int, test: int) -> None:
    """Unpack the first images of every class, in equal numbers, into a new folder."""
    if not ARCHIVE.is_file():
        raise BenchmarkError(f"{ARCHIVE} is missing; see README.md beside it, or leave out B1")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        with tarfile.open(ARCHIVE, "r:gz") as archive:
            for member in chosen_members(archive, {"train": train // 10, "test": test // 10}):
                archive.extract(member, scratch, filter="data")
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def chosen_members(
    members: Iterable[tarfile.TarInfo], per_class: dict[str, int]
) -> Iterable[tarfile.TarInfo]:
    """Yield the first files `<part>/<class>/<file>` of every class, at most `per_class[part]`."""
    taken: dict[str, int] = {}
    for member in members:
        folder, _, _ = member.name.rpartition("/")
        if member.isfile() and taken.get(folder, 0) < per_class.get(folder.split("/")[0], 0):
            taken[folder] = taken.get(folder, 0) + 1
            yield member
