"""ApproxOptSampling: importance sampling that trades the clients' delays against their gradients.

Luo, Xiao, Wang, Huang and Tassiulas, "Adaptive Heterogeneous Client Sampling for Federated Learning over Wireless
Networks" (TMC 2024): draw k clients with replacement from the q that minimises (sum q_i t_i)(sum (w_i G_i)^2 / q_i +
c). Each draw has weight w_i / (k q_i) in delta mode. The DelayHet paper uses this method as a baseline, with q solved
again in each round and c chosen by hand. `adaptive-sampling` estimates c.

Where we depart, and why:
- `solver="exact"` searches the one-parameter curve that contains every stationary point
  (`fedpace.numerics.sampling`). It takes milliseconds, where the paper allows trust-constr an hour, and never returns
  a worse value.
- q has a floor of `floor` / clients. With the authors' 1e-7, a weight w / (k q) can reach thousands.
- G is divided by its root mean square, so that the authors' c = 5 means the same for every model.
- G is the norm of the last update; the paper uses the largest gradient norm over all rounds. fedpace stores only the
  last update of a client.
- w are the shares among the available clients, so that the step does not shrink when clients are away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.options import AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.numerics.sampling import sampling_cost
from fedpace.selectors._drawing import share_weights
from fedpace.selectors._importance import floors, gradient_norms, importance_cohort, solve


@dataclass(frozen=True)
class ApproxOptSampling(Stateless):
    """Draws that prefer fast clients and large gradients.

    Args:
        k: draws per round; a client drawn twice trains once with double weight.
        c: constant added to the variance term of the objective (5 in the authors' code). A larger c prefers faster
            clients, with more varied weights.
        solver: `exact`, or `trust-constr` as in the paper.
        max_iter: iterations of trust-constr.
        floor: smallest probability of a client, in units of 1 / clients. It must be above 0, because weights divide by
            it.
        clip: largest weight; 0 = no limit. A limit lowers the variance and adds a bias.
    """

    name: ClassVar[str] = "approx-opt-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    not_with_sums: ClassVar[str] = (
        "it draws clients with replacement by the lengths of their updates, and a draw may have too few of them. Use "
        "random, or pace"
    )
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    """Updates of participants, if the host reports them. Without updates, all gradient norms count as equal."""

    k: Annotated[int, AtLeast(1)] = 10
    c: Annotated[float, AtLeast(0)] = 5.0
    solver: Literal["exact", "trust-constr"] = "exact"
    max_iter: Annotated[int, AtLeast(1)] = 100
    floor: Annotated[float, Between(0, 1, "(]")] = 0.1
    clip: Annotated[float, AtLeast(0)] = 0.0

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
