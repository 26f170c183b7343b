"""TiFL: sorts clients into tiers of similar speed, and draws each round's cohort from one tier.

Chai et al., "TiFL: A Tier-based Federated Learning System" (HPDC 2020). Tier 0 is the fastest. The adaptive policy
(their algorithm 2) draws the tier by probabilities that start equal. Every `interval` rounds, it checks whether the
tier drawn last has improved. If not, the worst tiers get the largest probabilities: of the n tiers with credits left,
in ascending order of accuracy, the i-th gets (n - i) / (n (n - 1) / 2). A round costs its tier one credit.

Where we depart, and why:
- A tier is bad if the mean of its clients' last reported losses is high, because the server has no test data per tier.
- Tiers are equal parts of the available clients sorted by delay, formed again in every round, so that no state is kept
  per client.
- When all credits are spent, all tiers get new ones, so that training can continue as long as the host asks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.options import AtLeast, Between
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Need, Scheme, View
from fedpace.selectors._drawing import share_weights, slowest

MOST_TIERS = 10_000
"""Limit on the number of tiers, because the state keeps numbers per tier."""
UNKNOWN = 1e300
"""Loss of a tier without any reported loss: worse than any other, and JSON can store it, unlike infinity."""


@dataclass(frozen=True)
class Tiers:
    """State of TiFL: one number per tier."""

    credits: tuple[int, ...]
    probabilities: tuple[float, ...]
    losses: tuple[float, ...]
    """Mean losses at the last check."""
    last: int = -1
    """The tier of the last round; -1 = none yet."""


@dataclass(frozen=True)
class Tifl(Scheme):
    """A random part of one tier.

    Args:
        k: clients in a cohort; fewer if the tier is smaller.
        tiers: number of groups of equal size by delay.
        policy: `adaptive`, or `uniform`: every tier is equally likely in every round.
        credits: number of rounds that a tier may be drawn before it must wait until the others have spent theirs.
        interval: rounds between two checks of the losses.
    """

    name: ClassVar[str] = "tifl"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    reads_losses: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    tiers: Annotated[int, Between(1, MOST_TIERS)] = 5
    policy: Literal["adaptive", "uniform"] = "adaptive"
    credits: Annotated[int, AtLeast(1)] = 100
    interval: Annotated[int, AtLeast(1)] = 20

    def init(self) -> Tiers:
        """Return equal probabilities and full credits."""
        equal = (1 / self.tiers,) * self.tiers
        return Tiers((self.credits,) * self.tiers, equal, (UNKNOWN,) * self.tiers)

    def select(self, state: Tiers, view: View, rng: np.random.Generator) -> tuple[Cohort, Tiers]:
        """Draw a tier, then clients from the tier."""
        size = cohort_size(self.k, view, self.name)
        rows = view.candidates
        # Row order only breaks ties in delay.
        tiers = np.array_split(rows[np.lexsort((rows, view.delay[rows]))], self.tiers)
        if self.policy == "adaptive" and view.step and view.step % self.interval == 0:
            state = self._look(state, tuple(_loss(view, tier) for tier in tiers))
        if not any(state.credits[t] for t, tier in enumerate(tiers) if tier.size):
            state = replace(state, credits=(self.credits,) * self.tiers)
        chance = self._chances(state, tiers)
        drawn = int(rng.choice(self.tiers, p=chance))
        tier = tiers[drawn]
        clients = np.sort(rng.choice(tier, size=min(size, tier.size), replace=False))
        left = tuple(c - (t == drawn) for t, c in enumerate(state.credits))
        why = Diagnostics(
            predicted_seconds=slowest(view, clients),
            facts={
                "tier": drawn,
                "credits_left": left[drawn],
                **{f"probability_{t}": float(p) for t, p in enumerate(chance)},
            },
        )
        return Cohort(clients, share_weights(view, clients), why=why), replace(state, credits=left, last=drawn)

    def observe(self, state: Tiers, report: object) -> Tiers:
        """Return the state as it is: the next View contains the report."""
        return state

    def _look(self, state: Tiers, losses: tuple[float, ...]) -> Tiers:
        """Change the probabilities if the tier of the last round has not improved since the last check."""
        if state.last >= 0 and losses[state.last] >= state.losses[state.last]:
            open_ = [t for t in range(self.tiers) if state.credits[t] > 0]
            state = replace(state, probabilities=tuple(change_probabilities(losses, open_).tolist()))
        return replace(state, losses=losses)

    def _chances(self, state: Tiers, tiers: list[IntArray]) -> FloatArray:
        """Return the probabilities of the tiers with clients and credits; equal ones if all of these are 0."""
        can = np.array([tier.size > 0 and state.credits[t] > 0 for t, tier in enumerate(tiers)])
        chance = np.where(can, state.probabilities, 0.0)
        if chance.sum() <= 0:
            chance = can.astype(np.float64)
        return np.asarray(chance / chance.sum())


def change_probabilities(losses: tuple[float, ...], tiers: list[int]) -> FloatArray:
    """Return (n - i) / (n (n - 1) / 2) for the i-th worst of the n given tiers, i = 1 ... n, and 0 for the others."""
    chance = np.zeros(len(losses))
    n = len(tiers)
    if n < 2:
        chance[tiers] = 1.0
        return chance
    worst_first = sorted(tiers, key=lambda t: -losses[t])
    chance[worst_first] = (n - np.arange(1, n + 1)) / (n * (n - 1) / 2)
    return chance


def _loss(view: View, tier: IntArray) -> float:
    loss = view.loss[tier]
    known = ~np.isnan(loss)
    return float(loss[known].mean()) if known.any() else UNKNOWN
