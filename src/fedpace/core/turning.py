"""Whose updates point away from those of the others: on average over answers, and more than any other client's do.

One answer says little: where clients hold different data, honest updates point against the others' too, now and then,
and late in training half of the time. But they do so by chance, or by a little. So the mean cosine of a client's
answers is held against the means of the fleet's clients. docs/trust.md has what honest clients had.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray
from fedpace.core.outliers import robust

ANSWERS = 2.5
"""Answers, fading, without which a mean is none: three."""
AGAINST = -0.25
"""Mean cosine that no honest client has."""
SPREADS, LEAST_SPREAD = 4.0, 0.05
"""Robust standard deviations below the fleet's median mean, and the least that one is taken for."""
ENOUGH = 4
"""Clients below which there is no fleet to compare with."""


def turned_away(cosines: FloatArray, compared: FloatArray) -> BoolArray:
    """(n,) who points away from the others.

    Args:
        cosines: (n,) sum of the cosines of each client's answers, fading.
        compared: (n,) their number, fading likewise.
    """
    told = compared > 0
    if int(told.sum()) < ENOUGH:
        return np.zeros(compared.size, dtype=np.bool_)
    means = np.divide(cosines, compared, out=np.zeros(compared.size), where=told)
    middle, spread = robust(means[told])
    least = min(AGAINST, middle - SPREADS * max(spread, LEAST_SPREAD))
    return np.asarray((compared >= ANSWERS) & (means < least))


def add_cosines(columns: dict[str, FloatArray], rows: Sequence[int], cosines: FloatArray) -> None:
    """Take in what answers' updates have in common with the others', and note in `against` who turned away.

    Who did is judged anew from then on: what is held against it fades like all else.
    """
    places = np.asarray(rows, dtype=np.int64)
    known = np.isfinite(cosines) & (places >= 0)
    np.add.at(columns["cosines"], places[known], cosines[known])
    np.add.at(columns["compared"], places[known], 1.0)
    away = turned_away(columns["cosines"], columns["compared"])
    columns["against"][away] += 1.0
    columns["cosines"][away] = columns["compared"][away] = 0.0
