"""FOLB: uniform draws; clients weigh more if their gradient agrees with the mean gradient.

Nguyen, Sehwag, Hosseinalipour, Brinton, Chiang and Poor, "Fast-Convergent Federated Learning" (JSAC 39(1), 2021): draw
S uniformly, let G be the mean of the gradients in S, I_i = <g_i, G>, and x <- x + sum_S I_i d_i / sum_S |I_j|. Weights
may be negative, so the mode is delta. The theory takes the denominator from a second, independent draw: `sets="two"`.

Where we depart, and why:
- Inner products are computed between the gradient sketches from the probe.
- The correction I_i - psi gamma_i |G|^2 for inexact local solvers is left out, because no host reports gamma_i.
- `probe` and `select` must draw the same clients but have different random streams. The state therefore carries a key,
  drawn in the previous round. The first round has no key: it probes no client and averages by share as FedAvg does.
- If the denominator vanishes (gradients cancel), or if no gradients arrived, the weights are equal.
- With two sets, the absolute weights sum to at most 2. Otherwise a second draw nearly orthogonal to G would make them
  explode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import AtLeast
from fedpace._base.rng import stream
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Probe, Scheme, View
from fedpace.selectors._drawing import even_weights, share_weights, slowest

VANISHING = 1e-12
"""If the inner products sum to less than this part of their largest possible sum, they are treated as 0."""


@dataclass(frozen=True)
class Key:
    """State of FOLB: the key of the random stream for the next draw."""

    key: int = -1
    """-1 = none yet."""


@dataclass(frozen=True)
class Folb(Scheme):
    """Uniform draws, weighted by agreement.

    Args:
        k: clients in a cohort.
        sets: `one`: the cohort itself gives the denominator. `two`: a second draw of k clients gives it; they are asked
            for gradients too.
    """

    name: ClassVar[str] = "folb"
    not_with_sums: ClassVar[str] = "it weights each client by its own gradient. Use random, or pace"
    ignores_delays: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    sets: Literal["one", "two"] = "one"

    def init(self) -> Key:
        """Return the state without a key."""
        return Key()

    def probe(self, state: Key, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask the clients that `select` will draw for their gradients."""
        if state.key < 0:
            return None
        return Probe(np.unique(np.concatenate(self._draws(state, view))), kind="gradient")

    def select(self, state: Key, view: View, rng: np.random.Generator) -> tuple[Cohort, Key]:
        """Return the drawn clients, weighted by inner products with their mean gradient, and the next key."""
        following = Key(int(rng.integers(2**62)))
        if state.key < 0:
            size = cohort_size(self.k, view, self.name)
            clients = np.sort(rng.choice(view.candidates, size=size, replace=False))
            why = Diagnostics(predicted_seconds=slowest(view, clients), status="first round: averaged by share")
            return Cohort(clients, share_weights(view, clients), mode="delta", why=why), following
        first, second = (_with_gradient(view, rows) for rows in self._draws(state, view))
        if first.size == 0 or view.updates is None:
            clients = self._draws(state, view)[0]
            weights, status, total = even_weights(clients), "no gradient came: equal weights", None
        else:
            clients = first
            weights, total = agreement(view.updates[first], view.updates[second])
            status = "ok" if total is not None else "the gradients cancel: equal weights"
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            status=status,
            facts={"agreement": total, "negative_weights": int((weights < 0).sum())},
        )
        return Cohort(clients, weights, mode="delta", why=why), following

    def observe(self, state: Key, report: object) -> Key:
        """Return the state as it is: the next View contains the report."""
        return state

    def _draws(self, state: Key, view: View) -> tuple[IntArray, IntArray]:
        """Return the cohort, and the clients for the denominator; both are the same in `probe` and in `select`."""
        size = cohort_size(self.k, view, self.name)
        rng = stream(state.key, self.name)
        order = rng.permutation(view.candidates), rng.permutation(view.candidates)
        first = np.sort(order[0][:size])
        return first, (first if self.sets == "one" else np.sort(order[1][:size]))


def agreement(gradients: FloatArray, others: FloatArray) -> tuple[FloatArray, float | None]:
    """Return the weights I_i / sum |I_j|, and the mean of |I_j| / |G|^2.

    G is the mean of `gradients`, I_i = <g_i, G>; i runs over `gradients` and j over `others`. If the sum vanishes,
    return equal weights and None. The sum counts as at least half of sum |I_i|.
    """
    mean = gradients.mean(axis=0)
    inner, scale = gradients @ mean, np.abs(others @ mean)
    total = float(scale.sum())
    possible = float(np.linalg.norm(mean) * np.linalg.norm(others, axis=1).sum())
    if not others.size or total <= VANISHING * possible:
        return np.full(len(gradients), 1 / len(gradients)), None
    total = max(total, float(np.abs(inner).sum()) / 2)
    return inner / total, total / len(others) / float(mean @ mean)


def _with_gradient(view: View, rows: IntArray) -> IntArray:
    if view.updates is None:
        return rows[:0]
    return rows[~np.isnan(view.updates[rows]).any(axis=1)]
