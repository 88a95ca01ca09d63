"""How well frozen features of pretrained models separate real data: ``python -m tests.probe``.

A logistic regression on the features of CIFAR-10 pictures (60 a class to learn from, 30 a class to
score) or of film reviews (400 and 100 a class), against the same network with random weights. The
data is looked for beside the repository, see `SHARED`; seed 0.
"""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from data import normalise
from models import InputShape, build_model, build_task_model, lite, text_shape_of, tokeniser_of

SHARED = Path(__file__).parents[2] / "shared" / "data"
CIFAR = SHARED / "cifar10-jpeg.tar.gz"
REVIEWS = SHARED / "rt-polarity"
BATCH = 50


def pictures(part: str, each: int) -> tuple[Tensor, Tensor]:
    """Return the first pictures of every class of CIFAR-10's "train" or "test", as uint8."""
    from PIL import Image

    found: dict[str, list[Tensor]] = {}
    with tarfile.open(CIFAR) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if not member.isfile() or part not in parts[:-2]:
                continue
            kept = found.setdefault(parts[-2], [])
            file = archive.extractfile(member)
            if file is not None and len(kept) < each:
                image = Image.open(BytesIO(file.read())).convert("RGB")
                kept.append(torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1))
            if len(found) == 10 and all(len(kept) == each for kept in found.values()):
                break
    images = torch.stack([image for name in sorted(found) for image in found[name]])
    return images, torch.arange(10).repeat_interleave(each)


def lite_backbone(name: str, *, trained: bool = True) -> nn.Module:
    """Build one of the EfficientNet-Lites, with its weights or with random ones."""
    with mock.patch.object(lite, "fill") if not trained else mock.MagicMock():
        return build_model(name, InputShape(3, 32, 10), seed=0).eval().backbone


@torch.no_grad()
def features_of(encoder: nn.Module, inputs: Tensor) -> Tensor:
    """Return raw features ``(N, raw_dim)``, computed in small batches."""
    return torch.cat([encoder(part) for part in inputs.split(BATCH)])


def probe(encoder: nn.Module, learn: tuple[Tensor, Tensor], score: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy of a logistic regression on standardised features."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500))
    model.fit(features_of(encoder, learn[0]).numpy(), learn[1])
    return float(model.score(features_of(encoder, score[0]).numpy(), score[1]))


def reviews() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return token ids and labels of 800 reviews to learn from, and of 200 to score."""
    rng = np.random.default_rng(0)
    texts = []
    for kind in ("neg", "pos"):
        lines = (REVIEWS / f"rt-polarity.{kind}").read_text(encoding="latin-1").splitlines()
        texts += [lines[i] for i in rng.permutation(len(lines))[:500]]
    tokens = torch.from_numpy(tokeniser_of("minilm")(texts)).view(2, 500, -1)
    labels = torch.arange(2).repeat_interleave(400), torch.arange(2).repeat_interleave(100)
    learn, score = tokens[:, :400].flatten(0, 1), tokens[:, 400:].flatten(0, 1)
    return (learn, labels[0]), (score, labels[1])


def main() -> None:
    """Print a line a model."""
    torch.set_num_threads(1)
    sets = [pictures("train", 60), pictures("test", 30)]
    learn, score = ((normalise(images), labels) for images, labels in sets)
    for name in ("lite0@64", "lite1@64", "lite2@64", "lite0@128"):
        print(f"{name:<9} {probe(lite_backbone(name), learn, score):.3f}", flush=True)
    other = lite_backbone("lite0@64")
    other.mean = torch.tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    other.deviation = torch.tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    print(f"lite0@64, ImageNet's mean and deviation {probe(other, learn, score):.3f}", flush=True)
    random = lite_backbone("lite0@64", trained=False)
    print(f"lite0@64, random weights {probe(random, learn, score):.3f}", flush=True)
    texts = reviews()
    encoder = build_task_model("minilm", "text", text_shape_of("minilm", 2), 8, lora_rank=0).eval()
    print(f"minilm {probe(encoder.encoder, *texts):.3f}", flush=True)
    torch.manual_seed(0)
    for module in encoder.encoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    print(f"minilm, random weights {probe(encoder.encoder, *texts):.3f}")


if __name__ == "__main__":
    main()
