"""What CreamFL's server does: its own training on public pairs, and learning from clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models import PairModel
from strategies.base.server import ServerContext
from strategies.common.losses import muscle_loss, pair_loss
from strategies.common.optimizers import make_adam, take_step
from strategies.common.training import TrainingDivergedError
from strategies.creamfl.contrast import SIDES, Side
from strategies.creamfl.draws import drawn_features, public_batches

_BLOCK = 1024  # rows whose similarities to all P pairs are in memory at once


class Agreement:
    """The global-local contrastive aggregation of one side, of features that are read once.

    A client's feature of item i counts with w = softmax over clients of
    log softmax_j(z_i . o_j) at j = i, o_j the global features of the other side: how well it tells
    its own pair from all others. That is p_i / (sum over clients of p_i), so that two sums suffice.

    Parameters
    ----------
    others : Tensor
        o, (P, d).
    """

    def __init__(self, others: Tensor) -> None:
        self._others = others.double()
        self._sums = torch.zeros_like(self._others)
        self._weights = torch.zeros(len(others), dtype=torch.float64)

    def add(self, features: NDArray[np.float32]) -> None:
        """Add a client's features (P, d)."""
        z = torch.tensor(features, dtype=torch.float64)
        for start in range(0, len(z), _BLOCK):
            part = slice(start, start + _BLOCK)
            shares = (z[part] @ self._others.T).softmax(dim=1)
            own = shares[:, part].diagonal()
            self._sums[part] += own[:, None] * z[part]
            self._weights[part] += own

    def target(self) -> Tensor | None:
        """Return the weighted means (P, d) float32; None where nobody has sent anything."""
        if not bool(self._weights.any()):
            return None
        return (self._sums / self._weights[:, None]).float()


class ServerLearning:
    """Training of the server's two towers on public pairs, in place.

    Parameters
    ----------
    context : ServerContext
        Of the round.
    model : PairModel
        The server's, on its device.
    sides : dict of str to Side
        The public pairs as it reads and represents them.
    """

    def __init__(self, context: ServerContext, model: PairModel, sides: Mapping[str, Side]) -> None:
        self.context, self.model, self.sides = context, model, sides
        self.device = next(model.parameters()).device

    def alone(self) -> float:
        """Train on image-text InfoNCE; return its mean."""

        def loss(rows: NDArray[np.int32]) -> Tensor:
            z = [self._represent(name, rows) for name in SIDES]
            return pair_loss(z[0], z[1], self.context.config.server_temperature)

        return self._minimise(loss)

    def towards(self, targets: Mapping[str, Tensor]) -> float:
        """Train on distil_weight MSE to the clients' aggregated features, by side; return it."""
        held = {name: item.to(self.device) for name, item in targets.items()}
        weight: float = self.context.config.distil_weight

        def loss(rows: NDArray[np.int32]) -> Tensor:
            own = torch.tensor(rows, dtype=torch.int64).to(self.device)
            terms = [F.mse_loss(self._represent(n, rows), item[own]) for n, item in held.items()]
            return weight * torch.stack(terms).sum()

        return self._minimise(loss)

    def aligned(self, received: Mapping[str, Tensor]) -> float:
        """Train each tower on the Muscle loss towards drawn features of clients; return it."""
        config = self.context.config
        drawn = {name: drawn_features(self.context, received, name) for name in SIDES}

        def loss(rows: NDArray[np.int32]) -> Tensor:
            terms = [
                muscle_loss(
                    self._represent(name, rows), torch.tensor(others[:, rows], device=self.device),
                    config.temperature, config.temperature_others,
                ).mean()
                for name, others in drawn.items()
            ]  # fmt: skip
            return torch.stack(terms).sum()

        return self._minimise(loss)

    def features(self) -> dict[str, Tensor]:
        """Return the representations of all public pairs, (P, d) by side, on the CPU."""
        every = np.arange(self.context.run.public_size, dtype=np.int32)
        return {name: represented(self.model, side, every) for name, side in self.sides.items()}

    def _represent(self, name: str, rows: NDArray[np.int32]) -> Tensor:
        side = self.sides[name]
        return side.represent(side.items.batch(rows)).float()

    def _minimise(self, loss_of: Callable[[NDArray[np.int32]], Tensor]) -> float:
        """Make `server_epochs` passes with a fresh AdamW; return the mean loss over the steps."""
        context, config = self.context, self.context.config
        optimizer = make_adam(torch.optim.AdamW, self.model.parameters(), lr=config.server_lr)
        self.model.train()
        values = []
        for rows in public_batches(context.run, context.server_round) * config.server_epochs:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(rows)
            loss.backward()
            take_step(optimizer)
            values.append(loss.detach())
        self.model.eval()
        mean = float(torch.stack(values).double().mean())
        if not np.isfinite(mean):
            raise TrainingDivergedError(
                f"creamfl: the server's loss became {mean}; lower creamfl.server-lr = "
                f"{config.server_lr:g}"
            )
        return mean


def represented(model: PairModel, side: Side, rows: NDArray[np.int32]) -> Tensor:
    """Return the representations (n, d) of pairs, one side of them, on the CPU."""
    return side.items.outputs(model, rows, side.represent).cpu()
