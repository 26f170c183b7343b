"""FOLB: a uniform draw, in which those weigh most whose gradients point where all of them point.

Nguyen, Sehwag, Hosseinalipour, Brinton, Chiang and Poor, "Fast-Convergent Federated Learning" (JSAC 39(1), 2021):
draw S uniformly, G = mean of their gradients, I_i = <g_i, G>, and x <- x + sum_S I_i d_i / sum_S |I_j|. Weights may be
negative, so the mode is delta. The theory takes the denominator from a second, independent draw: `sets="two"`.

Where we depart, and why:
- inner products are those of the gradient sketches that the probe brings;
- the correction I_i - psi gamma_i |G|^2 for inexact local solvers is left out: no host reports gamma_i;
- `probe` and `select` must draw the same clients from different random streams. The state therefore carries a key,
  drawn in the round before; the first round has none, asks nobody and averages by share as FedAvg does;
- where the denominator vanishes (gradients that cancel), and for want of gradients, the weights are equal;
- with two sets the weights' sizes sum to at most 2: a second draw at right angles to G would blow them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, at_least, one_of
from fedpace._base.rng import stream
from fedpace.core.cohorts import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Probe, Scheme, View
from fedpace.selectors._drawing import even_weights, share_weights, slowest

VANISHING = 1e-12
"""Of the largest possible value: where inner products sum to less, they say nothing."""


@dataclass(frozen=True)
class Key:
    """What FOLB remembers: the name of the random stream of the next draw."""

    key: int = -1
    """-1 = none yet."""


@dataclass(frozen=True)
class Folb(Scheme):
    """Uniform draws, weighted by agreement.

    Args:
        k: clients in a cohort.
        sets: `one`: the cohort itself gives the denominator. `two`: k other draws, asked for gradients too.
    """

    name: ClassVar[str] = "folb"
    needs: ClassVar[frozenset[Need]] = frozenset()
    ignores_delays: ClassVar[bool] = True

    k: int = 10
    sets: Literal["one", "two"] = "one"

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        at_least(self.k, 1, f"k of {self.name}")
        one_of(self.sets, ("one", "two"), f"sets of {self.name}")

    def init(self) -> Key:
        """No key yet."""
        return Key()

    def probe(self, state: Key, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask those who will be chosen for their gradients."""
        if state.key < 0:
            return None
        return Probe(np.unique(np.concatenate(self._draws(state, view))), kind="gradient")

    def select(self, state: Key, view: View, rng: np.random.Generator) -> tuple[Cohort, Key]:
        """Weigh the draw by its inner products with its mean gradient."""
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
        """Return the cohort and the clients of the denominator; the same in `probe` and in `select`."""
        size = cohort_size(self.k, view, self.name)
        rng = stream(state.key, self.name)
        order = rng.permutation(view.candidates), rng.permutation(view.candidates)
        first = np.sort(order[0][:size])
        return first, (first if self.sets == "one" else np.sort(order[1][:size]))


def agreement(gradients: FloatArray, others: FloatArray) -> tuple[FloatArray, float | None]:
    """Return I_i / sum |I_j| with I_i = <g_i, G>, i among `gradients`, j among `others`, G the mean of the former.

    And the mean |I_j| / |G|^2; equal weights and None where the sum vanishes.
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
