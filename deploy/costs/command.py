"""`wildflower costs`: the communication table of the FedRE paper, measured on real payloads.

The paper counts scalars of one round over ten clients for CIFAR-100 (100 classes), d = 512, and a
practical Dirichlet(0.1) split. Labels and shapes decide them, images do not. So the labels are
CIFAR-100's (600 of each class), shared out by the project's own partitioner; each client then
gets a folder with a few random images of every class that its training part has, and every method
runs for real rounds on these folders, through the same messages as in a deployment.

Two rounds are run and the larger one counts: methods that send back what they aggregated, such as
FedProto's prototypes, have nothing to send in the first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deploy.costs.published import DIMENSION, PUBLISHED
from deploy.costs.table import CLASSES, CLIENTS, LARGE_BYTES, Cost, render
from server_app.records.run_directory import write_atomically
from server_app.records.run_reader import read_run
from server_app.records.spending import traffic_by_round

PER_CLASS = 600
IMAGES_PER_PAIR = 2
SETTINGS: dict[str, Any] = {
    "dataset": "imagefolder", "validation-fraction": 0.0, "models": "*=fedavgcnn",
    "feature-dim": DIMENSION, "num-rounds": 2, "evaluate-every": 2, "evaluate-when": "post",
    "local-epochs": 1, "device": "cpu", "min-clients": CLIENTS, "run-name": "costs",
    "on-client-error": "stop",
}  # fmt: skip

PER_METHOD: dict[str, dict[str, Any]] = {
    # The paper's row has a small FedAvgCNN with 128 features.
    "fedmrl": {"fedmrl.small-model": "fedavgcnn", "fedmrl.d1": 128},
    # Less work on the server, where it takes long; that changes no payload.
    "fedgen": {"fedgen.server-steps": 1},
    "fedtgp": {"fedtgp.server-epochs": 1},
    # The server needs a generator; an untrained one makes pictures of the same size.
    "fedktl": {
        "fedktl.generator": "models.image_generator:small_colour",
        "fedktl.server-epochs": 1,
    },
    # Exits stand between a ResNet's stages.
    "scalefl": {"models": "*=resnet10"},
    # One contrastive step; `--muscle` has a table of its own.
    "fedmuscle": {"fedmuscle.steps": 1, "public-size": 320},
    "fedhenn": {"fedhenn.items": 320, "fedhenn.step-items": 32, "public-size": 320},
    "cofed": {"cofed.exchange-round": 2, "public-size": 320},
    "feddf": {"feddf.server-epochs": 1, "public-size": 320},
    "fedet": {"public-size": 320},
    "sage": {"public-size": 320},
    "creamfl": {"public-size": 320},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="only these methods (default: all)"
    )
    parser.add_argument(
        "--muscle",
        action="store_true",
        help="instead, FedMuscle's cost a step and round: the paper's and the one here",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")


def execute(args: argparse.Namespace) -> int:
    """Measure and print the table; the exit code is 1 if a method failed."""
    from strategies.base.method import get_method, method_names

    if args.muscle:
        from deploy.costs import muscle

        print(muscle.render())
        return 0
    names = tuple(get_method(name).name for name in args.methods or method_names())
    started = time.monotonic()
    costs, pairs = measure_costs(names)
    if not args.methods:
        absent = [name for name in PUBLISHED if name not in names]
        costs += [Cost(name, note="not in this version") for name in absent]
    print(render(costs, pairs))
    print(f"\n{len(names)} methods measured in {time.monotonic() - started:.0f} s")
    if args.json is not None:
        rows = [dataclasses.asdict(c) | {"published": _published(c.method)} for c in costs]
        content = {"pairs": pairs, "clients": CLIENTS, "classes": CLASSES, "methods": rows}
        write_atomically(args.json.expanduser(), json.dumps(content, indent=2) + "\n")
    return 1 if any(c.note.startswith("failed") for c in costs) else 0


def measure_costs(methods: Sequence[str]) -> tuple[list[Cost], int]:
    """Run the methods on one split.

    Returns
    -------
    tuple of list of Cost and int
        The costs in the order of `methods`, and the number of (client, class) pairs of the split.
    """
    with tempfile.TemporaryDirectory(prefix="wildflower-costs-") as name, _quiet(Path(name)):
        root = Path(name)
        holdings = client_classes()
        for client, classes in enumerate(holdings):
            write_client_folder(root / f"client{client}", classes, client)
        nodes = {
            client: {"client-id": client, "data-dir": str(root / f"client{client}")}
            for client in range(CLIENTS)
        }
        costs = [_measure(method, root / method, nodes) for method in methods]
    return costs, sum(map(len, holdings))


def client_classes() -> list[list[int]]:
    """Return the classes in each client's training part of a CIFAR-100-shaped Dirichlet split."""
    from data import DataSpec
    from data.dataset import ImageDataset
    from data.partition import compute_split

    labels = np.tile(np.arange(CLASSES), PER_CLASS)
    blank = np.broadcast_to(np.zeros((1, 1, 1, 1), np.uint8), (len(labels), 1, 1, 1))
    names = tuple(map(_class_name, range(CLASSES)))
    dataset = ImageDataset("cifar100", blank, labels, len(labels) * 5 // 6, names, "blank")
    spec = DataSpec(dataset="cifar100", partition="dirichlet", alpha=0.1, validation_fraction=0.0)
    split = compute_split(spec, dataset, CLIENTS)
    return [[int(c) for c in np.unique(labels[client.train])] for client in split]


def write_client_folder(folder: Path, classes: Sequence[int], seed: int) -> None:
    """Write an image folder of one client: random 32x32 images, a few of each of its classes."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    places = [("train", c, IMAGES_PER_PAIR) for c in classes] + [("test", classes[0], 1)]
    for part, label, count in places:
        directory = folder / part / _class_name(label)
        directory.mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, size=(32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(directory / f"{number}.bmp")
    (folder / "classes.txt").write_text(
        "".join(f"{_class_name(label)}\n" for label in range(CLASSES)), encoding="utf-8"
    )


def read_cost(method: str, directory: Path) -> Cost:
    """Compute a method's cost from the traffic.csv of its run; only training counts."""
    run = read_run(directory)
    fullest = traffic_by_round(run).max().fillna(0.0)
    rows = run.traffic
    large = rows[
        (rows["purpose"] == "train") & (rows["bytes"] > LARGE_BYTES) & (rows["scalars"] > 0)
    ]
    overheads = large["bytes"] / (4 * large["scalars"]) - 1
    return Cost(
        method,
        uplink_scalars=int(fullest["up_scalars"]),
        downlink_scalars=int(fullest["down_scalars"]),
        uplink_bytes=int(fullest["up_bytes"]),
        downlink_bytes=int(fullest["down_bytes"]),
        overhead=max(overheads, key=abs, default=None),
    )


def _measure(method: str, output: Path, nodes: Mapping[int, Mapping[str, Any]]) -> Cost:
    from flwr.app import Context, RecordDict

    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from server_app.rounds.in_process import InProcessGrid

    config = {**SETTINGS, **PER_METHOD.get(method, {}), "method": method, "output-dir": str(output)}
    grid = InProcessGrid(client_app, CLIENTS, config, nodes)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    try:
        server_app(grid=grid, context=context)
    except Exception as error:  # one method's failure must not hide the others' figures
        return Cost(method, note=f"failed: {type(error).__name__}: {error}")
    return read_cost(method, output / "costs")


@contextlib.contextmanager
def _quiet(cache: Path) -> Iterator[None]:
    """Keep the runs' output and the user's dataset cache out of the way."""
    before, level = os.environ.get("WILDFLOWER_CACHE"), logging.getLogger("flwr").level
    os.environ["WILDFLOWER_CACHE"] = str(cache / "cache")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.getLogger("flwr").setLevel(level)
        if before is None:
            del os.environ["WILDFLOWER_CACHE"]
        else:
            os.environ["WILDFLOWER_CACHE"] = before


def _class_name(label: int) -> str:
    return f"class{label:02d}"


def _published(method: str) -> dict[str, int] | None:
    found = PUBLISHED.get(method)
    return None if found is None else {"uplink": found.uplink, "downlink": found.downlink}


def main() -> int:
    """Run the command by itself."""
    parser = argparse.ArgumentParser(prog="wildflower costs", description=__doc__)
    add_arguments(parser)
    return execute(parser.parse_args())
