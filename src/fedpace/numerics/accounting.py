"""Privacy accounting of Gaussian releases, by Google's `dp-accounting` (the extra `privacy`).

A release with noise multiplier z = sigma / sensitivity costs 1 / z^2. Costs of releases about the same person add up,
and n releases are exactly as private as one with 1 / z^2 = sum_t 1 / z_t^2 (Dong, Roth and Su, "Gaussian Differential
Privacy", 2022). So at a fixed delta, epsilon grows with the square root of their number, not in proportion to it.
"""

from __future__ import annotations

import math
from typing import Any

from fedpace._base.checks import above, between
from fedpace._base.errors import MissingExtraError


def gaussian_epsilon(cost: float, delta: float) -> float:
    """Return the smallest epsilon at `delta` for Gaussian releases of this total cost (the sum of 1 / z^2)."""
    between(delta, 0, 1 - 1e-9, "delta")
    above(delta, 0, "delta")
    if not cost > 0:
        return 0.0
    return float(_package().get_epsilon_gaussian(1 / math.sqrt(cost), delta))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier that makes one release (epsilon, delta)-private."""
    above(epsilon, 0, "epsilon")
    above(delta, 0, "delta")
    return float(_package().get_sigma_gaussian(epsilon, delta))


def _package() -> Any:
    try:
        import dp_accounting  # type: ignore[import-untyped]
    except ModuleNotFoundError as cause:
        raise MissingExtraError("privacy accounting", "privacy", cause.name or "dp_accounting") from cause
    return dp_accounting
