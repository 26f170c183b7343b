"""Fed-CBS: clients drawn one after the other so that their labels together are balanced.

Zhang et al., "Fed-CBS: A Heterogeneity-Aware Client Sampling Mechanism for Federated Learning via Class-Imbalance
Reduction" (ICML 2023). QCID(S) = sum_b (sum_S n_i a_ib / sum_S n_i - 1/C)^2 measures the imbalance of a set. The first
client is drawn by 1 / QCID({c})^b_1 + lambda sqrt(3 ln r / (2 T_c)), the j-th by QCID(S)^b_{j-1} / QCID(S + c)^b_j,
with b_j = j, T_c the times that c took part and r the round.

Notes:
- everything but the last factor is the same for all candidates and drops out, so the second formula of the paper, whose
  denominator re-implementations read in two ways, needs no reading at all;
- QCID^j underflows for balanced sets and large j: we work in logarithms, with a floor under QCID;
- clients are drawn without replacement (one re-implementation does with), and T_c starts at 1.
The histograms are in the clear here; the paper computes the products n_i n_j <a_i, a_j> under encryption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, at_least
from fedpace._base.errors import InputError
from fedpace.core.cohorts import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Stateless, View
from fedpace.selectors._drawing import share_weights, slowest

FLOOR = 1e-9
"""Added to every QCID: a perfectly balanced set is very likely rather than infinitely."""


@dataclass(frozen=True)
class FedCbs(Stateless):
    """Clients whose labels are balanced together.

    Args:
        k: clients in a cohort.
        exploration: lambda; how much clients that seldom took part are preferred as the first of a cohort.
    """

    name: ClassVar[str] = "fed-cbs"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LABELS})
    ignores_delays: ClassVar[bool] = True

    k: int = 10
    exploration: float = 10.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        at_least(self.k, 1, f"k of {self.name}")
        at_least(self.exploration, 0, f"exploration of {self.name}")

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw client after client."""
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
            # The largest of score + Gumbel noise is a draw in proportion to exp(score).
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
    """Return QCID of label counts along the last axis; without any label it is that of a single class, the worst."""
    total = counts.sum(axis=-1, keepdims=True)
    classes = counts.shape[-1]
    part = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    qcid = np.square(part - 1 / classes).sum(axis=-1)
    return np.asarray(np.where(total[..., 0] > 0, qcid, 1 - 1 / classes))
