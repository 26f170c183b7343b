"""The warm-up: which clients without the needed facts measure next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpace._base.checks import BoolArray, IntArray
from fedpace._base.rng import stream

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator


def full_batch(coordinator: Coordinator, reachable: BoolArray) -> IntArray:
    """Return the rows for a full warm-up: reachable clients that lack a needed fact and were never asked."""
    if coordinator.settings.warmup != "full":
        return np.zeros(0, dtype=np.int64)
    ledger = coordinator.ledger
    return np.flatnonzero(reachable & ~ledger.known(coordinator.policy.needs) & ~ledger.columns["asked"])


def lazy_batch(coordinator: Coordinator, unknown: BoolArray, *, needed: bool = False) -> IntArray:
    """Return random rows of the clients in the mask `unknown`, at most `warmup_quota`.

    A client with f failures is considered with probability 2^-f, so that a dead client is not asked in every round.
    With `needed`, the result is empty only if `unknown` is.
    """
    rows = np.flatnonzero(unknown)
    if not rows.size:
        return rows
    rng = stream(coordinator.settings.seed, "newcomers", coordinator.step)
    failures = coordinator.ledger.columns["failures"][rows]
    patient = rows[rng.random(rows.size) < 0.5**failures]
    if not patient.size:
        if not needed:
            return patient
        patient = rows
    count = min(coordinator.settings.warmup_quota, patient.size)
    return np.sort(rng.choice(patient, size=count, replace=False))
