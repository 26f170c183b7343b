"""Whose updates point away from those of the others: on average over answers, and more than any other client's do.

One answer says little: where clients hold different data, honest updates point against the others' too, now and then,
and late in training half of the time. But they do so by chance, or by a little. So the mean cosine of a client's
answers is held against the means of the fleet's clients. docs/trust.md has what honest clients had.

Early on more can be told, and sooner. Then clients agree: the median cosine m of a step is well above 0, and a client's
cosine is c = a m + noise, with a about 1 for most, between 0 and 2 for nearly all whose data differ, and -1 for one
that turns its update round. Over several answers a is sum m c / sum m^2, with a variance of `OWN` (clients differ) plus
`NOISE` / sum m^2 (answers do), and

    -2 a / (OWN + NOISE / sum m^2)

is the logarithm of how much likelier -1 is than 1. Where updates have d coordinates, 1 / d is the least that stands in
place of `NOISE`: it is the variance of cosines that mean nothing. Steps in which clients agree on little add little to
the sums, as they should, and those below `AGREED` nothing: there m is noise itself. One answer counts as -1 at the
worst, and is never enough to hold anything against a client. Found by two, it is not asked again: later on, when
clients agree on little, it could not be told from the others, and a model that took a hundred rounds is gone in another
hundred.

What it sends need not go into the model until then. An answer against the others of a client for which that logarithm
is above `DOUBTED`, which one answer can bring about, is left out of its step, up to its second: an honest client loses
two turns at the most. Schemes that ask everybody in turn would otherwise take every liar's first two answers, which is
most of a short run. Nor are others compared with it until it was found to be honest: four of ten that are turned round
would leave no agreement by which to tell the fifth. All this is for steps whose clients trained from one model: an
update to an older one points back now and then, and honestly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace.core.outliers import robust
from fedpace.core.screening import AGREED

ANSWERS = 2.5
"""Answers, fading, without which a mean is none: three."""
AGAINST = -0.25
"""Mean cosine that no honest client has."""
SPREADS, LEAST_SPREAD = 4.0, 0.05
"""Robust standard deviations below the fleet's median mean, and the least that one is taken for."""
ENOUGH = 4
"""Clients below which there is no fleet to compare with."""
OWN, NOISE = 0.25, 0.04
"""See above: variances of a among honest clients, and of the cosine of one answer."""
LIKELIER, DOUBTED = 4.0, 2.0
"""The logarithm beyond which a client is said to turn its updates round; and its answer is left out of the step."""
BOTH = 3.0
"""The same, where its mean cosine says so too."""
TWICE = 1.5
"""Answers, fading, without which nobody is: two."""
COUNTED = ("cosines", "compared", "aligned", "agreement")
"""What is counted of clients, and begun anew once they were found."""


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


def noise_of(coordinates: int) -> float:
    """Return the variance of one answer's cosine, where updates have so many coordinates; 0 = nobody says how many."""
    return max(NOISE, 1 / coordinates) if coordinates else NOISE


def turned_round(
    aligned: FloatArray,
    agreement: FloatArray,
    compared: FloatArray,
    *,
    noise: float = NOISE,
    beyond: float = LIKELIER,
    least: float = TWICE,
) -> BoolArray:
    """(n,) who is likelier to turn its updates round than not, by far.

    Args:
        aligned: (n,) sum of m c over each client's answers, fading.
        agreement: (n,) sum of m^2, fading likewise.
        compared: (n,) number of answers, fading likewise.
        noise: variance of the cosine of one answer.
        beyond: logarithm of how much likelier.
        least: answers without which nobody is, fading.
    """
    # -2 a / (OWN + noise / sum m^2) > beyond, without dividing by sums that may be 0.
    return np.asarray((compared >= least) & (-2 * aligned > beyond * (OWN * agreement + noise)))


def doubted(columns: Mapping[str, FloatArray], noise: float = NOISE) -> BoolArray:
    """(n,) who may turn its updates round, and of whom too little is known: its answers are left out of steps."""
    aligned, agreement, answers = columns["aligned"], columns["agreement"], columns["compared"]
    doubts = turned_round(aligned, agreement, answers, noise=noise, beyond=DOUBTED, least=0.0)
    return np.asarray(doubts & (answers < ANSWERS))


def add_cosines(
    columns: dict[str, FloatArray],
    rows: Sequence[int],
    cosines: FloatArray,
    believed: BoolArray,
    *,
    one_model: bool,
    noise: float = NOISE,
) -> BoolArray:
    """Take in what the updates of a step have in common with the others'; note in `against` and `turned` who is found.

    Who is turned away is judged anew from then on: what is held against it fades like all else. Returns (k,) whose
    answers are to be left out of this step: nobody's where that would be half of them.

    Args:
        columns: what is counted of clients.
        rows: of those that answered; -1 = nobody's that is still there.
        cosines: (k,) with what the others agree on; NaN where nobody can tell.
        believed: (k,) with whose updates those of the others were compared.
        one_model: whether all trained from the same.
        noise: variance of the cosine of one answer.
    """
    places = np.asarray(rows, dtype=np.int64)
    known = np.isfinite(cosines) & (places >= 0)
    told, found = places[known], np.clip(cosines[known], -1.0, 1.0)
    np.add.at(columns["cosines"], told, found)
    np.add.at(columns["compared"], told, 1.0)
    agreeing = found[believed[known]]
    middle = float(np.median(agreeing)) if agreeing.size >= ENOUGH else 0.0
    if middle >= AGREED:
        np.add.at(columns["aligned"], told, middle * np.maximum(found, -middle))
        np.add.at(columns["agreement"], told, middle**2)
    away = turned_away(columns["cosines"], columns["compared"])
    # Two signs that agree are as good as one that is beyond doubt.
    evidence = columns["aligned"], columns["agreement"], columns["compared"]
    turned = turned_round(*evidence, noise=noise) | (away & turned_round(*evidence, noise=noise, beyond=BOTH))
    suspects = np.append(away | turned | doubted(columns, noise), False)  # which row -1 is
    against = known & suspects[places] & (cosines < 0)
    columns["against"][away] += 1.0
    columns["turned"][turned] = 1.0
    for name in COUNTED:
        columns[name][away | turned] = 0.0
    left_out = one_model and 2 * int(against.sum()) < known.size
    return against if left_out else np.zeros(known.size, dtype=np.bool_)
