"""FLANP: starts with the fastest clients, and doubles their number when they stop improving.

Reisizadeh, Tziotis, Hassani, Mokhtari and Pedarsani, "Straggler-Resilient Federated Learning: Leveraging the Interplay
Between Statistical Accuracy and System Heterogeneity" (2020). Stage s trains the n_s fastest clients to their
statistical accuracy |grad L|^2 <= 2 mu V_{n_s}, V_n ~ 1/n; then n_{s+1} = min(2 n_s, m). All members have weight 1/n_s.

Where we depart, and why:
- mu and V are unknown in practice, and the released code's rule needs the gradient on all training data, which no
  server has. We use the norm of the members' average update. For a fixed learning rate and number of local steps, it is
  proportional to the gradient, and our rules compare norms only with norms.
- The paper trains each stage with FedGATE, which corrects local steps for client drift. Here, the host's algorithm
  trains, FedAvg by default. With several local steps and heterogeneous data, clients drift, which FedGATE would
  prevent. The paper calls FLANP a meta-algorithm that allows other solvers.
- At each doubling, the released code divides the clients' learning rate by 1.3 or 1.4 and multiplies the server's by
  the same factor. A Cohort cannot set learning rates, so they stay the same.
- Clients are sorted by delay in every round, so that a client that becomes slow drops out. The number of clients never
  falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.options import Above, AtLeast
from fedpace.core.rounds import check_k
from fedpace.core.types import Cohort, Diagnostics, Need, Report, Scheme, View
from fedpace.selectors._drawing import even_weights, slowest

RULES = ("released", "period", "statistical", "plateau")


@dataclass(frozen=True)
class Stage:
    """State of FLANP. A norm of -1 is unknown."""

    size: int
    rounds: int = 0
    """Rounds finished in this stage."""
    norm: float = -1.0
    """Squared norm of the last average update."""
    first_norm: float = -1.0
    threshold: float = -1.0
    losses: tuple[float, ...] = ()
    """The newest mean losses of this stage, oldest first."""
    due: bool = False
    """Whether the stage is over."""


@dataclass(frozen=True)
class Flanp(Scheme):
    """The fastest clients, more and more of them.

    Args:
        k: clients in the first stage.
        growth: factor on the number of clients per stage.
        stop: when a stage ends. `released` (the authors' code): after `period` rounds, or as soon as the squared norm
            of the average update falls below a threshold. The threshold is the norm at the end of the first stage, and
            is halved at every doubling. Without update sketches, only the period counts. `period`: after `period`
            rounds. `statistical` (the theory): when the squared norm falls to `accuracy` times its very first value,
            times k / clients in the stage. `plateau`: when the members' loss fell by less than the fraction `tolerance`
            in `window` rounds.
        period: T0 of the released code: 20 for MNIST and CIFAR-10, 50 for FEMNIST.
        accuracy: used by `statistical`.
        tolerance: used by `plateau`.
        window: used by `plateau`.
    """

    name: ClassVar[str] = "flanp"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    reads_losses: ClassVar[bool] = True
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    """Updates of participants, if the host reports them."""

    k: Annotated[int, AtLeast(1)] = 1
    growth: Annotated[float, Above(1)] = 2.0
    stop: Literal["released", "period", "statistical", "plateau"] = "released"
    period: Annotated[int, AtLeast(1)] = 20
    accuracy: Annotated[float, Above(0)] = 0.1
    tolerance: Annotated[float, Above(0)] = 0.02
    window: Annotated[int, AtLeast(1)] = 5

    def init(self) -> Stage:
        """Return the first stage."""
        return Stage(size=self.k)

    def select(self, state: Stage, view: View, rng: np.random.Generator) -> tuple[Cohort, Stage]:
        """Begin the next stage if the last one is over, and select the fastest clients."""
        check_k(self.k, view.clients, self.name)
        if state.due:
            threshold = state.threshold / 2 if state.threshold >= 0 else -1.0
            size = min(math.ceil(state.size * self.growth), view.clients)
            state = replace(state, size=max(state.size, size), rounds=0, threshold=threshold, losses=(), due=False)
        rows = view.candidates
        clients = rows[np.lexsort((rows, view.delay[rows]))][: state.size]
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            facts={
                "stage_clients": state.size,
                "stage_rounds": state.rounds,
                "squared_norm": state.norm if state.norm >= 0 else None,
                "threshold": state.threshold if state.threshold >= 0 else None,
            },
        )
        return Cohort(clients, even_weights(clients), why=why), state

    def observe(self, state: Stage, report: Report) -> Stage:
        """Record the norm and the loss of the round, and decide whether the stage is over."""
        norm = _squared_norm(report)
        loss = _mean_loss(report)
        losses = state.losses if loss is None else (*state.losses, loss)[-(self.window + 1) :]
        state = replace(
            state,
            rounds=state.rounds + 1,
            norm=norm,
            first_norm=norm if state.first_norm < 0 else state.first_norm,
            losses=losses,
        )
        if self.stop == "released" and state.threshold < 0 and state.rounds >= self.period:
            state = replace(state, threshold=norm)
        return replace(state, due=self._over(state))

    def _over(self, state: Stage) -> bool:
        if self.stop == "period":
            return state.rounds >= self.period
        if self.stop == "released":
            return state.rounds >= self.period or 0 <= state.norm < state.threshold
        if self.stop == "statistical":
            return 0 <= state.norm <= self.accuracy * state.first_norm * self.k / state.size
        if len(state.losses) <= self.window:
            return False
        return state.losses[0] - state.losses[-1] < self.tolerance * abs(state.losses[0])


def _squared_norm(report: Report) -> float:
    """Return the squared norm of the finished clients' average update; -1 without any sketch."""
    if report.updates is None:
        return -1.0
    known = report.finished & ~np.isnan(report.updates).any(axis=1)
    total = float(report.weights[known].sum())
    if total <= 0:
        return -1.0
    mean = report.weights[known] @ report.updates[known] / total
    return float(mean @ mean)


def _mean_loss(report: Report) -> float | None:
    known = report.finished & ~np.isnan(report.loss)
    total = float(report.weights[known].sum())
    return float(report.weights[known] @ report.loss[known] / total) if total > 0 else None
