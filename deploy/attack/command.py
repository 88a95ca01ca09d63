"""`wildflower attack`: what a server could see of clients' images in what they sent."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.arguments import count
from models.base import ModelError
from models.libraries import is_installed
from strategies.base.options import ConfigError

if TYPE_CHECKING:
    from deploy.attack.attack import Plan, Say
    from deploy.attack.attacker import Attacker
    from deploy.attack.scores import Distance
    from deploy.attack.victims import Scene

ATTACKERS = ("white-box", "decoder", "update", "membership")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "directory", type=Path, help="the directory of a run that had keep-payloads set"
    )
    parser.add_argument(
        "--round", type=int, metavar="N",
        help="attack what was sent in this round (default: the newest kept)",
    )  # fmt: skip
    parser.add_argument(
        "--vectors", type=count, default=100, metavar="N",
        help="attack at most so many vectors, drawn over all clients (default: 100)",
    )  # fmt: skip
    parser.add_argument(
        "--attacker", choices=ATTACKERS, default="white-box",
        help="how images are sought: by the client's model, by a decoder learned from other "
        "images, or in a change of weights; membership asks instead which images were trained on "
        "(default: white-box)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=count, default=2000, metavar="N",
        help="steps of the attack on each; a decoder takes none (default: 2000)",
    )  # fmt: skip
    parser.add_argument(
        "--lpips", type=Path, metavar="FILE",
        help="score by LPIPS, too, with torchvision's weights of AlexNet in this file (*.pth or "
        "*.safetensors); nothing is downloaded",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all draws (default: 0)"
    )


def execute(options: argparse.Namespace) -> int:
    """Attack a run, print the table, write attack.csv and attack.html; returns 0."""
    if not is_installed("skimage"):
        raise ConfigError("wildflower attack needs scikit-image: pip install 'wildflower[attack]'")
    from deploy.attack.attack import Plan, attack
    from deploy.attack.output import text_of, write_csv, write_page
    from deploy.attack.victims import Scene

    perceptual = None if options.lpips is None else _perceptual(options.lpips)
    scene = Scene.of(options.directory.expanduser(), options.round)
    if options.attacker == "membership":
        return _membership(scene, options.seed)
    plan = Plan(options.vectors, options.seed, _attacker(options.attacker, options.steps))
    print(_announced(scene.directory.name, scene.round, plan), flush=True)
    findings = attack(scene, plan, _sayer(), perceptual)
    models = {client.client: client.model for client in scene.records.clients}
    folder = plan.folder(scene)
    write_csv(folder / "attack.csv", findings, models)
    write_page(folder / "attack.html", scene, plan, findings)
    print(text_of(findings))
    print(f"page: {folder / 'attack.html'}")
    return 0


def _attacker(name: str, steps: int) -> Attacker:
    from deploy.attack.decoder import Decoder
    from deploy.attack.update import UpdateInversion
    from deploy.attack.white_box import WhiteBox

    if name == Decoder.name:
        return Decoder()
    return UpdateInversion(steps=steps) if name == UpdateInversion.name else WhiteBox(steps=steps)


def _perceptual(weights: Path) -> Distance:
    from deploy.attack.perceptual import Perceptual

    try:
        return Perceptual(weights).distance
    except ModelError as error:
        raise ConfigError(f"--lpips: {error}") from error


def _membership(scene: Scene, seed: int) -> int:
    from deploy.attack.membership import infer_membership
    from deploy.attack.membership_output import text_of, write_csv

    found = infer_membership(scene, seed)
    path = scene.directory / "attack" / f"round-{scene.round:05d}-membership-seed-{seed}.csv"
    write_csv(path, found)
    print(text_of(found))
    print(f"table: {path}")
    return 0


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
