"""FedDF: the divergence by hand, when training stops, FedAvg without steps, ensembles by task."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data import load_public
from strategies.base.messages import ClientUpdate
from strategies.base.server import RegistrationError
from strategies.common.server_models import filled, logits_of, public_items
from strategies.feddf import Config, Distilled, Uplink, distil, divergence
from tests.support import ServerAtWork
from tests.unit.layerwise_support import a_server, card_of, states_of, update

PUBLIC = {"public_size": 12, "public_dataset": "digits", "public_overlap": "allowed"}


# The divergence by hand ---------------------------------------------------------------------------


def test_the_divergence_by_hand() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2; and 0 for equal rows."""
    teacher = torch.tensor([[math.log(3), 0.0], [5.0, 5.0]])
    logits = torch.tensor([[7.0, 7.0], [-1.0, -1.0]])
    wanted = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert divergence("classification", logits, teacher).item() == pytest.approx(wanted, rel=1e-5)


def test_the_divergence_of_independent_classes_by_hand() -> None:
    """One class: teacher 3/4, student 1/2, as above; the other class is equal; their mean."""
    teacher = torch.tensor([[math.log(3), -2.0]])
    logits = torch.tensor([[0.0, -2.0]])
    wanted = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    found = divergence("multilabel@scenes", logits, teacher).item()
    assert found == pytest.approx(wanted, rel=1e-5)


# When training stops ------------------------------------------------------------------------------


class Items:
    """Ten items, of which item i reads as the number i."""

    def __len__(self) -> int:
        return 10

    def batch(self, rows: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(rows).float()[:, None]

    def outputs(self, model: nn.Module, rows: NDArray[np.int32], function: Any) -> Tensor:
        with torch.no_grad():
            return torch.as_tensor(function(self.batch(rows)))


class Bias(nn.Module):
    """Two logits, the same for every item."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([first, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(len(x), 2)


def train(student: nn.Module, teacher: Tensor, **options: Any) -> Distilled:
    config = Config(**{"server_batch_size": 9, "holdout": 0.1, **options})
    rng = torch.Generator().manual_seed(1)
    items: Any = Items()
    return distil("classification", student, items, teacher, config, rng)


def test_a_step_goes_towards_the_teacher() -> None:
    """Adam's first step is the rate itself: 0 -> 0.25 for the first logit, -0.25 for the other."""
    student = Bias(0.0)
    result = train(
        student, torch.tensor([[3.0, 0.0]]).expand(10, 2), server_epochs=1, server_lr=0.25
    )
    assert student.bias.tolist() == pytest.approx([0.25, -0.25], rel=1e-4)
    assert result.passes == 1
    assert result.after < result.before


def test_training_stops_early_and_the_best_weights_stay() -> None:
    """A student that is right already only gets worse: `patience` passes, then as it was."""
    student = Bias(3.0)
    teacher = torch.tensor([[3.0, 0.0]]).expand(10, 2).clone()
    held = torch.randperm(10, generator=torch.Generator().manual_seed(1))[:1]
    teacher += 2 * torch.tensor([[1.0, -1.0]])  # what is trained on pulls the student away
    teacher[held] = torch.tensor([3.0, 0.0])
    result = train(student, teacher, server_epochs=50, patience=2, server_lr=0.1)
    assert result == Distilled(pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6), 2)
    assert student.bias.tolist() == [3.0, 0.0]


def test_a_student_that_diverges_stays_as_it_was() -> None:
    student = Bias(1.0)
    result = train(student, torch.full((10, 2), math.nan), server_epochs=9, patience=1)
    assert result.passes == 1
    assert student.bias.tolist() == [1.0, 0.0]


# The whole aggregation ----------------------------------------------------------------------------


def a_federation(*models: str, tasks: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a server at work whose clients have the same public digits as it has."""
    settings = {**PUBLIC, **{f"feddf__{name}": value for name, value in options.items()}}
    mark = load_public("digits", 12, 1, 16).fingerprint
    server = a_server({}, "feddf", **settings)
    cards = [
        dataclasses.replace(
            card_of(i, model), public_hash=mark, task=tasks[i] if tasks else "classification"
        )
        for i, model in enumerate(models)
    ]
    return ServerAtWork(server.run, cards)


def reply(client: int, model: str, examples: int) -> ClientUpdate:
    weights, buffers = states_of(model, client)
    small = {name: item / 10 for name, item in weights.items()}
    for name, item in buffers.items():
        if name.endswith("running_var"):
            buffers[name] = abs(item) + 1
    return update(client, examples, Uplink(small, buffers))


@pytest.mark.parametrize("epochs", [0, 5])
def test_without_steps_it_is_fedavg_bit_for_bit(epochs: int) -> None:
    """One architecture; and with steps it is not."""
    server = a_federation("cnn5", "cnn5", server_epochs=epochs)
    reference = a_server({0: "cnn5", 1: "cnn5"})
    before = reference.downlink_for(0, 1)
    assert all(
        np.array_equal(item, before.weights[name])
        for name, item in server.downlink_for(0, 1).weights.items()
    )
    server.aggregate_in(1, iter([reply(0, "cnn5", 3), reply(1, "cnn5", 5)]))
    reference.aggregate_in(1, iter([reply(0, "cnn5", 3), reply(1, "cnn5", 5)]))
    wanted, found = reference.downlink_for(0, 2).weights, server.downlink_for(0, 2).weights
    assert found.keys() == wanted.keys()
    equal = [np.array_equal(found[name], wanted[name]) for name in wanted]
    assert all(equal) if epochs == 0 else not any(equal)


def test_the_teacher_is_the_mean_of_all_clients_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both architectures learn the same teacher, the unweighted mean of three models' logits."""
    models = ("cnn5", "resnet10-w4", "cnn5")
    server = a_federation(*models)
    replies = [reply(i, model, 2 + i) for i, model in enumerate(models)]
    wanted = []
    for sent in replies:
        info = server.clients[sent.client_id]
        entries = {**sent.uplink.weights, **sent.uplink.buffers}
        model = filled(server.run, info, entries)
        wanted.append(logits_of(public_items(server.context, info), model))
    taught = []

    def note(task: str, student: nn.Module, items: Any, teacher: Tensor, *rest: Any) -> Distilled:
        taught.append(teacher)
        return Distilled(4.0, 2.0, len(taught))

    monkeypatch.setattr("strategies.feddf.distil", note)
    metrics = server.aggregate_in(1, iter(replies))
    assert metrics == {"server_loss_before": 4.0, "server_loss_after": 2.0, "server_passes": 1.5}
    assert len(taught) == 2
    for teacher in taught:
        np.testing.assert_allclose(teacher.numpy(), np.mean(wanted, axis=0), rtol=1e-5, atol=1e-6)


def test_users_of_one_task_are_an_ensemble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of one task teach each other's groups; one that is alone in its task is only averaged."""
    tasks = ("classification@digits[0-2]", "classification@digits[0-2]", "multilabel@scenes")
    server = a_federation("cnn5", "cnn4", "cnn5", tasks=tasks)
    taught = []
    monkeypatch.setattr(
        "strategies.feddf.distil",
        lambda task, *rest: taught.append(task) or Distilled(1.0, 1.0, 1),
    )
    replies = []
    for client in range(3):
        down = server.downlink_for(client, 1)
        moved = {name: item + np.float32(0.01) for name, item in down.weights.items()}
        replies.append(update(client, 3, Uplink(moved, dict(down.buffers))))
    server.aggregate_in(1, iter(replies))
    assert taught == ["classification@digits[0-2]"] * 2
    groups = {key.partition("/")[0] for key in server.state.weights}
    assert groups == {f"{m}, {t}" for m, t in zip(("cnn5", "cnn4", "cnn5"), tasks, strict=True)}
    after = server.downlink_for(2, 2).weights
    for name, item in replies[2].uplink.weights.items():
        np.testing.assert_array_equal(after[name], item)


def test_no_reply_is_kept() -> None:
    """Memory does not grow with the number of clients."""
    server = a_federation(*["cnn5"] * 5, server_epochs=1)
    seen: list[weakref.ref[Any]] = []

    def stream() -> Iterator[ClientUpdate]:
        for client in range(5):
            assert all(reference() is None for reference in seen[:-1])
            sent = reply(client, "cnn5", 2)
            seen.append(weakref.ref(sent.uplink))
            yield sent
            del sent

    server.aggregate_in(1, stream())
    assert len(seen) == 5


# What is refused ----------------------------------------------------------------------------------


def test_other_public_data_on_the_server_is_refused() -> None:
    server = a_server({}, "feddf", **PUBLIC)
    with pytest.raises(RegistrationError, match=r"public-dataset = 'digits': the server's items"):
        ServerAtWork(server.run, [dataclasses.replace(card_of(0, "cnn5"), public_hash="f" * 16)])


def test_unlike_classes_of_one_task_are_refused() -> None:
    server = a_server({}, "feddf", **PUBLIC, feddf__server_epochs=0)
    cards = [card_of(0, "cnn5"), dataclasses.replace(card_of(1, "cnn4"), num_classes=4)]
    with pytest.raises(RegistrationError, match=r"client 1: num_classes is 4, client 0, which "):
        ServerAtWork(server.run, cards)
