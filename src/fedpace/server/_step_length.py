"""Extrapolation: how far a server step may go beyond the average of the clients' models.

Three limits apply. All are measured, and none needs tuning:

- Disagreement. Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023):
  if clients disagree, each overshoots in its own direction, and the average u = sum a_i u_i of their updates is too
  short. The step may be max(1, sum a_i |u_i|^2 / (2 |u|^2)) times as long. The paper uses a_i = 1/k. It adds an epsilon
  to |u|^2, because at an optimum that the clients do not share, u goes to 0 and the factor to infinity. Such a constant
  needs tuning; here the next limit replaces it.
- Curvature. Malitsky and Mishchenko, "Adaptive Gradient Descent without Descent" (ICML 2020): a step length must
  respect the curvature of the last steps, and must not grow fast. Between two rounds the model moved by y - y' and the
  averaged update changed by u - u', so the step may be |y - y'| / |u - u'| times as long as the average. Noise also
  changes u: if noise dominates, the factor is 1, which is the plain average.
- Budget. The sum of all extrapolation beyond the plain average is finite, so training converges where plain averaging
  does (docs/theory.md has the proof). In practice the other two limits bind first.

The second part is Nesterov momentum for the shared model, with a restart when a round moves against the momentum.

Nesterov, "A method of solving a convex programming problem with convergence rate O(1/k^2)" (1983), with the sequence
that Su, Boyd and Candes (2016) write as k / (k + 3); O'Donoghue and Candes, "Adaptive restart for accelerated gradient
schemes" (2015). The server sends clients a model that is ahead of the averaged model by a fraction of the last move of
the average. That fraction grows with the rounds since the last restart; there is nothing to tune. Momentum carries
errors as well as progress, so it helps if cohorts represent the population.

If clients train for long, a plain average may already reach the minimum along the direction of the move, and momentum
would overshoot it. The fraction is therefore limited by the measured curvature along the move
(`fedpace.server.nesterov`): momentum may go at most half of the distance that a plain average leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

GROWTH = 2.0
"""The factor may grow at most by this ratio from one step to the next; the first factor is at most this."""
CURVATURE_KEPT = 0.9
"""Decay per step of the largest curvature seen, because curvature changes during training."""
BUDGET = 20.0
"""The first extrapolated step may go this many times the longest averaged update beyond the average."""
DECAY = 1.3
"""The n-th extrapolated step may go n^-DECAY times as far; above 1, so that the sum is finite."""


def fedexp_factor(mean_square: float, square: float, power: float = 1.0) -> float:
    """Return the factor of FedExP for the averaged step.

    Args:
        mean_square: sum_i a_i |u_i|^2, with a_i that sum to 1.
        square: |sum_i a_i u_i|^2.
        power: exponent of the factor: 0 = the plain average, 1 = FedExP.
    """
    return float(max(1.0, mean_square / (2.0 * square)) ** power) if square > 0 else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class StepLength:
    """The history that limits the length of the next step; part of a server rule's state."""

    step_factor: float = 1.0
    """Factor of the last averaged step."""
    curvature: float = 0.0
    """Largest recent |u - u'| / |y - y'|, with decay; 0 = unknown."""
    longest: float = 0.0
    """Length of the longest averaged update so far."""
    lengthened: int = 0
    """Number of steps so far that went beyond the average."""

    def next(self, wanted: float, *, change: float, moved: float, length: float) -> Self:
        """Return the history with the factor of the next step in `step_factor`.

        Args:
            wanted: the factor before the limits; less than 1 counts as 1.
            change: |u - u'|, the change of the averaged update since the last step.
            moved: |y - y'|, the length of the last step; 0 = there was none.
            length: |u|.
        """
        curvature = CURVATURE_KEPT * self.curvature
        if moved > 0:
            curvature = max(curvature, change / moved)
        step_factor = min(wanted, GROWTH * self.step_factor)
        if curvature > 0:
            step_factor = min(step_factor, 1.0 / curvature)
        return replace(self, step_factor=max(1.0, step_factor), curvature=curvature, longest=max(self.longest, length))

    def within_budget(self, beyond: float) -> tuple[float, Self]:
        """Return the fraction of an extrapolation of length `beyond` that the budget allows, and the new history."""
        if beyond <= 0:
            return 1.0, self
        allowed = BUDGET * self.longest * (self.lengthened + 1) ** -DECAY
        return min(1.0, allowed / beyond), replace(self, lengthened=self.lengthened + 1)


def carried_part(age: int, along: float, curvature: float = 0.0) -> tuple[float, int]:
    """Return the momentum coefficient b for this round, and the number of rounds since the last restart after it.

    The server keeps the model y that it sends and the lead l = y - x over the averaged model x, with l = 0 at first.
    Let u be the averaged update of a round and g = f u the step (`extrapolation`). The average then moves by l + g, and

        l <- b (l + g),        y <- y + g + l.

    Args:
        age: rounds since the last restart.
        along: <u, u + l>; below 0 the round moved against the momentum, and the momentum restarts.
        curvature: h, the fraction of the distance to the minimum along the last moves that the plain average covers;
            0 = unknown. Momentum covers h / (1 - b) instead, which is limited to (1 + h) / 2.
    """
    since = 0 if along < 0 else age
    bounded = min(max(curvature, 0.0), 1.0)
    return min(since / (since + 3), (1 - bounded) / (1 + bounded)), since + 1
