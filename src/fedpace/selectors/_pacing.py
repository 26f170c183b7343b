"""What schemes that set work share: the work that fits into a given time."""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import View


def fitting_work(view: View, rows: IntArray, seconds: FloatArray | float) -> FloatArray:
    """(k,) the work with which the clients `rows` are expected to take `seconds`; not positive if nothing fits.

    A task takes what does not grow with the work (transfer, overhead), plus `View.growing` per unit. Infinite for a
    client whose seconds do not grow, if the rest fits.
    """
    growing = view.growing[rows]
    left = np.asarray(seconds - (view.delay[rows] - growing))
    never = np.where(left >= 0, np.inf, -np.inf)
    return np.divide(left, growing, out=never, where=growing > 0)


def delay_quantile(view: View, quantile: float) -> float:
    """Return a quantile of the available clients' delays with work 1: the delay of one of them."""
    return float(np.quantile(view.delay[view.candidates], quantile, method="inverted_cdf"))
