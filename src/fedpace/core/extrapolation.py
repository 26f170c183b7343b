"""How far beyond the average of the clients' models the shared model may go, and how far it may go for good.

Three limits, each measured and none of them tuned:

- Disagreement. Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023):
  clients that disagree each overshoot in their own direction, so that the average u = sum a_i u_i of their updates is
  too short. The step may be max(1, sum a_i |u_i|^2 / (2 |u|^2)) times as long. The paper takes a_i = 1/k, and adds an
  epsilon to |u|^2, since at an optimum that the clients do not share u goes to 0 and the factor to infinity. A constant
  would have to be tuned; the next limit takes its place.
- Curvature. Malitsky and Mishchenko, "Adaptive Gradient Descent without Descent" (ICML 2020): two rules are enough, do
  not overstep what the last steps showed of the curvature, and do not grow fast. Between two rounds the model moved by
  y - y' and the averaged update changed by u - u', so the step may be |y - y'| / |u - u'| times as long as the average.
  Noise changes u as well: where it dominates, the factor is 1, the plain average.
- A budget. What all rounds go beyond the plain average adds up to a finite length, so that training ends where plain
  averaging would (docs/theory.md has the proof). Long before it is felt, the other two limits are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

GROWTH = 2.0
"""The factor may at most double from one step to the next; the first step is at most twice the average."""
CURVATURE_KEPT = 0.9
"""What the largest curvature seen counts for in the next step: curvature changes as training goes on."""
BUDGET = 20.0
"""Lengths of the longest average so far that the first step may go beyond the average."""
DECAY = 1.3
"""The n-th may go n^-DECAY times as far: more than 1, so that the sum is finite."""


def fedexp_factor(mean_square: float, square: float, power: float = 1.0) -> float:
    """Return what FedExP multiplies the averaged step by.

    Args:
        mean_square: sum_i a_i |u_i|^2, a summing to 1.
        square: |sum_i a_i u_i|^2.
        power: exponent of the factor: 0 = the plain average, 1 = FedExP.
    """
    return float(max(1.0, mean_square / (2.0 * square)) ** power) if square > 0 else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class StepLength:
    """What is remembered of past steps to tell how long the next may be: part of a server step's state."""

    step_factor: float = 1.0
    """What the last averaged step was multiplied by."""
    curvature: float = 0.0
    """The largest |u - u'| / |y - y'| of late; 0 = not seen yet."""
    longest: float = 0.0
    """The longest averaged step so far."""
    lengthened: int = 0
    """Steps so far that went beyond the average."""

    def next(self, wanted: float, *, change: float, moved: float, length: float) -> Self:
        """Return how long the next step is.

        Args:
            wanted: the factor that is asked for; less than 1 counts as 1.
            change: |u - u'|, how far the averaged update is from that of the last step.
            moved: |y - y'|, how far the last step went; 0 = there was none.
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
        """Return which part of a way of length `beyond` past the average may be gone, and what is remembered of it."""
        if beyond <= 0:
            return 1.0, self
        allowed = BUDGET * self.longest * (self.lengthened + 1) ** -DECAY
        return min(1.0, allowed / beyond), replace(self, lengthened=self.lengthened + 1)
