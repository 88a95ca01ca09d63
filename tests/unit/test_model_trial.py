"""Own models are tried at the registration: what would fail in every round is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app import model_trial
from models import InputShape, build_model, list_models, model_info, registry
from server_app.rounds.roster import RegistrationError
from tests.support import run_federation

WIDTH = 12


class Plain(nn.Module):
    """One linear layer; every fault below changes one thing of it."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__()
        self.raw_dim = WIDTH
        self.layer = nn.Linear(shape.channels * shape.image_size**2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out


class Lazy(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.layer = nn.Sequential(
            nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class LazyUnused(Lazy):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.other = nn.LazyLinear(3)


class Norm(Plain):
    """BatchNorm needs two examples; its integer buffer is kept."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        out: Tensor = self.norm(super().forward(x)) * self.mask
        return out


class Tied(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(super().forward(x)))
        return out


class Frozen(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.layer.requires_grad_(False)


class LeavesOut(Plain):
    """A layer that is skipped at random has no gradient in some steps."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.extra = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.training and torch.rand(()) < 0.2:
            return out
        extra: Tensor = self.extra(out)
        return out + extra


class Extra(Plain):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


class Hidden(Plain):
    """Computes with a tensor that no state holds."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.scale = torch.rand(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Counting(Plain):
    """Computes with a number that changes and that no state holds."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.calls = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x) * self.calls


class Unsaved(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.register_buffer("shift", torch.zeros(WIDTH), persistent=False)


class SparseBuffer(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.register_buffer("phases", torch.ones(3).to_sparse())


class Unused(Plain):
    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        self.classifier = nn.Linear(WIDTH, 10)


def changed(change: Callable[[Plain, Tensor], Tensor]) -> type[Plain]:
    """Return a model whose output is changed."""

    class Changed(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return change(self, super().forward(x))

    return Changed


def fails_in(training: bool) -> type[Plain]:
    def change(model: Plain, out: Tensor) -> Tensor:
        if model.training == training:
            raise TypeError("not in this mode")
        return out

    return changed(change)


FITS = {
    "plain": Plain, "lazy": Lazy, "norm": Norm, "tied": Tied, "frozen": Frozen,
    "leaves-out": LeavesOut, "half": changed(lambda model, out: out.to(torch.bfloat16).float()),
}  # fmt: skip

REFUSED: dict[str, tuple[Callable[[InputShape], nn.Module], str]] = {
    "lazy-unused": (LazyUnused, "does not pass the lazy layers of other.weight"),
    "extra": (Extra, "_extra_state of its state_dict is no tensor.*get_extra_state"),
    "hidden": (Hidden, "of what was saved.*keep all .*in parameters and buffers"),
    "counting": (Counting, "with its saved state it computes something else"),
    "unsaved": (Unsaved, "backbone.shift would be lost.*persistent"),
    "sparse": (SparseBuffer, "cannot be built"),
    "unused": (Unused, "no gradient to classifier.bias, classifier.weight.*requires_grad"),
    "detached": (changed(lambda m, out: out.detach()), "no gradient to layer.bias, layer.weight"),
    "narrow": (changed(lambda m, out: out[:, 1:]), "12"),
    "nan": (changed(lambda m, out: out / 0 * 0), "gave NaN or infinite values"),
    "single": (
        changed(lambda m, out: (out - out.mean(0)) / out.std(0)), "1 example in .*NaN or infinite"
    ),
    "squeezed": (changed(lambda m, out: out.squeeze()), r"1 example in .*gave \(12,\)"),
    "fixed-batch": (changed(lambda m, out: out.reshape(2, -1)), r"1 example in .*gave \(2, 6\)"),
    "pairs": (changed(lambda m, out: out.reshape(-1, 2, WIDTH)[:, 0]), "example"),
    "integers": (changed(lambda m, out: out.long()), "torch.int64"),
    "train-fails": (fails_in(True), "2 examples in training failed .TypeError: not in this mode"),
    "eval-fails": (fails_in(False), "not in this mode"),
    "tuple": (changed(lambda m, out: (out, out)), "tuple"),  # type: ignore[arg-type,return-value]
}  # fmt: skip


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Register a model of this file and return its name; what is tried is forgotten."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(model_trial, "_TRIED", set())

    def register(kind: str) -> str:
        factory = FITS[kind] if kind in FITS else REFUSED[kind][0]
        registry.register_model(f"own-{kind}", description="")(factory)
        return f"own-{kind}"

    return register


def run(tmp_path: Path, models: str, **more: Any) -> Any:
    settings = {"num_rounds": 2, "on_client_error": "stop", "lr": 1e-6, **more}
    return run_federation(tmp_path, 2, models=models, **settings)


@pytest.mark.parametrize("kind", FITS)
def test_a_model_that_fits_trains(kind: str, own: Callable[[str], str], tmp_path: Path) -> None:
    """In both rounds: the second one starts from the saved state."""
    done = run(tmp_path, own(kind))
    assert done.rows("failures") == []
    assert len(done.metrics(phase="train", metric="loss_ce", round=2)) == 2


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_fail_in_every_round_is_refused(
    kind: str, own: Callable[[str], str], tmp_path: Path
) -> None:
    name = own(kind)
    with pytest.raises(RegistrationError) as caught:
        run(tmp_path, name)
    text = str(caught.value)
    assert f"model '{name}'" in text
    assert re.search(REFUSED[kind][1], text), text
    assert not (tmp_path / "run" / "rounds.csv").exists()


def test_lazy_layers_are_drawn_like_others(own: Callable[[str], str]) -> None:
    """From the private stream of the seed, and from sizes alone on the meta device."""
    name, shape = own("lazy"), InputShape(3, 8, 4)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (build_model(name, shape, seed=3).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)
    with torch.device("meta"):
        skeleton = build_model(name, shape)
    assert {k: v.shape for k, v in skeleton.state_dict().items()} == {
        k: v.shape for k, v in first.items()
    }


def test_the_trial_changes_no_number(
    own: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = own("norm")
    tried = run(tmp_path / "tried", name)
    monkeypatch.setattr("client_app.handlers.try_own_model", lambda *arguments: None)
    assert run(tmp_path / "untried", name).text("metrics.csv") == tried.text("metrics.csv")


def test_only_own_models_are_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(model_info(name).comes_with_wildflower for name in list_models())

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a trial")

    monkeypatch.setattr(model_trial, "Trial", refuse)
    run(tmp_path, "cnn1, resnet10-w4", subset=0.2)
