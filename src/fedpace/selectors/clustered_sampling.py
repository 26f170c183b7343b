"""Clustered sampling: draws one client from each of K urns; unbiased, with less variance than K draws by share.

Fraboni, Vidal, Kameni and Lorenzi, "Clustered Sampling: Low-Variance and Improved Representativity for Clients
Selection in Federated Learning" (ICML 2021), algorithms 1 (`size`) and 2 (`similarity`). `fedpace.numerics.urns` fills
the urns. As in the paper, a client with an unknown update has a sketch of 0.

Where we depart, and why:
- In algorithm 2, the released code is biased if a share exceeds 1/K. Here, such a client first gets urns of its own.
- The released code passes SciPy a square matrix of distances, and SciPy treats its rows as points. Here, the distances
  are clustered.
- The released code's "L2" is the squared distance. Here, it is the distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.numerics.urns import draw_from, urns_by_cluster, urns_by_size
from fedpace.selectors._drawing import share_weights, slowest


@dataclass(frozen=True)
class ClusteredSampling(Stateless):
    """One draw from each of k groups of clients.

    Args:
        k: number of groups, and of draws; a client drawn twice trains once with double weight.
        algorithm: `similarity`: groups of clients with similar last updates (algorithm 2). `size`: groups by share
            alone (algorithm 1).
        measure: distance for `similarity`: the `angle` between two updates, or the norm `l2` or `l1` of their
            difference.
    """

    name: ClassVar[str] = "clustered-sampling"
    ignores_delays: ClassVar[bool] = True
    uses: ClassVar[frozenset[Need]] = frozenset({Need.UPDATE})
    """Updates of participants, if the host reports them."""

    k: Annotated[int, AtLeast(1)] = 10
    algorithm: Literal["similarity", "size"] = "similarity"
    measure: Literal["angle", "l2", "l1"] = "angle"

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Fill the urns, then draw from each."""
        cohort_size(self.k, view, self.name)  # raises if k exceeds the fleet; several urns may draw the same client
        rows = view.candidates
        own = share_weights(view, rows)
        if self.algorithm == "size":
            urns = urns_by_size(own, self.k)
        else:
            urns = urns_by_cluster(own, self.k, self._distances(view, rows), rng)
        drawn, counts = np.unique(draw_from(urns, rng), return_counts=True)
        clients = rows[drawn]
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            facts={"clients_per_urn": float((urns > 0).sum(axis=1).mean()), "largest_share": float(own.max())},
            reasons={int(row): f"drawn from {n} of {self.k} urns" for row, n in zip(clients, counts, strict=True)},
        )
        return Cohort(clients, counts / self.k, why=why), None

    def _distances(self, view: View, rows: IntArray) -> FloatArray:
        from scipy.spatial.distance import pdist

        sketches = np.zeros((rows.size, 1)) if view.updates is None else np.nan_to_num(view.updates[rows], nan=0.0)
        if self.measure != "angle":
            return np.asarray(pdist(sketches, "euclidean" if self.measure == "l2" else "cityblock"))
        length = np.linalg.norm(sketches, axis=1, keepdims=True)
        unit = np.divide(sketches, length, out=np.zeros_like(sketches), where=length > 0)
        # Computed from the chord 2 sin(angle / 2): arccos of the inner product would lose half the digits of small
        # angles.
        chord = pdist(unit)
        # A sketch of 0 has no direction; as with arccos, it is at a right angle to every other sketch.
        nothing = length[:, 0] == 0
        first, second = np.triu_indices(rows.size, 1)
        angle = 2 * np.arcsin(np.minimum(chord / 2, 1.0))
        return np.where(nothing[first] != nothing[second], np.pi / 2, angle)
