"""How far the shared model moves in a round, for models that are named arrays: lengthened, and carried on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.core.acceleration import Momentum
from fedpace.core.extrapolation import extrapolation
from fedpace.core.types import Selection
from fedpace.hosting.sketch import Arrays


class Steps:
    """Remembers from round to round how far the model that is sent has run ahead of the averages.

    `next_model` is all that a server needs which averages itself. One that has others do it asks for `factor`, lets
    them average with a step that many times as long, and then calls `carry_on`. Counters in a model (arrays of
    integers) are left alone.
    """

    def __init__(self) -> None:
        self.momentum = Momentum()
        self.lead: dict[str, NDArray[np.float64]] = {}
        self._part = 0.0

    def next_model(
        self, current: Arrays, models: Iterable[tuple[float, Arrays]], selection: Selection
    ) -> dict[str, NDArray[Any]]:
        """Return the model to send next; arguments as for `factor`. Nobody's answer leaves it as it is."""
        answers = list(models)
        mean, mean_square = _mean_step(current, answers)
        factor = self._lengthened(mean, mean_square, selection)
        length = factor if selection.mode == "average" else sum(weight for weight, _ in answers)
        after: dict[str, NDArray[Any]] = {key: np.array(array) for key, array in current.items()}
        for key, step in mean.items():
            after[key] = (after[key] + length * step).astype(after[key].dtype)
        return self.carry_on(current, after)

    def factor(self, current: Arrays, models: Iterable[tuple[float, Arrays]], selection: Selection) -> float:
        """Return by what the averaged step is multiplied.

        Args:
            current: the model that was sent.
            models: (weight, model) of each client that counts.
            selection: what the cohort asks for.
        """
        asked = selection.momentum or selection.extrapolate
        mean, mean_square = _mean_step(current, models) if asked else ({}, 0.0)
        return self._lengthened(mean, mean_square, selection)

    def _lengthened(self, mean: Mapping[str, NDArray[np.float64]], mean_square: float, selection: Selection) -> float:
        """Return the factor of the averaged step, and note what part of the move is to be carried on."""
        self._part = 0.0
        if not selection.momentum:
            self.momentum, self.lead = Momentum(), {}
        square = sum(float(np.vdot(step, step)) for step in mean.values())
        if selection.momentum:
            along = sum(float(np.vdot(mean[key], ahead)) for key, ahead in self.lead.items() if key in mean)
            self._part = self.momentum.carried(square + along)
        return extrapolation(mean_square, square, selection.extrapolate, carried=self._part)

    def carry_on(self, current: Arrays, averaged: Arrays) -> dict[str, NDArray[Any]]:
        """Return the model to send next, given the averaged one."""
        after: dict[str, NDArray[Any]] = {key: np.asarray(array) for key, array in averaged.items()}
        if not self._part:
            self.lead = {}
            return after
        moved = {
            key: array.astype(np.float64) - np.asarray(current[key], dtype=np.float64)
            for key, array in after.items()
            if key in current and np.issubdtype(array.dtype, np.floating)
        }
        self.lead = {key: self._part * (step + self.lead.get(key, 0.0)) for key, step in moved.items()}
        return after | {key: (after[key] + ahead).astype(after[key].dtype) for key, ahead in self.lead.items()}

    def restore(self, age: int, lead: Mapping[str, NDArray[Any]]) -> None:
        """Go on where an earlier server stopped."""
        self.momentum = Momentum(age)
        self.lead = {key: np.asarray(array, dtype=np.float64) for key, array in lead.items()}


def _mean_step(current: Arrays, models: Iterable[tuple[float, Arrays]]) -> tuple[dict[str, NDArray[np.float64]], float]:
    """Return the average of the updates, and the average of their squares."""
    total, mean_square = 0.0, 0.0
    mean = {key: np.zeros(array.shape) for key, array in current.items() if np.issubdtype(array.dtype, np.floating)}
    for weight, model in models:
        total += weight
        for key, sum_of_steps in mean.items():
            if key in model:
                step = np.asarray(model[key], dtype=np.float64) - np.asarray(current[key], dtype=np.float64)
                mean_square += weight * float(np.vdot(step, step))
                sum_of_steps += weight * step
    if total <= 0:
        return {}, 0.0
    return {key: step / total for key, step in mean.items()}, mean_square / total
