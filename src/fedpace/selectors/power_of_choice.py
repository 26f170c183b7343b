"""Power-of-Choice: draws random candidates and selects those with the highest loss.

Jee Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022): draw d
candidates without replacement by share, ask each for its loss at the shared model, take the k largest, weight 1/k. As
in the authors' code, the first round draws k clients uniformly and asks none.

Where we depart from the code, and why:
- Only the candidates are asked. The code evaluates all clients and then uses d of them.
- `probe` draws the candidates, and `select` recognises them by a loss from the current step. Clients that do not answer
  are not candidates. If fewer than k answer, the rest of the cohort is drawn by share.
- The paper lowers d "gradually" in its adaptive variant. Here, as in re-implementations, d falls once, from all clients
  to k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.checks import IntArray
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast
from fedpace.core.rounds import cohort_size
from fedpace.core.types import Cohort, Diagnostics, Probe, Scheme, View
from fedpace.selectors._drawing import draw_distinct, even_weights, largest, slowest


@dataclass(frozen=True)
class PowerOfChoice(Scheme):
    """The candidates with the highest loss.

    Args:
        k: clients in a cohort.
        d: number of candidates, at least k; 0 = twice k. Fewer if fewer clients are available.
        variant: `pow-d`: candidates report their loss on all their data. `cpow-d`: on one mini-batch. `rpow-d`: no
            client is asked; the loss of the last participation counts, and clients that never took part come first.
            `adapow-d`: all clients are candidates in the first `switch` rounds; then d = k, which is drawing by share.
        batch: samples in the mini-batch of `cpow-d`.
        switch: rounds of `adapow-d` with all clients as candidates; the intended value is half of all rounds.
    """

    name: ClassVar[str] = "power-of-choice"
    reads_losses: ClassVar[bool] = True
    ignores_delays: ClassVar[bool] = True

    k: Annotated[int, AtLeast(1)] = 10
    d: int = 0
    variant: Literal["pow-d", "cpow-d", "rpow-d", "adapow-d"] = "pow-d"
    batch: Annotated[int, AtLeast(1)] = 64
    switch: Annotated[int, AtLeast(0)] = 150

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid, or if two do not go together."""
        super().__post_init__()
        if self.d != 0 and self.d < self.k:
            raise InputError(f"d of {self.name} must be at least k = {self.k}, or 0 for twice k, but {self.d} came")

    def init(self) -> None:
        """No state."""

    def probe(self, state: None, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask random candidates for their loss, unless all of them would be selected anyway."""
        size = cohort_size(self.k, view, self.name)
        count = self._candidates(view)
        if view.step == 0 or self.variant == "rpow-d" or count <= size:
            return None
        rows = np.sort(self._draw(view, view.candidates, count, rng))
        return Probe(rows, samples=self.batch if self.variant == "cpow-d" else 0)

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Return the k candidates with the largest losses."""
        size = cohort_size(self.k, view, self.name)
        rows = view.candidates
        if view.step == 0:
            clients = rng.choice(rows, size=size, replace=False)
            return self._cohort(view, clients, "first round: drawn uniformly", rows.size), None
        if self.variant == "rpow-d":
            candidates = self._draw(view, rows, self._candidates(view), rng)
            loss = np.nan_to_num(view.loss[candidates], nan=np.inf)
        else:
            candidates = rows[view.loss_step[rows] == view.step]
            loss = view.loss[candidates]
        clients = largest(candidates, loss, size, rng)
        missing = size - clients.size
        status = "ok"
        if missing:
            rest = np.setdiff1d(rows, clients)
            clients = np.concatenate([clients, self._draw(view, rest, missing, rng)])
            status = f"{candidates.size} candidates answered: {missing} clients drawn by share"
        return self._cohort(view, clients, status, candidates.size), None

    def observe(self, state: None, report: object) -> None:
        """Return the state as it is: the next View contains the report."""

    def _candidates(self, view: View) -> int:
        d = self.d or 2 * self.k
        if self.variant == "adapow-d":
            d = view.clients if view.step < self.switch else self.k
        return min(d, int(view.candidates.size))

    def _draw(self, view: View, rows: IntArray, count: int, rng: np.random.Generator) -> IntArray:
        return draw_distinct(rows, view.share[rows], count, rng)

    def _cohort(self, view: View, clients: IntArray, status: str, candidates: int) -> Cohort:
        clients = np.sort(clients)
        loss = view.loss[clients]
        known = bool(np.isfinite(loss).all())
        why = Diagnostics(
            objective=float(loss.mean()) if known else None,
            predicted_seconds=slowest(view, clients),
            status=status,
            facts={"candidates": candidates, "least_loss": float(loss.min()) if known else None},
        )
        return Cohort(clients, even_weights(clients), why=why)
