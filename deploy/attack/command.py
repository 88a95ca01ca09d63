"""`wildflower attack`: what a server could see of clients' images in what they sent."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.arguments import count, weight
from models.base import ModelError
from models.libraries import is_installed
from strategies.base.options import ConfigError

if TYPE_CHECKING:
    from deploy.attack.attack import Plan, Say
    from deploy.attack.attacker import Attacker
    from deploy.attack.scores import Distance
    from deploy.attack.side_by_side import Attacked
    from deploy.attack.victims import Scene

ATTACKERS = ("white-box", "decoder", "update", "membership")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directories", type=Path, nargs="+", metavar="directory",
        help="the directory of a run that had keep-payloads set; several are set side by side",
    )  # fmt: skip
    parser.add_argument(
        "--round", type=int, metavar="N",
        help="attack what was sent in this round (default: the newest kept)",
    )  # fmt: skip
    parser.add_argument(
        "--vectors", type=count, default=100, metavar="N",
        help="attack at most so many vectors, drawn over all clients (default: 100)",
    )  # fmt: skip
    parser.add_argument(
        "--clients", type=count, metavar="N",
        help="attack at most so many clients, evenly over all (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--attacker", type=_attackers, default="white-box", metavar="{white-box,...}",
        help="how images are sought: by the client's model (white-box), by a decoder learned from "
        "other images (decoder), or in a change of weights (update); of two with a comma between "
        "them the first that has something to attack. membership asks instead which images were "
        "trained on (default: white-box)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=count, default=2000, metavar="N",
        help="steps of the attack on each; a decoder takes none (default: 2000)",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=count, default=50, metavar="N",
        help="how often a decoder learns from each of its images (default: 50)",
    )  # fmt: skip
    parser.add_argument(
        "--tv-weight", type=weight, metavar="W",
        help="weight of the total variation: larger, smoother images (default: 0.0001 for "
        "white-box, 0.01 for update)",
    )  # fmt: skip
    parser.add_argument(
        "--lpips", type=Path, metavar="FILE",
        help="score by LPIPS, too, with torchvision's weights of AlexNet in this file (*.pth or "
        "*.safetensors); nothing is downloaded",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="PATH",
        help="of several runs: write their table and charts to files that begin so, with .md, .csv "
        "and .html after it (default: attacks, beside the first run)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all draws (default: 0)"
    )


def _attackers(text: str) -> list[str]:
    """Read names of attackers with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in ATTACKERS]:
        known = ", ".join(ATTACKERS)
        raise argparse.ArgumentTypeError(f"there is no attacker {unknown[0]!r}, but {known}")
    if "membership" in names and len(names) > 1:
        raise argparse.ArgumentTypeError("membership seeks no images and stands alone")
    return names


def execute(options: argparse.Namespace) -> int:
    """Attack runs, print tables, write attack.csv and attack.html of each; returns 0."""
    if not is_installed("skimage"):
        raise ConfigError("wildflower attack needs scikit-image: pip install 'wildflower[attack]'")
    from deploy.attack.attack import Plan
    from deploy.attack.side_by_side import as_text, write_side_by_side
    from deploy.attack.victims import Scene

    perceptual = None if options.lpips is None else _perceptual(options.lpips)
    scenes = [Scene.of(path.expanduser(), options.round) for path in options.directories]
    if options.attacker == ["membership"]:
        for scene in scenes:
            _membership(scene, options.seed)
        return 0
    attackers = [_attacker(name, options) for name in options.attacker]
    plans = [
        Plan(options.vectors, options.seed, _able(scene, attackers), options.clients)
        for scene in scenes
    ]
    pairs = zip(scenes, plans, strict=True)
    runs = [_attack(scene, plan, perceptual) for scene, plan in pairs]
    if len(runs) > 1:
        output = options.output or scenes[0].directory.parent / "attacks"
        write_side_by_side(output.expanduser(), runs)
        print(as_text(runs))
        print(f"page: {output}.html")
    return 0


def _attack(scene: Scene, plan: Plan, perceptual: Distance | None) -> Attacked:
    """Attack a run, print its table, and write attack.csv and attack.html."""
    from deploy.attack.attack import attack
    from deploy.attack.output import text_of, write_csv, write_page
    from deploy.attack.side_by_side import Attacked

    print(_announced(scene.directory.name, scene.round, plan), flush=True)
    findings = attack(scene, plan, _sayer(), perceptual)
    models = {client.client: client.model for client in scene.records.clients}
    folder = plan.folder(scene)
    write_csv(folder / "attack.csv", findings, models)
    write_page(folder / "attack.html", scene, plan, findings)
    print(text_of(findings))
    print(f"page: {folder / 'attack.html'}", flush=True)
    return Attacked.of(scene, plan.attacker.name, findings)


def _able(scene: Scene, attackers: list[Attacker]) -> Attacker:
    """Return the first of the attackers that finds something to attack.

    Raises
    ------
    ConfigError
        None of them does; what the last one lacks.
    """
    for attacker in attackers[:-1]:
        try:
            attacker.targets(scene.victim(scene.clients[0]))
        except ConfigError:
            continue
        return attacker
    return attackers[-1]


def _attacker(name: str, options: argparse.Namespace) -> Attacker:
    from deploy.attack.decoder import Decoder
    from deploy.attack.update import UpdateInversion
    from deploy.attack.white_box import WhiteBox

    if name == Decoder.name:
        return Decoder(epochs=options.epochs)
    kind = UpdateInversion if name == UpdateInversion.name else WhiteBox
    weight = kind.tv_weight if options.tv_weight is None else options.tv_weight
    return kind(steps=options.steps, tv_weight=weight)


def _perceptual(weights: Path) -> Distance:
    from deploy.attack.perceptual import Perceptual

    try:
        return Perceptual(weights).distance
    except ModelError as error:
        raise ConfigError(f"--lpips: {error}") from error


def _membership(scene: Scene, seed: int) -> None:
    from deploy.attack.membership import infer_membership
    from deploy.attack.membership_output import text_of, write_csv

    found = infer_membership(scene, seed)
    path = scene.directory / "attack" / f"round-{scene.round:05d}-membership-seed-{seed}.csv"
    write_csv(path, found)
    print(text_of(found))
    print(f"table: {path}")


def _announced(name: str, number: int, plan: Plan) -> str:
    steps = f", {plan.attacker.steps} steps" if plan.attacker.steps > 1 else ""
    return (
        f"attacking round {number} of {name}: {plan.attacker.name}{steps}, at most {plan.vectors} "
        f"vectors, seed {plan.seed}; the images found are as private as the data"
    )


def _sayer() -> Say:
    """Return what shows progress: one line that changes on a terminal, a line a minute in a log."""
    last = 0.0
    terminal = sys.stdout.isatty()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() < last + (0.5 if terminal else 60.0):
            return
        last = time.monotonic()
        print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", flush=True)

    return say
