"""FedNova: updates divided by what the local steps add up to, so that clients that train more do not count more.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(NeurIPS 2020). Client i makes tau_i local steps, and its update is u_i = -eta sum_k a_ik g_ik, with a_ik how much its
k-th gradient is part of the result. With weights p_i, the average of updates leads to the optimum of another objective,
in which client i has the weight p_i |a_i|, and |a_i| = sum_k a_ik. FedNova averages normalised updates:

    x <- x + tau_eff sum_i p_i u_i / |a_i|,        tau_eff = sum_i p_i |a_i|.

    local training        |a_i|
    SGD                   tau_i
    momentum rho          (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)
    proximal term         (1 - (1 - alpha)^tau_i) / alpha,        alpha = eta mu

If all |a_i| are equal, the step is that of FedAvg. The paper also allows other tau_eff; this is its default.

Departure: where the host does not report local steps, `Task.work` takes the place of tau_i. That is the same where
clients with work 1 make equally many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import Between, Options
from fedpace.core.server_rule import Answers, Part, Vector, double, like


@dataclass(frozen=True)
class Fednova(Options):
    """Normalised averaging.

    Args:
        momentum: rho of the clients' SGD.
        proximal: alpha = step size times mu of the clients' proximal term (FedProx).
    """

    name: ClassVar[str] = "fednova"
    takes: ClassVar[frozenset[Part]] = frozenset({"rows", "corrected"})

    momentum: Annotated[float, Between(0, 1, "[)")] = 0.0
    proximal: Annotated[float, Between(0, 1, "[)")] = 0.0

    def init(self, zero: Vector) -> None:
        """Return None: there is no state."""

    def apply(self, state: None, model: Vector, answers: Answers) -> tuple[Vector, None]:
        """Return the next model."""
        if len(answers.sources) != len(answers.rows) or not answers.rows:
            return model + answers.step, None
        lengths = self.lengths(local_steps(answers))
        weights = answers.weights
        total = float(weights.sum())
        effective = float(weights @ lengths) / total if total else 1.0
        factors = effective / lengths
        if answers.combine is not None:
            rows = np.array([factor * np.asarray(row) for factor, row in zip(factors, answers.rows, strict=True)])
            return model + like(answers.step, answers.combine(rows, weights).step), None
        step = 0.0 * answers.step
        for weight, row in zip((weights * factors).tolist(), answers.rows, strict=True):
            step = step + weight * row
        return double(model) + step, None

    def lengths(self, steps: FloatArray) -> FloatArray:
        """(k,) |a_i| of clients with this many local steps."""
        if self.momentum:
            rho = self.momentum
            steps = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        if self.proximal:
            steps = (1 - (1 - self.proximal) ** steps) / self.proximal
        return np.asarray(steps, dtype=np.float64)


def local_steps(answers: Answers) -> FloatArray:
    """(k,) local steps of the answers; their work, which is proportional to it, if any number of steps is unknown."""
    steps = np.array([source.steps for source in answers.sources], dtype=np.float64)
    if np.isfinite(steps).all() and (steps > 0).all():
        return steps
    return np.array([source.work for source in answers.sources], dtype=np.float64)
