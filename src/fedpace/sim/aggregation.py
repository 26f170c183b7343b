"""From the clients' models to the next shared one: averaged, lengthened, carried on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpace.core.acceleration import Momentum
from fedpace.core.extrapolation import extrapolation


class Lead:
    """How far the shared model has run ahead of the averages (`fedpace.core.acceleration`), from round to round."""

    def __init__(self, like: torch.Tensor) -> None:
        self.ahead = torch.zeros(like.shape, dtype=torch.float64)
        self.momentum = Momentum()

    def forget(self) -> None:
        """Start anew: a round was not carried on."""
        if self.momentum.age:
            self.ahead.zero_()
            self.momentum = Momentum()


class Aggregate:
    """Combines the clients' models as they come: `average` sum a_i x_i, `delta` x + sum a_i (x_i - x).

    An average may be extrapolated (`fedpace.core.extrapolation`) and carried on.

    Summed in double precision, so that the result does not depend on how far x is from 0, and in the order in which
    the models are added.

    Args:
        current: the shared model.
        mode: of the cohort.
        extrapolate: power of the factor by which disagreement lets the step be lengthened.
        lead: what to carry on, and where to keep it for the next round; None = nothing is carried on.
    """

    def __init__(self, current: torch.Tensor, mode: str, *, extrapolate: float = 0.0, lead: Lead | None = None) -> None:
        self._current = current
        self._mode = "delta" if extrapolate or lead is not None else mode
        self._extrapolate = extrapolate
        self._lead = lead
        self._mean_square = 0.0
        self.stretch = 1.0
        """What the step was multiplied by; known after `result`, as is the next."""
        self.carried = 0.0
        """The part of the move that the next round carries on."""
        self._total = torch.zeros(current.shape, dtype=torch.float64)

    def add(self, parameters: torch.Tensor, weight: float) -> None:
        """Add a model."""
        if self._mode == "average":
            self._total.add_(parameters, alpha=weight)
        else:
            update = parameters.double() - self._current
            self._total.add_(update, alpha=weight)
            if self._extrapolate:
                self._mean_square += weight * float(update @ update)

    def result(self) -> torch.Tensor:
        """Return the new shared model."""
        if self._mode == "average":
            return self._total.to(self._current.dtype)
        square = float(self._total @ self._total)
        if self._lead is not None:
            self.carried = self._lead.momentum.carried(square + float(self._total @ self._lead.ahead))
        if self._extrapolate:
            self.stretch = extrapolation(self._mean_square, square, self._extrapolate, carried=self.carried)
        step = self.stretch * self._total
        if self._lead is not None:
            self._lead.ahead.add_(step).mul_(self.carried)
            step += self._lead.ahead
        return (step + self._current).to(self._current.dtype)


def aggregate(
    current: torch.Tensor, results: Sequence[torch.Tensor], weights: Sequence[float], mode: str
) -> torch.Tensor:
    """Combine the clients' models, in cohort order, as `Aggregate` does."""
    combined = Aggregate(current, mode)
    for parameters, weight in zip(results, weights, strict=True):
        combined.add(parameters, weight)
    return combined.result()
