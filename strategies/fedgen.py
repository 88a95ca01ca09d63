"""FedGen: a generator of representations distils what the heads of all clients know.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
arXiv 2105.10056, in the form for unlike models: the head is averaged as in LG-FedAvg, and the
server trains G(eps, y) -> z of width d such that the clients' heads classify z as y. Clients then
train their heads on z, too. Extractors may have any architecture.

Uplink, per participant and round: the head, C*d + C, and n_{k,y} of all classes (C, not counted by
the paper). Downlink, to everyone: the averaged head, the ids of the classes the generator knows,
and the generator, (n_z + C + 1) h + 2h + (h + 1) d scalars (331,776 at n_z = 32, h = d = 512,
C = 100); BatchNorm's scale and shift are the 2h, its running statistics travel uncounted. FedRE's
table lists FedGen's downlink without the generator. Private: extractor and mapping.

Order of a round on a client: load the head; train with cross entropy and, once the generator
knows a class (round 2), with `generator_terms`; upload. Server: train the generator against the
round's heads, then head <- sum_k (n_k / n) head_k.

Where this departs from public code: noise is N(0, 1), where the authors' and HtFLlib's "Gaussian"
is torch.rand; server labels follow the pooled counts of the round (authors: uniform over classes);
the generator's Adam is fresh every round (authors: kept, its rate decays by 0.98); samples of a
class that the generator does not know are not distilled; a step draws as many generated as real
examples (the authors' default). HtFLlib's variant, which draws its clients' labels from the pooled
counts and updates BatchNorm on clients: teacher = "mean-logits", diversity = 0, alpha = 1,
decay = 1, distillation = false, server-steps = 100, server-lr = 0.1.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import SplitModel
from models.generator import Generator
from strategies.base.client import ClientContext
from strategies.base.messages import ClientInfo, ClientUpdate
from strategies.base.method import Training, register
from strategies.base.options import option
from strategies.base.payload import PayloadError, array
from strategies.base.rng import SERVER, derive_seed, isolated_torch_rng
from strategies.base.server import LOSS_AFTER, LOSS_BEFORE, ServerContext, ServerHalf
from strategies.common.head import HeadClient, HeadPayload, head_arrays, initial_linear
from strategies.common.optimizers import make_adam, take_step
from strategies.common.robust import mean_over_clients
from strategies.common.training import train_epochs


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of FedGen; defaults are the authors', widths those of the HtFLlib benchmark.

    Attributes
    ----------
    noise_dim, hidden_dim : int
        n_z and h, the widths of the generator's noise and hidden layer.
    teacher : str
        "per-client": sum_k v_{k,y} CE(h_k(z), y) with v_{k,y} = n_{k,y} / sum_j n_{j,y}.
        "mean-logits": CE of the mean logits, weighted by n_k (HtFLlib).
    diversity : float
        eta, the weight of `diversity_loss`.
    server_steps, server_batch_size, server_lr
        S steps of Adam on the generator per round; BatchNorm needs batches of two or more.
    alpha, beta, decay : float
        A client weighs its terms with alpha and beta times decay^(t - 1) in round t. Their 10
        also multiplies the local rate: lr = 0.05 diverged on digits, the default 0.01 did not.
    distillation : bool
        Whether clients use the KL term; HtFLlib has none.
    """

    noise_dim: int = option(32, minimum=1)
    hidden_dim: int = option(512, minimum=1)
    teacher: str = option("per-client", "mean-logits")
    diversity: float = option(1.0, minimum=0)
    server_steps: int = option(50, minimum=1)
    server_batch_size: int = option(32, minimum=2)
    server_lr: float = option(3e-4, above=0)
    alpha: float = option(10.0, minimum=0)
    beta: float = option(10.0, minimum=0)
    decay: float = option(0.98, above=0, maximum=1)
    distillation: bool = option(True)


@dataclasses.dataclass
class Uplink(HeadPayload):
    """What a participant sends: its head, and how many examples of each class it trained on."""

    label_counts: NDArray[np.int64] = array("C", dtype="int64", counted=False, minimum=0, degree=0)


@dataclasses.dataclass
class Downlink(HeadPayload):
    """What every client receives: head, generator (i = n_z + C), and the classes it knows."""

    generator_hidden_weight: NDArray[np.float32] = array("h", "i")
    generator_hidden_bias: NDArray[np.float32] = array("h")
    generator_norm_weight: NDArray[np.float32] = array("h")
    generator_norm_bias: NDArray[np.float32] = array("h")
    generator_norm_running_mean: NDArray[np.float32] = array("h", counted=False)
    generator_norm_running_var: NDArray[np.float32] = array("h", counted=False, minimum=0)
    generator_output_weight: NDArray[np.float32] = array("d", "h")
    generator_output_bias: NDArray[np.float32] = array("d")
    classes: NDArray[np.int64] = array(
        "m", dtype="int64", counted=False, minimum=0, below="C", unique=True
    )


LOSS_BATCH = 256
"""Generated examples on which the server's loss before and after training is measured."""

Teachers = tuple[Tensor, Tensor, Tensor]
"""Heads that judge generated representations: W (K, C, d), b (K, C), and weights v (K, C)."""


@dataclasses.dataclass
class ServerState:
    """The averaged head (C, d), (C,), the generator, and which classes it has learned, (C,)."""

    head_weight: Tensor
    head_bias: Tensor
    generator: Generator
    learned: Tensor


@dataclasses.dataclass
class ClientState:
    """The personal model."""

    model: SplitModel


def average_heads(weights: Tensor, biases: Tensor, examples: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_k (n_k / n) head_k of heads (K, C, d) and (K, C); `examples` is (K,)."""
    shares = examples.double() / examples.sum()
    weight = torch.einsum("k,kcd->cd", shares, weights.double())
    return weight.float(), (shares @ biases.double()).float()


def class_shares(counts: Tensor) -> Tensor:
    """Return v_{k,y} = n_{k,y} / sum_j n_{j,y}, (K, C); 0 for a class that nobody has."""
    return (counts / counts.sum(dim=0).clamp(min=1)).float()


def teacher_loss(z: Tensor, labels: Tensor, teachers: Teachers) -> Tensor:
    """Return the batch mean of sum_k v_{k,y} CE(h_k(z), y); z is (B, d), labels (B,)."""
    weights, biases, shares = teachers
    logits = torch.einsum("bd,kcd->bck", z, weights) + biases.T
    targets = labels[:, None].expand(-1, len(weights))
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * shares[:, labels].T).sum(dim=1).mean()


def diversity_loss(noise: Tensor, z: Tensor) -> Tensor:
    """Return exp(mean_{i,j}(-|z_i - z_j| |eps_i - eps_j|)), 1 where all z are equal.

    As in the authors' code the first distance is the mean absolute, the second the mean squared
    difference over the dimensions; all B^2 pairs take part. Noise is (B, n_z), z is (B, d).
    """
    between_z = torch.cdist(z, z, p=1) / z.shape[1]
    between_noise = (noise[:, None] - noise[None]).square().mean(dim=2)
    return torch.exp(-(between_z * between_noise).mean())


def train_generator(
    generator: Generator, teachers: Teachers, counts: Tensor, config: Config, rng: torch.Generator
) -> dict[str, float]:
    """Train the generator in place; return the means of its weighted loss terms over the steps.

    Labels are drawn in proportion to `counts`, the pooled examples of each class, (C,): one that
    nobody has is never drawn. `rng` draws labels and noise. At the end BatchNorm is in evaluation
    mode again.
    """
    optimizer = make_adam(torch.optim.Adam, generator.parameters(), lr=config.server_lr)
    totals = torch.zeros(2, dtype=torch.float64)
    generator.train()
    for _ in range(config.server_steps):
        labels = torch.multinomial(counts.double(), config.server_batch_size, True, generator=rng)
        noise, z = generator.draw(labels, rng)
        diversity = config.diversity * diversity_loss(noise, z)
        terms = torch.stack([teacher_loss(z, labels, teachers), diversity])
        optimizer.zero_grad()
        terms.sum().backward()
        take_step(optimizer)
        totals += terms.detach()
    generator.eval()
    teacher, spread = (totals / config.server_steps).tolist()
    return {
        "server_loss": teacher + spread,
        "server_loss_teacher": teacher,
        "server_loss_diversity": spread,
    }


@torch.no_grad()
def generator_loss(
    generator: Generator, teachers: Teachers, counts: Tensor, config: Config, rng: torch.Generator
) -> float:
    """Return the loss of one large batch drawn from `rng`; the generator stays as it is.

    As in a step, BatchNorm uses the batch's statistics. Arguments as in `train_generator`.
    """
    judged = copy.deepcopy(generator).train()
    labels = torch.multinomial(counts.double(), LOSS_BATCH, True, generator=rng)
    noise, z = judged.draw(labels, rng)
    terms = teacher_loss(z, labels, teachers) + config.diversity * diversity_loss(noise, z)
    return terms.item()


def generator_terms(
    model: SplitModel,
    generator: Generator,
    logits: Tensor,
    labels: Tensor,
    classes: Tensor,
    *,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return a client's two unweighted terms for one batch.

    Parameters
    ----------
    model, generator
        The client's model, whose head h learns, and the generator, which is constant.
    logits, labels : Tensor
        h(g(x)), (B, C), and y, (B,), of the real batch.
    classes : Tensor
        Ids of the classes that the generator knows, (m,), m >= 1.
    rng : torch.Generator
        Draws labels and noise.

    Returns
    -------
    tuple of Tensor
        CE(h(G(eps, y^)), y^) with B labels y^ uniform on `classes`, and
        KL(softmax(h(G(eps, y))) || softmax(h(g(x)))), averaged over B, to which samples of a
        class outside `classes` contribute 0. The KL's first argument is a constant.
    """
    drawn = classes[torch.randint(len(classes), (len(labels),), generator=rng).to(classes.device)]
    with torch.no_grad():
        _, generated = generator.draw(drawn, rng)
        target = F.softmax(model.head(generator.draw(labels, rng)[1]).float(), dim=1)
    divergence = F.kl_div(F.log_softmax(logits.float(), dim=1), target, reduction="none").sum(1)
    known = torch.isin(labels, classes)
    return F.cross_entropy(model.head(generated), drawn), (divergence * known).mean()


class Client(HeadClient[ClientState, Downlink, Uplink]):
    """Client half: cross entropy on real data, and on generated representations."""

    def build(self, context: ClientContext) -> ClientState:
        return ClientState(context.build_model())

    def train(
        self, context: ClientContext, state: ClientState, downlink: Downlink
    ) -> tuple[Uplink, dict[str, float]]:
        config, model = context.config, state.model
        generator = self._generator(context, downlink)
        classes = torch.tensor(downlink.classes, device=context.device)
        rng = context.generator("generator")
        decay = config.decay ** (context.server_round - 1)

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = model(images)
            terms = {"loss_ce": F.cross_entropy(logits, labels)}
            if len(classes):
                ce, kl = generator_terms(model, generator, logits, labels, classes, rng=rng)
                terms["loss_generator"] = config.alpha * decay * ce
                if config.distillation:
                    terms["loss_distillation"] = config.beta * decay * kl
            return terms

        metrics = train_epochs(context, [model], loss)
        counts = np.zeros(context.data.num_classes, dtype=np.int64)
        for label, count in context.data.train.class_counts().items():
            counts[label] = count
        return Uplink(*head_arrays(model.head), counts), metrics

    def _generator(self, context: ClientContext, downlink: Downlink) -> Generator:
        """Return a copy of the received generator with BatchNorm in evaluation mode."""
        config, dims = context.config, context.dims
        generator = Generator(config.noise_dim, dims["C"], config.hidden_dim, dims["d"])
        names = generator.wire_names().items()
        received = {name: torch.tensor(getattr(downlink, field)) for name, field in names}
        generator.load_state_dict(received, strict=False)  # not strict: the counter is missing
        return generator.to(context.device).eval()


class Server(ServerHalf[ServerState, Downlink]):
    """Server half: the averaged head, and a generator trained against the round's heads."""

    def check_uplink(
        self, context: ServerContext, state: ServerState, update: ClientUpdate
    ) -> None:
        total = sum(update.uplink.label_counts.tolist())  # as Python integers: cannot overflow
        if total != update.num_examples:
            raise PayloadError(
                f"label_counts: they sum to {total}, num-examples is {update.num_examples}"
            )

    def initial_state(self, context: ServerContext) -> ServerState:
        config, classes, width = context.config, context.dims["C"], context.dims["d"]
        with isolated_torch_rng(derive_seed(context.run.seed, SERVER, 0, "generator")):
            generator = Generator(config.noise_dim, classes, config.hidden_dim, width)
        head = initial_linear(classes, width, context.generator("head"))
        return ServerState(*head, generator.eval(), torch.zeros(classes, dtype=torch.bool))

    def downlink(
        self, context: ServerContext, state: ServerState, client: ClientInfo | None
    ) -> Downlink:
        head_weight, head_bias = state.head_weight.numpy(), state.head_bias.numpy()
        entries = state.generator.state_dict()
        names = state.generator.wire_names().items()
        fields: dict[str, Any] = {field: entries[name].numpy() for name, field in names}
        classes = state.learned.nonzero().flatten().numpy()
        return Downlink(head_weight, head_bias, classes=classes, **fields)

    def aggregate(
        self, context: ServerContext, state: ServerState, updates: Iterable[ClientUpdate]
    ) -> dict[str, float]:
        received = [(update.uplink, update.num_examples) for update in updates]
        weights = torch.from_numpy(np.stack([uplink.head_weight for uplink, _ in received]))
        biases = torch.from_numpy(np.stack([uplink.head_bias for uplink, _ in received]))
        counts = torch.from_numpy(np.stack([uplink.label_counts for uplink, _ in received]))
        examples = [n for _, n in received]
        weight, bias = average_heads(weights, biases, torch.tensor(examples))
        if context.run.robust_mean != "off":
            held = {"weight": state.head_weight, "bias": state.head_bias}
            mean = mean_over_clients(context.run, held)
            for uplink, count in received:
                mean.add({"weight": uplink.head_weight, "bias": uplink.head_bias}, count)
            weight, bias = mean.means().values()
        teachers: Teachers = (weights, biases, class_shares(counts))
        if context.config.teacher == "mean-logits":
            # A mean of the logits of linear heads is the logits of their mean.
            teachers = (weight[None], bias[None], torch.ones(1, context.dims["C"]))
        pooled = counts.sum(dim=0)
        trained = state.generator, teachers, pooled, context.config
        before = generator_loss(*trained, context.generator("generator-loss"))
        losses = train_generator(*trained, context.generator("generator"))
        losses[LOSS_BEFORE] = before
        losses[LOSS_AFTER] = generator_loss(*trained, context.generator("generator-loss"))
        state.head_weight, state.head_bias = weight, bias
        state.learned = state.learned | (pooled > 0)
        return losses


METHOD = register(
    __name__,
    summary="an averaged head, and a generator of representations that distils all heads",
    training=Training(optimizer="sgd", lr=0.01),
    averages=True,
)
