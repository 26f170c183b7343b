"""Moment sampling: draws clients from the distribution with the smallest expected time to the target.

Ours; repairs the sampling objective of the DelayHet paper, whose exact minimiser is a single client for every K
(docs/errata.md, A4). With the whitened Gram matrix G of moment matching (docs/theory.md), the mean of K draws from p
has the squared error

    B_p = (p - w)'G(p - w) + (p.diag(G) - p'Gp) / K

in a typical direction: bias plus variance, both exact. The scheme minimises E[max delay of K draws] / (1 - B_p) over
the simplex, by L-BFGS on logits with exact gradients. At p = w the bias is 0, and a single client has the full error of
its deviation. There is no constant to tune. If K is too small for any distribution to make progress, the scheme reports
it and draws by shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, shares, shares_among
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.moments.bank import known_gram
from fedpace.moments.store import RIDGE
from fedpace.numerics.round_time import MomentRatio, minimise_on_simplices, prefix_starts
from fedpace.selectors._optimised import cohort_from, remember_last


@dataclass(frozen=True)
class MomentSampling(Stateless):
    """Draws that balance speed, bias and variance.

    Args:
        k: draws per round; a client drawn twice trains once with double weight.
        ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue.
    """

    name: ClassVar[str] = "moment-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.MOMENT})
    not_with: ClassVar[Mapping[str, str]] = {
        "scaffold": "it rarely asks slow clients, so that their control variates are out of date. Use algorithm = "
        "'fedavg', or use random"
    }
    uses: ClassVar[frozenset[Need]] = frozenset({Need.TARGETS})
    """If moments lack targets, the cohort matches the curvature of the population, but not its optimum."""
    first_moments: ClassVar[bool] = True
    """Moments of different clients are compared, so each client reports its moment once, with its first model."""

    k: Annotated[int, AtLeast(1)] = 10
    ridge: Annotated[float, AtLeast(0), FINITE] = RIDGE

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Optimise the distribution, then draw from it."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; draws with replacement need no cap
        if view.moments is None:
            raise InputError(f"{self.name} needs feature moments, but no client has reported any")
        known = np.flatnonzero(view.moments.known)
        share = shares_among(view.share, known)
        gram = known_gram(view.moments, ridge=self.ridge, shares=view.share)
        candidates = view.available[known]
        rows = known[candidates]
        p, bound = _best(
            gram[np.ix_(candidates, candidates)],
            (gram @ share)[candidates],
            share[candidates],
            view.delay[rows],
            float(share @ gram @ share),
            self.k,
        )
        return cohort_from(rows, p, share[candidates], view.delay[rows], self.k, bound, {}, rng), None


@remember_last
def _best(
    gram: FloatArray, pull: FloatArray, share: FloatArray, delay: FloatArray, offset: float, k: int
) -> tuple[FloatArray, float]:
    """Return the best distribution and its B_p."""
    # Delays are divided by their mean, so that the solver's tolerances do not depend on the time unit.
    ratio = MomentRatio(gram, pull, offset, delay / max(delay.mean(), 1e-12), k)
    # Clients with share 0 may still represent others, so they start positive: a weight that starts at 0 stays 0.
    first = np.where(share > 0, share, 1 / share.size)
    starts = [shares(first * mask, mask.size) for mask in prefix_starts(delay)]
    p, _ = minimise_on_simplices(ratio.value_and_gradient, starts)
    return p, ratio.bound(p)
