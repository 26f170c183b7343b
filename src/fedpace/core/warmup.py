"""Warm-ups: which clients measure facts before the policy can choose them, and how many answers are enough.

In a full warm-up (`Settings.warmup`), all clients of which the policy knows too little measure before its first
decision; with `warmup_trains` they train, as its first round. In a lazy warm-up, a few newcomers measure beside each
cohort.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, IntArray, shares_among
from fedpace._base.rng import stream
from fedpace.core.ledger import Ledger
from fedpace.core.settings import Settings
from fedpace.core.tasks import Move, Policy, Wait
from fedpace.core.types import Diagnostics, Selector


class WarmUp:
    """Chooses the clients of warm-ups.

    Args:
        ledger: holds what is known about clients.
        settings: of the coordinator.
        policy: its `needs` are the facts to measure.
    """

    def __init__(self, ledger: Ledger, settings: Settings, policy: Policy[Any] | Selector[Any]) -> None:
        self._ledger, self._settings = ledger, settings
        self._scheme, self._needs = policy.name, policy.needs

    def unmeasured(self, reachable: BoolArray) -> IntArray:
        """Return the rows for a full warm-up: reachable clients that lack a needed fact and were never asked."""
        if self._settings.warmup != "full":
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(reachable & ~self._ledger.known(self._needs) & ~self._ledger.columns["asked"])

    def newcomers(self, unknown: BoolArray, step: int, *, needed: bool = False) -> IntArray:
        """Return random rows of the clients in the mask `unknown`, at most `warmup_quota`, for a lazy warm-up.

        A client with f failures is considered with probability 2^-f, so that a dead client is not asked in every
        round. With `needed`, the result is empty only if `unknown` is.
        """
        rows = np.flatnonzero(unknown)
        if not rows.size:
            return rows
        rng = stream(self._settings.seed, "newcomers", step)
        patient = rows[rng.random(rows.size) < 0.5 ** self._ledger.columns["failures"][rows]]
        if not patient.size:
            if not needed:
                return patient
            patient = rows
        return np.sort(rng.choice(patient, size=min(self._settings.warmup_quota, patient.size), replace=False))

    def quorum(self, clients: int) -> int:
        """Return how many answers end a warm-up of this many clients; with sums, enough for a first cohort."""
        quorum = math.ceil(self._settings.warmup_wait * clients)
        return min(clients, max(quorum, self._settings.minimum)) if self._settings.aggregation == "sums" else quorum

    def first_round(self, rows: IntArray) -> Move:
        """Return the move of a warm-up that is also the first round: all these clients train, and a quorum suffices."""
        status = (
            f"warm-up: {self._scheme} knows too little of {rows.size} clients; all train, and those count that answer "
            "first"
        )
        return self._training(rows, Wait(self.quorum(rows.size)), status, "warm-up")

    def stand_in(self, rows: IntArray) -> Move:
        """Return the move that stands in for the policy's while it knows too little of every client."""
        return self._training(
            rows, Wait(), f"lazy warm-up: {self._scheme} knows too little of every client", "never seen"
        )

    def _training(self, rows: IntArray, wait: Wait, status: str, reason: str) -> Move:
        why = Diagnostics(status=status, reasons=dict.fromkeys(rows.tolist(), reason))
        return Move(rows, shares_among(self._ledger.shares(), rows), wait=wait, why=why)
