"""Optimal client sampling: each client takes part independently, more likely if its update is large.

Chen, Horvath and Richtarik, "Optimal Client Sampling for Federated Learning" (TMLR 2022): client i takes part with
probability p_i, independently, and has weight w_i / p_i in delta mode. `fedpace.numerics.sampling` computes p from the
norms u_i = w_i |d_i|. The weights are never renormalised over the drawn clients, because that would bias the sum.

Where we depart, and why:
- In the paper all clients train, and only uploads are saved. `norms="probed"` asks all clients for the sketch of a
  gradient step, the cheapest substitute for d_i. `norms="last"` uses the sketch of the last update and asks nobody.
  Both estimates are unbiased, because the weights contain p. Stale norms only increase the variance.
- It can happen that no client is drawn, but a Cohort cannot be empty. The draw is then repeated until a client is
  drawn. The weights are multiplied by the probability 1 - prod(1 - p_i) that a draw is not empty, which keeps them
  unbiased.
- w are the shares among the available clients, so that the step does not shrink when clients are away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Probe, Scheme, View
from fedpace.numerics.sampling import aggregated_inclusion, optimal_inclusion
from fedpace.selectors._drawing import share_weights, slowest


@dataclass(frozen=True)
class OptimalClientSampling(Scheme):
    """Independent draws, likeliest where updates are large.

    Args:
        k: expected number of clients in a cohort.
        method: `closed-form`: the optimum. `aocs`: nearly the same, from sums that secure aggregation can provide.
        rounds: exchanges of sums in `aocs`. With few exchanges and long-tailed norms, the result is far from the
            optimum.
        norms: `probed`: all clients compute a gradient before each round. `last`: use the norm of the last update.
    """

    name: ClassVar[str] = "optimal-client-sampling"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    not_with_sums: ClassVar[str] = "it chooses clients by the length of each update. Use random, or pace"
    ignores_delays: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    method: Literal["closed-form", "aocs"] = "closed-form"
    rounds: Annotated[int, AtLeast(0)] = 4
    norms: Literal["probed", "last"] = "probed"

    def init(self) -> None:
        """No state."""

    def probe(self, state: None, view: View, rng: np.random.Generator) -> Probe | None:
        """With `probed`, ask all reachable clients for a gradient; otherwise make no probe."""
        return Probe(view.candidates, kind="gradient") if self.norms == "probed" else None

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw each client independently, and repeat until the cohort is not empty."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet
        if view.updates is None:
            raise InputError(f"{self.name} needs update sketches, but no client has reported any")
        rows = view.candidates
        own = share_weights(view, rows)
        p = self.probabilities(own * np.linalg.norm(view.updates[rows], axis=1))
        somebody = float(-np.expm1(np.log1p(-p[p < 1]).sum())) if (p < 1).all() else 1.0
        drawn = rng.random(rows.size) < p
        while not drawn.any():
            drawn = rng.random(rows.size) < p
        clients = rows[drawn]
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            facts={
                "expected_clients": float(p.sum()),
                "certain_clients": int((p >= 1).sum()),
                "least_probability": float(p[p > 0].min()),
                "chance_of_nobody": 1 - somebody,
            },
            reasons={int(row): f"probability {chance:.3g}" for row, chance in zip(clients, p[drawn], strict=True)},
        )
        return Cohort(clients, somebody * own[drawn] / p[drawn], mode="delta", why=why), None

    def probabilities(self, norms: FloatArray) -> FloatArray:
        """Return each client's probability from the norms w_i |d_i|."""
        if self.method == "closed-form":
            return optimal_inclusion(norms, self.k)
        return aggregated_inclusion(norms, self.k, self.rounds)

    def observe(self, state: None, report: object) -> None:
        """Return the state as it is: the next View contains the report."""
