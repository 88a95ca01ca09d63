"""FedGen: sizes, both losses against brute force, what clients add, and what travels."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import count_parameters
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.parsing import parse_run_config
from strategies.base.payload import count_scalars, pack, unpack
from strategies.fedgen import (
    Client,
    Config,
    Downlink,
    Generator,
    Uplink,
    average_heads,
    class_shares,
    diversity_loss,
    generator_terms,
    teacher_loss,
    train_generator,
)
from tests.support import ServerAtWork, run_federation

C, D = 4, 6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_server(classes: int = C, width: int = D, **options: Any) -> ServerAtWork:
    options = {"hidden_dim": 8, "noise_dim": 3, "server_steps": 5, **options}
    keys = {f"fedgen.{key.replace('_', '-')}": value for key, value in options.items()}
    server = ServerAtWork(parse_run_config({"method": "fedgen", "feature-dim": width, **keys}))
    server.admit(
        [ClientInfo(0, "cnn1", 1, width, width, classes, 1, 8, "h", [0], [1], 1, 0, 0, "cpu", "h")]
    )
    server.state = server.initial_state()
    return server


def update(client_id: int, counts: list[int]) -> ClientUpdate:
    weight, bias = normal(C, D, seed=client_id), normal(C, seed=client_id + 100)
    sent = Uplink(weight.numpy(), bias.numpy(), np.array(counts, dtype=np.int64))
    return ClientUpdate(client_id, sum(counts), sent, [], 0.0, 0, 0, "")


@pytest.mark.parametrize(("noise", "size"), [(512, 577_536), (32, 331_776)])
def test_generator_sizes(noise: int, size: int) -> None:
    assert count_parameters(Generator(noise, 100, 512, 512)) == size


def test_downlink_is_head_and_generator_uplink_is_head() -> None:
    """51,300 + 331,776; running statistics, class ids and label counts are on the wire only."""
    server = make_server(100, 512, hidden_dim=512, noise_dim=32)
    downlink = server.downlink_for(None, 1)
    assert count_scalars(downlink) == (51_300 + 331_776, 51_300 + 331_776 + 2 * 512)
    uplink = Uplink(downlink.head_weight, downlink.head_bias, np.zeros(100, np.int64))
    assert count_scalars(uplink) == (51_300, 51_400)


def test_teacher_loss_is_the_authors_double_sum() -> None:
    z, labels = normal(5, D), torch.tensor([0, 2, 2, 3, 1])
    weights, biases = normal(3, C, D, seed=1), normal(3, C, seed=2)
    counts = torch.tensor([[4, 0, 1, 0], [0, 2, 3, 0], [4, 0, 0, 5]])
    shares = class_shares(counts)
    expected = 0.0
    for i, y in enumerate(labels.tolist()):
        for k in range(3):
            logits = weights[k] @ z[i] + biases[k]
            share = counts[k, y] / counts[:, y].sum()
            expected += float(share * -F.log_softmax(logits, dim=0)[y]) / len(labels)
    loss = teacher_loss(z, labels, (weights, biases, shares))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_class_shares_sum_to_one_where_a_class_is_held_and_are_zero_elsewhere() -> None:
    shares = class_shares(torch.tensor([[3, 0, 1], [1, 0, 0]]))
    assert shares.tolist() == [[0.75, 0.0, 1.0], [0.25, 0.0, 0.0]]


def test_mean_logits_teacher_is_the_mean_head() -> None:
    """Mean of logits, weighted by n_k, against the logits of the averaged head."""
    z, labels = normal(5, D), torch.tensor([0, 2, 2, 3, 1])
    weights, biases, n = normal(3, C, D, seed=1), normal(3, C, seed=2), torch.tensor([1, 2, 5])
    logits = sum(n[k] / n.sum() * (z @ weights[k].T + biases[k]) for k in range(3))
    weight, bias = average_heads(weights, biases, n)
    got = teacher_loss(z, labels, (weight[None], bias[None], torch.ones(1, C)))
    torch.testing.assert_close(got, F.cross_entropy(logits, labels))


def test_head_is_the_weighted_mean_by_hand() -> None:
    weights = torch.tensor([[[4.0, 0.0]], [[0.0, 8.0]]])
    weight, bias = average_heads(weights, torch.tensor([[1.0], [5.0]]), torch.tensor([1, 3]))
    assert weight.tolist() == [[1.0, 6.0]]
    assert bias.tolist() == [4.0]


def test_diversity_loss_by_brute_force() -> None:
    noise, z = normal(5, 3), normal(5, D, seed=1).requires_grad_()
    total = 0.0
    for i in range(5):
        for j in range(5):
            between_z = (z[i] - z[j]).abs().mean().item()
            total -= between_z * (noise[i] - noise[j]).square().mean().item()
    loss = diversity_loss(noise, z)
    assert loss.item() == pytest.approx(math.exp(total / 25), rel=1e-5)
    loss.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_diversity_loss_of_collapsed_outputs_is_one() -> None:
    assert diversity_loss(normal(5, 3), torch.ones(5, D)).item() == 1.0


def test_a_class_that_nobody_has_is_never_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    draw = Generator.draw

    def spy(self: Generator, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        seen.update(labels.tolist())
        return draw(self, labels, rng)

    monkeypatch.setattr(Generator, "draw", spy)
    server = make_server(server_steps=20)
    server.aggregate_in(1, iter([update(0, [5, 0, 1, 0]), update(1, [2, 0, 0, 0])]))
    assert seen == {0, 2}
    assert server.downlink_for(None, 2).classes.tolist() == [0, 2]


def test_generator_learns_what_the_heads_agree_on() -> None:
    generator = Generator(3, C, 16, D)
    teachers = normal(2, C, D, seed=1), normal(2, C, seed=2), torch.full((2, C), 0.5)
    config = Config(server_steps=300, server_lr=0.01)
    rng = torch.Generator().manual_seed(0)
    first = train_generator(generator, teachers, torch.ones(C), Config(server_steps=1), rng)
    train_generator(generator, teachers, torch.ones(C), config, rng)
    last = train_generator(generator, teachers, torch.ones(C), Config(server_steps=1), rng)
    assert last["server_loss_teacher"] < 0.5 * first["server_loss_teacher"]
    assert last["server_loss"] == pytest.approx(
        last["server_loss_teacher"] + last["server_loss_diversity"]
    )
    assert not generator.training


@pytest.mark.parametrize("teacher", ["per-client", "mean-logits"])
def test_server_round(teacher: str) -> None:
    server = make_server(teacher=teacher)
    before = server.state.generator.output.weight.clone()
    sent = [update(0, [1, 0, 0, 0]), update(1, [0, 2, 1, 0])]
    metrics = server.aggregate_in(1, iter(sent))
    expected = (sent[0].uplink.head_weight + 3 * sent[1].uplink.head_weight) / 4
    np.testing.assert_allclose(server.state.head_weight, expected, rtol=1e-5)
    terms = {"server_loss", "server_loss_teacher", "server_loss_diversity"}
    assert set(metrics) == {*terms, "server_loss_before", "server_loss_after"}
    assert metrics["server_loss_after"] < metrics["server_loss_before"]
    assert not torch.equal(before, server.state.generator.output.weight)


def test_classes_once_learned_stay_known() -> None:
    server = make_server()
    assert server.downlink_for(None, 1).classes.tolist() == []
    server.aggregate_in(1, iter([update(0, [1, 0, 0, 0])]))
    server.aggregate_in(2, iter([update(1, [0, 0, 3, 0])]))
    assert server.state.learned.tolist() == [True, False, True, False]


def test_clients_copy_of_the_generator_is_the_servers_in_evaluation_mode() -> None:
    server = make_server()
    server.aggregate_in(1, iter([update(0, [1, 1, 1, 1])]))
    dims = {"d": D, "C": C}
    downlink = unpack(Downlink, pack(server.downlink_for(None, 2)), dims)
    context: Any = SimpleNamespace(
        config=server.context.config, dims=dims, device=torch.device("cpu")
    )
    copy = Client()._generator(context, downlink)
    assert not any(module.training for module in copy.modules())
    noise, labels = normal(1, 3), torch.tensor([2])
    original = server.state.generator
    torch.testing.assert_close(copy(noise, labels), original(noise, labels))
    assert copy.norm.running_mean is not None
    assert copy.norm.running_mean.abs().max() > 0
    before = original.output.weight.detach().clone()
    copy.output.weight.data.zero_()
    assert torch.equal(original.output.weight, before)


class Model(nn.Module):
    """As much of a `SplitModel` as the terms need."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, C)


def terms_of(labels: list[int], classes: list[int]) -> tuple[Any, Tensor, Tensor, Tensor, Tensor]:
    """Return model, logits, target distribution, CE and KL of one batch."""
    torch.manual_seed(0)
    model: Any = Model()
    generator = Generator(3, C, 8, D).eval()
    logits, y = normal(len(labels), C, seed=3).requires_grad_(), torch.tensor(labels)
    rng = torch.Generator().manual_seed(5)
    ce, kl = generator_terms(model, generator, logits, y, torch.tensor(classes), rng=rng)
    rng.manual_seed(5)
    drawn = torch.tensor(classes)[torch.randint(len(classes), (len(labels),), generator=rng)]
    _, generated = generator.draw(drawn, rng)
    target = F.softmax(model.head(generator.draw(y, rng)[1]), dim=1).detach()
    torch.testing.assert_close(ce, F.cross_entropy(model.head(generated), drawn))
    return model, logits, target, ce, kl


def test_distillation_is_kl_to_a_constant_target() -> None:
    model, logits, target, _, kl = terms_of([0, 1, 3], [0, 1, 3])
    expected = (target * (target.log() - F.log_softmax(logits, dim=1))).sum(dim=1).mean()
    torch.testing.assert_close(kl, expected)
    kl.backward()
    torch.testing.assert_close(logits.grad, (F.softmax(logits, dim=1) - target).detach() / 3)
    assert model.head.weight.grad is None


def test_samples_of_an_unknown_class_are_not_distilled() -> None:
    _, logits, _, _, kl = terms_of([0, 1, 3], [0, 3])
    kl.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum(dim=1).gt(0).tolist() == [True, False, True]


def test_generated_labels_are_known_ones_and_train_the_head() -> None:
    model, _, _, ce, _ = terms_of([0] * 20, [2])
    ce.backward()
    assert model.head.weight.grad is not None
    assert model.head.bias.grad[2] < 0


def test_terms_start_in_round_two_and_travel_as_metrics(tmp_path: Path) -> None:
    run = run_federation(tmp_path, 3, method="fedgen", fedgen__server_steps=3)
    for term in ("loss_generator", "loss_distillation"):
        rows = run.metrics(phase="train", metric=term)
        assert {row["round"] for row in rows} == {"2"}
        assert all(float(row["value"]) > 0 for row in rows)
    for term in ("server_loss", "server_loss_teacher", "server_loss_diversity"):
        assert len(run.metrics(client="server", metric=term)) == 2
    generator = (32 + 10 + 1) * 512 + 2 * 512 + 513 * 512
    traffic = [row for row in run.rows("traffic") if row["purpose"] == "train"]
    scalars = {(row["direction"], int(row["scalars"])) for row in traffic}
    assert scalars == {("uplink", 5130), ("downlink", 5130 + generator)}


def test_weights_decay_and_distillation_can_be_left_out(tmp_path: Path) -> None:
    """In round 2 a term is start * decay * loss, and round 2 starts alike in all runs."""
    values = []
    for name, alpha, decay in (("a", 1e-9, 1.0), ("b", 1e-9, 0.5)):
        run = run_federation(
            tmp_path / name,
            2,
            method="fedgen",
            fedgen__alpha=alpha,
            fedgen__decay=decay,
            fedgen__distillation=False,
            fedgen__server_steps=2,
        )
        assert run.metrics(metric="loss_distillation") == []
        rows = run.metrics(metric="loss_generator", round=2)
        values.append([float(row["value"]) for row in rows])
    np.testing.assert_allclose(values[1], np.array(values[0]) / 2, rtol=1e-3)
