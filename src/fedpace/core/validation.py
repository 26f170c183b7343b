"""Checks that every Cohort and Probe must pass. Errors name the scheme, the client and the value."""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import IntArray, Naming
from fedpace._base.errors import InputError
from fedpace.core.types import Cohort, Probe, View

SUM_TOLERANCE = 1e-9


def check_cohort(cohort: Cohort, view: View, scheme: str, name: Naming) -> None:
    """Raise InputError if a cohort has invalid clients, weights, mode, quorum or deadline."""
    _check_rows(cohort.clients, view, f"{scheme} chose", name)
    weights = cohort.weights
    if weights.shape != cohort.clients.shape:
        raise InputError(f"{scheme} chose {cohort.clients.size} clients but gave {weights.size} weights")
    if not np.isfinite(weights).all():
        at = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise InputError(f"{scheme} gave {name(int(cohort.clients[at]))} the weight {weights[at]}, which is not finite")
    if cohort.mode not in ("average", "delta"):
        raise InputError(f"{scheme} asks for the mode {cohort.mode!r}; there are 'average' and 'delta'")
    if cohort.mode == "average":
        if (weights < 0).any():
            at = int(np.argmin(weights))
            raise InputError(
                f"{scheme} gave {name(int(cohort.clients[at]))} the weight {weights[at]}: in mode 'average' weights "
                "are at least 0; use mode 'delta' for others"
            )
        if abs(float(weights.sum()) - 1.0) > SUM_TOLERANCE:
            raise InputError(
                f"{scheme} gave weights that sum to {float(weights.sum())}: in mode 'average' they sum to 1; use mode "
                "'delta' for others"
            )
    if not 0 <= cohort.quorum <= cohort.clients.size:
        raise InputError(
            f"{scheme} calls {cohort.quorum} clients a quorum, but chose {cohort.clients.size}: give 0 (all) to those"
        )
    if not cohort.deadline > 0:
        raise InputError(f"{scheme} set a deadline of {cohort.deadline} s; it must be above 0")


def check_probe(probe: Probe, view: View, scheme: str, name: Naming) -> None:
    """Raise InputError if a probe has invalid clients, kind or samples."""
    _check_rows(probe.clients, view, f"{scheme} probes", name)
    if probe.kind not in ("loss", "gradient"):
        raise InputError(f"{scheme} probes for {probe.kind!r}; there are 'loss' and 'gradient'")
    if probe.samples < 0:
        raise InputError(f"{scheme} probes {probe.samples} samples; give a number of them, or 0 for all")


def _check_rows(rows: IntArray, view: View, who: str, name: Naming) -> None:
    if rows.ndim != 1 or rows.size == 0:
        raise InputError(f"{who} nobody (an array of shape {rows.shape}): at least one client is needed")
    if rows.min() < 0 or rows.max() >= view.clients:
        bad = int(rows.min()) if rows.min() < 0 else int(rows.max())
        raise InputError(f"{who} row {bad}, but there are rows 0 to {view.clients - 1}")
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        row = int(values[np.argmax(counts)])
        raise InputError(f"{who} {name(row)} {int(counts.max())} times: add its weights and name it once")
    if not view.available[rows].all():
        row = int(rows[~view.available[rows]][0])
        raise InputError(f"{who} {name(row)}, which is not available in this round")
