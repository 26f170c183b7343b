"""How long the averaged step of a cohort may be, for models that are named arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedpace.core.extrapolation import extrapolation
from fedpace.hosting.sketch import Arrays


def step_factor(current: Arrays, models: Iterable[tuple[float, Arrays]], power: float) -> float:
    """Return by what the averaged step is multiplied (`core.extrapolation`); counters in a model do not speak.

    Args:
        current: the model that was sent.
        models: (weight, model) of each client.
        power: what the cohort asks for.
    """
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
        return 1.0
    square = sum(float(np.vdot(step, step)) for step in mean.values())
    return extrapolation(mean_square / total, square / total**2, power)
