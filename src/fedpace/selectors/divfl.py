"""DivFL: selects clients whose gradients best represent the gradients of all clients.

Balakrishnan, Li, Zhou, Himayat, Smith and Bilmes, "Diverse Client Selection for Federated Learning via Submodular
Maximization" (ICLR 2022): minimise sum_j w_j min_{i in S} |g_i - g_j| over |S| = k by greedy facility location.

Where we depart, and why:
- g_i is the sketch in the ledger. With `exact` it is the sketch of the gradient at the shared model. With `no-overhead`
  it is the sketch of the client's last local update. The paper's code computes a gradient before training, at
  additional cost.
- With `every-q`, some sketches are updates (of participants) and others are gradients, and their lengths cannot be
  compared. In this mode only, sketches are scaled to length 1, so that directions are compared.
- The released code has a switch for `exact` that never takes effect if k > 1. It runs `no-overhead`, our default.
- The client's share replaces 1/m. Unavailable clients cannot be selected, but they still count as clients to represent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, shares
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Probe, Scheme, View
from fedpace.numerics.facility import facility_location, nearest
from fedpace.selectors._drawing import share_weights, slowest


@dataclass(frozen=True)
class Divfl(Scheme):
    """Representatives of all clients' gradients.

    Args:
        k: clients in a cohort.
        mode: when clients are asked for gradients. `exact`: all, before every round. `every-q`: all, every q rounds.
            `no-overhead`: never; participants refresh their sketch, and a warm-up gives the first ones.
        q: rounds between two requests with `every-q`.
        method: greedy search: `lazy` and `plain` give the same result, `stochastic` examines a random tenth.
        weights: `share`: the members' shares, scaled to sum to 1, as in the released code. `proxy`: the total share of
            the clients that each member is nearest to, as in the theory.
    """

    name: ClassVar[str] = "divfl"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    not_with_sums: ClassVar[str] = (
        "it compares the gradients of single clients. Use pace, or fed-cbs, which compares labels"
    )
    ignores_delays: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    mode: Literal["exact", "every-q", "no-overhead"] = "no-overhead"
    q: Annotated[int, AtLeast(1)] = 10
    method: Literal["lazy", "stochastic", "plain"] = "lazy"
    weights: Literal["share", "proxy"] = "share"

    def init(self) -> None:
        """No state."""

    def probe(self, state: None, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask all reachable clients for a gradient, if the mode says so in this round."""
        due = self.mode == "exact" or (self.mode == "every-q" and view.step % self.q == 0)
        return Probe(view.candidates, kind="gradient") if due else None

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Run the greedy search over the available clients, and return the cohort."""
        size = cohort_size(self.k, view, self.name)
        if view.updates is None:
            raise InputError(f"{self.name} needs update sketches, but no client has reported any")
        population = np.flatnonzero(~np.isnan(view.updates).any(axis=1))
        sketches = view.updates[population]
        if self.mode == "every-q":
            length = np.linalg.norm(sketches, axis=1, keepdims=True)
            sketches = np.divide(sketches, length, out=np.zeros_like(sketches), where=length > 0)
        rows = np.flatnonzero(view.available[population])
        own = view.share[population]
        own = shares(own if own.any() else None, population.size)
        distance = _distances(sketches[rows], sketches)
        picks = facility_location(distance, size, method=self.method, weights=own, rng=rng)
        member, far = nearest(distance, picks)
        stands_for = np.bincount(member, weights=own, minlength=size)
        clients = population[rows[picks]]
        weights = stands_for / stands_for.sum() if self.weights == "proxy" else share_weights(view, clients)
        order = np.argsort(clients)
        why = Diagnostics(
            objective=float(far @ own),
            predicted_seconds=slowest(view, clients),
            facts={"mean_distance": float(far @ own), "largest_distance": float(far.max())},
            reasons={
                int(row): f"pick {position + 1}, nearest to {part:.1%} of the objective"
                for position, (row, part) in enumerate(zip(clients, stands_for, strict=True))
            },
        )
        return Cohort(clients[order], weights[order], why=why), None

    def observe(self, state: None, report: object) -> None:
        """Return the state as it is: the next View contains the report."""


def _distances(chosen: FloatArray, everybody: FloatArray) -> FloatArray:
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(chosen, everybody))
