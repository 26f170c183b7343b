"""What most clients are like, where some may lie: the median, and the spread that half of the values have."""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray


def robust(values: FloatArray) -> tuple[float, float]:
    """Return the median, and the standard deviation as half of the values have it."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def trimmed(values: FloatArray, least: float) -> tuple[float, float]:
    """Return the same of the values that are not far off, so that a fifth of liars does not look like spread.

    Nothing within three times `least` of the median is far off.
    """
    middle, spread = robust(values)
    return robust(values[np.abs(values - middle) <= 3 * max(spread, least)])
