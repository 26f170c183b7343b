"""HACCS: clusters clients by their label distribution, and selects the fastest clients of each cluster.

Wolfrath, Sreekumar, Kumar, Wang and Chandra, "HACCS: Heterogeneity-Aware Clustered Client Selection for Accelerated
Federated Learning" (IPDPS 2022). Where the paper leaves details open, we follow the authors' code
(NS-PhD-Research/HACCS). Every data distribution must take part, but not every client. Clients are clustered by their
label histograms, and a client without similar ones is its own cluster. The weight of a cluster is

    rho (1 - t_c / max t) + (1 - rho) f_c / sum f,      t_c its mean delay, f_c its mean squared loss.

A cluster with the part p_c of the total weight contributes its floor(p_c k) fastest clients. The remaining places are
filled one by one: a cluster is drawn in proportion to the weights, and its fastest unused client joins.

Notes, and where we depart:
- The paper compares histograms by Hellinger distance. The released code uses the Euclidean distance of frequencies, cut
  at 0.25. Both are available; the latter is the default, because its radius is known. OPTICS, read out as DBSCAN with
  at least two clients per cluster, equals single linkage cut at the radius, which SciPy provides. The paper's other
  summary, feature histograms per label, is left out, because no host reports them.
- The released code evaluates the model on every client after every round at no cost, and uses the error rate as the
  loss. `losses="probed"` asks all clients for a loss. `"last"`, the default, asks nobody: a cluster's loss comes from
  its members that reported last. The members share a distribution, and older losses belong to older models. A cluster
  without any loss gets the mean of the others.
- If members of a cluster are away, the released code still divides by all members. Here, means are over reachable
  members.
- The released code fails if all weights are 0 (one cluster, no loss). Here, all clusters are then equally likely.
- The released code averages models evenly. Here, they are weighted by shares, which is the same for equal shares.

Clients without a histogram cannot be selected (`needs`): the scheme is for classification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace._base.options import Above, AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Probe, Scheme, View
from fedpace.selectors._drawing import share_weights, slowest
from fedpace.selectors._optimised import remember_last


@dataclass(frozen=True)
class Haccs(Scheme):
    """The fastest clients of every kind of data.

    Args:
        k: clients in a cohort.
        rho: part of a cluster's weight that its speed decides; its loss decides the rest.
        distance: between label histograms: `euclidean`, as in the released code, or `hellinger`, as in the paper.
        radius: clients at most this far apart share a cluster, also through a chain of such clients.
        losses: `last`: the losses reported last. `probed`: all clients are asked before each round.
    """

    name: ClassVar[str] = "haccs"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.LABELS})
    reads_losses: ClassVar[bool] = True
    uses: ClassVar[frozenset[Need]] = frozenset({Need.LOSS})
    """Losses of participants, if the host reports them. Without losses, speed alone decides."""

    k: Annotated[int, AtLeast(1)] = 10
    rho: Annotated[float, Between(0, 1)] = 0.5
    distance: Literal["euclidean", "hellinger"] = "euclidean"
    radius: Annotated[float, Above(0)] = 0.25
    losses: Literal["last", "probed"] = "last"

    def init(self) -> None:
        """No state."""

    def probe(self, state: None, view: View, rng: np.random.Generator) -> Probe | None:
        """With `probed`, ask all reachable clients for a loss; otherwise make no probe."""
        return Probe(view.candidates) if self.losses == "probed" else None

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Divide the cohort among the clusters, and take the fastest clients of each."""
        size = cohort_size(self.k, view, self.name)
        if view.labels is None:
            raise InputError(f"{self.name} needs label histograms, but no client has reported any")
        known = np.flatnonzero(~np.isnan(view.labels).any(axis=1))
        cluster = np.full(view.clients, -1)
        cluster[known] = clusters(view.labels[known], self.distance, self.radius)
        rows = view.candidates
        members = by_speed(rows, view.delay, cluster)
        seconds = np.array([view.delay[rows].mean() for rows in members])
        weight = cluster_weights(seconds, _losses(view, members), self.rho)
        counts = allotted(weight, np.array([rows.size for rows in members]), size, rng)
        clients = np.sort(np.concatenate([rows[:count] for rows, count in zip(members, counts, strict=True)]))
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            facts={
                "clusters": len(members),
                "clusters_in": int((counts > 0).sum()),
                "largest_cluster": max(rows.size for rows in members),
            },
            reasons={
                int(row): f"among the {count} fastest of a cluster of {rows.size}, weight {part:.3g}"
                for rows, count, part in zip(members, counts.tolist(), weight, strict=True)
                for row in rows[:count]
            },
        )
        return Cohort(clients, share_weights(view, clients), why=why), None

    def observe(self, state: None, report: object) -> None:
        """Return the state as it is: the next View contains the report."""


@remember_last
def clusters(labels: FloatArray, distance: str, radius: float) -> IntArray:
    """Return the cluster of each client: single linkage of label frequencies, cut at `radius`."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(labels) == 1:
        return np.zeros(1, dtype=np.int64)
    total = labels.sum(axis=1, keepdims=True)
    points = np.divide(labels, total, out=np.zeros_like(labels), where=total > 0)  # clients without data form a cluster
    if distance == "hellinger":
        points = np.sqrt(points / 2)
    return np.asarray(fcluster(linkage(points, "single"), radius, "distance"), dtype=np.int64)


def by_speed(rows: IntArray, delay: FloatArray, cluster: IntArray) -> list[IntArray]:
    """Return the clusters of `rows`, sorted by their fastest client; within a cluster, the fastest comes first."""
    order = rows[np.lexsort((rows, delay[rows]))]
    _, first = np.unique(cluster[order], return_index=True)
    return [order[cluster[order] == label] for label in cluster[order[np.sort(first)]]]


def cluster_weights(seconds: FloatArray, losses: FloatArray, rho: float) -> FloatArray:
    """Return rho (1 - t_c / max t) + (1 - rho) f_c / sum f, scaled to sum to 1; equal weights if all are 0."""
    longest, total = float(seconds.max()), float(losses.sum())
    speed = 1 - seconds / longest if longest > 0 else np.ones(seconds.size)
    useful = losses / total if total > 0 else np.full(losses.size, 1 / losses.size)
    weight = rho * speed + (1 - rho) * useful
    return np.asarray(weight / weight.sum() if weight.sum() > 0 else np.full(weight.size, 1 / weight.size))


def allotted(weight: FloatArray, sizes: IntArray, k: int, rng: np.random.Generator) -> IntArray:
    """Return the number of clients per cluster: floor(weight k), plus random draws for the remaining places."""
    counts = np.minimum((weight * k + 1e-9).astype(np.int64), sizes)
    while counts.sum() < k:
        open_ = counts < sizes
        chance = np.where(open_, weight, 0.0)
        chance = chance if chance.any() else open_.astype(np.float64)
        counts[rng.choice(weight.size, p=chance / chance.sum())] += 1
    return counts


def _losses(view: View, members: list[IntArray]) -> FloatArray:
    """Return the mean squared loss of each cluster, over those members whose losses belong to the newest model."""
    found = np.full(len(members), np.nan)
    for place, rows in enumerate(members):
        measured = rows[~np.isnan(view.loss[rows])]
        if measured.size:
            newest = measured[view.loss_step[measured] == view.loss_step[measured].max()]
            found[place] = np.square(view.loss[newest]).mean()
    unknown = np.isnan(found)
    found[unknown] = found[~unknown].mean() if not unknown.all() else 1.0
    return found
