"""ApproxOptSampling: clients drawn by a distribution that trades their delay against their gradient.

Luo, Xiao, Wang, Huang and Tassiulas, "Adaptive Heterogeneous Client Sampling for Federated Learning over Wireless
Networks" (TMC 2024): draw k clients with replacement by the q that minimises (sum q_i t_i)(sum (w_i G_i)^2 / q_i + c),
each draw with weight w_i / (k q_i) in delta mode. This is the baseline of the paper that fedpace starts from: solved
again in each round, c chosen by hand. `adaptive-sampling` estimates c.

Where we depart, and why:
- `solver="exact"` searches the one-parameter curve that holds every stationary point (`fedpace.numerics.importance`):
  milliseconds instead of the hour that the paper grants to trust-constr, and never a worse value;
- q has a floor of `floor` / clients. The authors' 1e-7 lets a weight w / (k q) reach thousands;
- G is measured in units of its own root mean square, so that c = 5, the authors' value, means the same for every model;
- G is the norm of the last update, where the paper takes the largest gradient norm over all rounds: nothing is kept of
  a client but its last update;
- w are the shares among those available, so that the step does not shrink when some are away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedpace._base.checks import at_least, one_of
from fedpace.core.cohorts import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.numerics.importance import sampling_cost
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._importance import check_options, floors, gradient_norms, importance_cohort, solve


@dataclass(frozen=True)
class ApproxOptSampling(Stateless):
    """Draws that prefer fast clients and large gradients.

    Args:
        k: draws in a round; a client drawn twice trains once and weighs double.
        c: what a round brings however clients are drawn: larger = faster clients, more varied weights.
        solver: `exact`, or `trust-constr` as the paper ran it.
        max_iter: iterations of trust-constr.
        floor: a client's least probability, in units of 1 / clients; above 0, or nobody could be weighed.
        clip: largest weight; 0 = no limit. A limit lowers the variance and brings a bias.
    """

    name: ClassVar[str] = "approx-opt-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    """Of those who took part, if the host has it; without, all gradients count as equally long."""

    k: int = 10
    c: float = 5.0
    solver: Literal["exact", "trust-constr"] = "exact"
    max_iter: int = 100
    floor: float = 0.1
    clip: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        check_options(self.k, self.c, self.floor, self.clip, self.name)
        one_of(self.solver, ("exact", "trust-constr"), f"solver of {self.name}")
        at_least(self.max_iter, 1, f"max_iter of {self.name}")

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Optimise the distribution, then draw from it."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; draws with replacement need no cap
        rows = view.candidates
        share = share_weights(view, rows)
        a = np.square(share * gradient_norms(view, rows, share))
        if not a.any():
            a = np.square(share)
        delay = view.delay[rows]
        q = solve(a, delay, self.c, floors(share, self.floor), self.solver, self.max_iter)
        why = Diagnostics(
            objective=float(sampling_cost(q, a, delay, self.c)),
            status="exact" if self.solver == "exact" else f"trust-constr, at most {self.max_iter} iterations",
            facts={"c": self.c},
        )
        return importance_cohort(view, rows, q, share, k=self.k, clip=self.clip, rng=rng, why=why), None
