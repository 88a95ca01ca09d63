"""The attack on a run's kept uplinks, with the controls that say what it is worth."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from deploy.attack.attacker import Attacker, Seek
from deploy.attack.auxiliary import Auxiliary
from deploy.attack.labels import LabelsTold, labels_told
from deploy.attack.scores import Distance, Score, score
from deploy.attack.targets import Target
from deploy.attack.victims import Scene, Victim
from deploy.attack.white_box import WhiteBox, of_equal_norm
from deploy.evenly import evenly
from strategies.base.files import replacing
from strategies.base.options import ConfigError
from strategies.base.rng import numpy_generator, torch_generator

ATTACK = "attack"
CONTROLS = ("random vector", "image of the class", "mean image")
BATCH = 32
"""Vectors attacked at once: each needs the memory of one image in training."""


@dataclass(frozen=True)
class Plan:
    """What is attacked and how.

    Attributes
    ----------
    vectors : int
        At most so many vectors, drawn over the clients that are attacked.
    seed : int
        Of the draw, the first images and the controls.
    attacker : Attacker
        Who attacks.
    clients : int or None
        At most so many clients, evenly over all; None for all.
    """

    vectors: int = 100
    seed: int = 0
    attacker: Attacker = dataclasses.field(default_factory=WhiteBox)
    clients: int | None = None

    def victims(self, scene: Scene) -> list[int]:
        """Return whom it attacks, by id."""
        return evenly(scene.clients, self.clients or len(scene.clients))

    def folder(self, scene: Scene) -> Path:
        """Return where the images found are kept: another plan, or another uplink, has another."""
        own = {**dataclasses.asdict(self), "name": self.attacker.name}
        about = [own, scene.records.info.get("token"), scene.round]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
        return scene.directory / ATTACK / f"round-{scene.round:05d}-{digest}"


@dataclass(frozen=True, eq=False)
class Result:
    """One vector, what was found for it, and how near that is to the truth.

    Attributes
    ----------
    client : int
        Who sent it.
    target : Target
        The vector.
    images : dict of str to ndarray
        By `ATTACK` and the name of each control: the image, (C, H, W) uint8.
    scores : dict of str to Score
        The same for its score.
    nearest : NDArray[np.uint8]
        (C, H, W) the true image that the attack came nearest to.
    """

    client: int
    target: Target
    images: dict[str, NDArray[np.uint8]]
    scores: dict[str, Score]
    nearest: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Findings:
    """All results of an attack, in the order of clients and their vectors."""

    results: list[Result]
    labels: list[LabelsTold]
    sent: int
    """How many vectors the clients sent, attacked or not."""


Say = Callable[[str], None]


def attack(
    scene: Scene, plan: Plan, say: Say = lambda text: None, perceptual: Distance | None = None
) -> Findings:
    """Attack a run's uplinks; clients that were done by an interrupted attack are not done again.

    `perceptual` is LPIPS, where images are to be compared by it, too.

    Raises
    ------
    ConfigError
        The run cannot be attacked, see `Scene` and `Attacker.targets`.
    """
    chosen, sent = _choose(scene, plan)
    results: list[Result] = []
    told = []
    for place, (client, numbers) in enumerate(chosen.items()):
        victim = scene.victim(client)
        data = victim.context.data
        told.append(
            labels_told(client, victim.uplink, victim.labels, data.num_classes, victim.received)
        )
        targets = plan.attacker.targets(victim)
        picked = [targets[i] for i in numbers]
        if picked:
            here = functools.partial(_say_where, say, client, place + 1, len(chosen))
            known = Auxiliary(victim.context)
            found = _attack_client(scene, plan, victim, picked, known, here)
            results += _scored(scene, plan, victim, picked, known, found, perceptual)
    return Findings(results, [item for item in told if item is not None], sent)


def _say_where(say: Say, client: int, place: int, count: int, text: str) -> None:
    say(f"client {client} ({place} of {count}): {text}")


def _choose(scene: Scene, plan: Plan) -> tuple[dict[int, list[int]], int]:
    """Return which vectors of every client are attacked, and how many there are in all."""
    clients = plan.victims(scene)
    everything = [
        (client, i)
        for client in clients
        for i in range(len(plan.attacker.targets(scene.victim(client))))
    ]
    if not everything:
        raise ConfigError(
            f"round {scene.round}: no client sent a vector that is of images of its own; attack "
            "another round"
        )
    generator = numpy_generator(plan.seed, "attack", scene.round, "vectors")
    order = generator.permutation(len(everything))[: plan.vectors]
    chosen: dict[int, list[int]] = {client: [] for client in clients}
    for client, i in (everything[k] for k in sorted(order)):
        chosen[client].append(i)
    return chosen, len(everything)


def _attack_client(
    scene: Scene, plan: Plan, victim: Victim, targets: list[Target], known: Auxiliary, say: Say
) -> dict[str, NDArray[np.uint8]]:
    """Return the images found for a client's vectors, (n, C, H, W), and for random ones."""
    client = victim.context.client_id
    path = plan.folder(scene) / f"client-{client:05d}.safetensors"
    found = _kept(path)
    if found is None:
        sent = targets[:1] if plan.attacker.joint else targets
        vectors = np.stack([target.vector for target in sent])
        directions = numpy_generator(plan.seed, client, scene.round, "random vectors")
        prepared = torch_generator(plan.seed, client, scene.round, "prepare")
        seek = plan.attacker.against(victim, targets, known, prepared)
        inverted = functools.partial(_invert, plan, seek, client, scene.round)
        found = {
            ATTACK: inverted(vectors, ATTACK, say),
            CONTROLS[0]: inverted(of_equal_norm(vectors, directions), CONTROLS[0], say),
        }
        with replacing(path) as partial:
            save_file(found, partial)
    return found


def _scored(
    scene: Scene, plan: Plan, victim: Victim, targets: list[Target], known: Auxiliary,
    found: dict[str, NDArray[np.uint8]], perceptual: Distance | None,
) -> list[Result]:  # fmt: skip
    """Compare what was found, and the other controls, with the true images."""
    client = victim.context.client_id
    draws = numpy_generator(plan.seed, client, scene.round, "images of the class")
    results = []
    for i, target in enumerate(targets):
        truth = victim.images[target.truth]
        label = int(victim.labels[draws.choice(target.truth)])
        images = {
            **{name: found[name][i] for name in (ATTACK, CONTROLS[0])},
            CONTROLS[1]: known.image_of(label, draws),
            CONTROLS[2]: known.mean,
        }
        scores = {name: score(image, truth, perceptual) for name, image in images.items()}
        results.append(Result(client, target, images, scores, truth[scores[ATTACK].best]))
    return results


def _kept(path: Path) -> dict[str, NDArray[np.uint8]] | None:
    """Return what an earlier attack found, or None; a damaged file is made again."""
    try:
        return dict(load_file(path)) if path.is_file() else None
    except (OSError, SafetensorError):
        return None


def _invert(
    plan: Plan, seek: Seek, client: int, number: int, vectors: NDArray[np.float32],
    purpose: str, say: Say,
) -> NDArray[np.uint8]:  # fmt: skip
    generator = torch_generator(plan.seed, client, number, purpose)
    steps, parts = plan.attacker.steps, []
    for start in range(0, len(vectors), BATCH):
        batch = vectors[start : start + BATCH]

        def progress(step: int, done: int = start, size: int = len(batch)) -> None:
            if step % 200 == 0 or step == steps:
                say(
                    f"{purpose}, vectors {done + 1} to {done + size} of {len(vectors)}, step "
                    f"{step} of {steps}"
                )

        parts.append(seek(batch, generator, progress))
    return np.concatenate(parts)
