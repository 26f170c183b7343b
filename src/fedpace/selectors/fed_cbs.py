"""Fed-CBS: draws clients one by one so that the cohort's labels are balanced.

Zhang et al., "Fed-CBS: A Heterogeneity-Aware Client Sampling Mechanism for Federated Learning via Class-Imbalance
Reduction" (ICML 2023). QCID(S) = sum_b (sum_S n_i a_ib / sum_S n_i - 1/C)^2 measures the imbalance of a set. The first
client is drawn in proportion to 1 / QCID({c})^b_1 + lambda sqrt(3 ln r / (2 T_c)), the j-th in proportion to
QCID(S)^b_{j-1} / QCID(S + c)^b_j. Here b_j = j, T_c is the number of rounds that client c took part in, and r is the
round.

Notes:
- In the second formula, everything except QCID(S + c)^b_j is the same for all candidates and cancels.
  Re-implementations disagree on how to read the rest, which therefore does not matter.
- QCID^j underflows for balanced sets and large j. The code uses logarithms, with a floor under QCID.
- Clients are drawn without replacement (one re-implementation draws with replacement), and T_c starts at 1.
- The server sees the histograms in the clear. The paper computes the products n_i n_j <a_i, a_j> under encryption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import share_weights, slowest

FLOOR = 1e-9
"""Added to every QCID, so that the probability of a perfectly balanced set stays finite."""


@dataclass(frozen=True)
class FedCbs(Stateless):
    """Clients whose labels are balanced together.

    Args:
        k: clients in a cohort.
        exploration: lambda; how strongly the first draw prefers clients that seldom took part.
    """

    name: ClassVar[str] = "fed-cbs"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LABELS})
    ignores_delays: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    exploration: Annotated[float, AtLeast(0)] = 10.0

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the clients one by one."""
        size = cohort_size(self.k, view, self.name)
        if view.labels is None:
            raise InputError(f"{self.name} needs label histograms, but no client has reported any")
        rows = view.candidates
        labels = view.labels[rows]
        rare = np.sqrt(1.5 * np.log(view.step + 1) / np.maximum(view.participations[rows], 1))
        first = np.log(1 / (imbalance(labels) + FLOOR) + self.exploration * rare)
        picks: list[int] = []
        together = np.zeros(labels.shape[1])
        for position in range(1, size + 1):
            score = first if position == 1 else -position * np.log(imbalance(together + labels) + FLOOR)
            # The argmax of score + Gumbel noise is a draw in proportion to exp(score).
            score = score + rng.gumbel(size=rows.size)
            score[picks] = -np.inf
            picks.append(int(np.argmax(score)))
            together = together + labels[picks[-1]]
        clients = np.sort(rows[picks])
        qcid = float(imbalance(together))
        why = Diagnostics(
            objective=qcid,
            predicted_seconds=slowest(view, clients),
            facts={"qcid": qcid, "qcid_of_all": float(imbalance(labels.sum(axis=0)))},
            reasons={int(rows[pick]): f"draw {position + 1}" for position, pick in enumerate(picks)},
        )
        return Cohort(clients, share_weights(view, clients), why=why), None


def imbalance(counts: FloatArray) -> FloatArray:
    """Return the QCID of label counts along the last axis; without any labels, the largest value, of a single class."""
    total = counts.sum(axis=-1, keepdims=True)
    classes = counts.shape[-1]
    part = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    qcid = np.square(part - 1 / classes).sum(axis=-1)
    return np.asarray(np.where(total[..., 0] > 0, qcid, 1 - 1 / classes))
