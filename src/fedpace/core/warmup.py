"""Which clients a policy meets next, of those that it knows too little of: rules without state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpace._base.checks import BoolArray, IntArray
from fedpace._base.rng import stream

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator


def full_batch(coordinator: Coordinator, reachable: BoolArray) -> IntArray:
    """Return the rows that a full warm-up asks now, all at once: those never asked before."""
    if coordinator.settings.warmup != "full":
        return np.zeros(0, dtype=np.int64)
    ledger = coordinator.ledger
    return np.flatnonzero(reachable & ~ledger.known(coordinator.policy.needs) & ~ledger.columns["asked"])


def lazy_batch(coordinator: Coordinator, unknown: BoolArray, *, needed: bool = False) -> IntArray:
    """Return some rows of those `unknown`, at most the quota.

    Who failed f times is tried again with probability 2^-f: one dead client must not be asked in every round. Where
    the policy knows nobody, somebody is `needed`.
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
