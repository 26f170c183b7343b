"""Lower bounds on the seconds per step of any first-order method, for given delays.

Tyurin and Richtarik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
Model" (NeurIPS 2023). Client i takes tau_i seconds per answer, tau_1 <= ... <= tau_n. K is the number of steps that
exact gradients would need, and r the number of answers whose mean is as exact as the target. Up to a constant, no
method takes less than K times

    same data:       min over m of H_m (1 + r / m),    H_m the harmonic mean of the m smallest delays;
    different data:  tau_n + mean(tau) r / n.

docs/lower-bounds.md says what follows, and why measured times can be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import at_least, delays, finite


@dataclass(frozen=True)
class LowerBound:
    """Seconds per step that no method beats by more than a constant factor."""

    answers: float
    """r: number of answers that make a step exact enough, because updates are noisy; 0 = updates are exact."""
    same_data: float
    """Seconds per step if all clients hold the same data."""
    different_data: float
    """Seconds per step if every client may hold data that no other client holds."""


def lower_bound(seconds: ArrayLike, answers: float = 0.0) -> LowerBound:
    """Return the lower bounds for clients that take `seconds` per answer.

    Args:
        seconds: (n,) delays, in any order.
        answers: r, at least 0.
    """
    at_least(answers, 0, "answers")
    finite(answers, "answers")
    tau = np.sort(delays(seconds))
    counts = np.arange(1, tau.size + 1)
    # A client without a delay answers at once: the harmonic mean of any set with it is 0.
    with np.errstate(divide="ignore"):
        harmonic = counts / np.cumsum(1.0 / tau)
    same = float(np.min(harmonic * (1.0 + answers / counts)))
    return LowerBound(float(answers), same, float(tau[-1] + tau.mean() * answers / tau.size))
