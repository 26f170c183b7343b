"""Momentum for the shared model: Nesterov's, with a restart where a round turns back.

Nesterov, "A method of solving a convex programming problem with convergence rate O(1/k^2)" (1983), with the sequence
that Su, Boyd and Candes (2016) write as k / (k + 3); O'Donoghue and Candes, "Adaptive restart for accelerated gradient
schemes" (2015). The model that clients are sent runs ahead of the one that was averaged, by a part of how far the
average moved last. That part grows with the rounds since the last restart, and there is nothing to tune. Errors are
carried on as well as progress, so that it pays where cohorts represent the population.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Momentum:
    """How much of a move the next one carries on.

    A host keeps, beside the model y that it sends, the lead l = y - x that y has over the averaged model x; 0 at first.
    After a round whose averaged updates are u, and with part = `carried(<u, u + l>)`, the step is g = f u with the
    factor f = `extrapolation(..., carried=part)`; the average has moved by l + g, and

        l <- part (l + g),        y <- y + g + l.
    """

    age: int = 0
    """Rounds since the last restart."""

    def carried(self, along: float) -> float:
        """Return what part of the move is carried on; `along` < 0 says that the round turned back."""
        if along < 0:
            self.age = 0
        part = self.age / (self.age + 3)
        self.age += 1
        return part
