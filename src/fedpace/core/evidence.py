"""What the server has seen of each client that tells whether to trust it: one row per client, and how it is saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.messages import Cohort
from fedpace.core.screening import checked_lengths

COLUMNS: dict[str, float] = {
    "timed": 0.0,  # answers whose seconds were compared, fading
    "late": 0.0,  # sum of the logarithms of seconds taken over seconds claimed, fading
    "cosines": 0.0,  # sum of the cosines of its updates with the others', fading
    "compared": 0.0,  # how many those are, fading
    "aligned": 0.0,  # sum of those cosines, each times the median of its step, where clients agree, fading
    "agreement": 0.0,  # sum of the squares of these medians, fading
    "against": 0.0,  # how often it was found to point away from the others, fading
    "turned": 0.0,  # 1 = it was found to turn its updates round
    "refused": 0.0,  # updates that were refused, fading
    "size": math.nan,  # logarithm of the trace of the moment as it was told
    "scale": 1.0,  # what the moment was multiplied by
    "shape": math.nan,  # times what its moment allows that its update is off; 0 = within, < 0 = of its last moment
}
FADING = ("timed", "late", "cosines", "compared", "aligned", "agreement", "against", "refused")
LATER = ("shape", "aligned", "agreement", "turned")
"""Columns that earlier states do not have."""
BUFFERS = "buffers/"

Evidence = tuple[dict[str, FloatArray], int, FloatArray, dict[str, FloatArray]]
"""Columns, the newest step that they came from, lengths of updates, and lengths of what models hold beside."""


def evidence_arrays(
    columns: Mapping[str, FloatArray], step: int, known: FloatArray, buffers: Mapping[str, FloatArray]
) -> dict[str, NDArray[Any]]:
    """Return evidence as it is saved."""
    named = {f"{BUFFERS}{kind}": lengths for kind, lengths in buffers.items()}
    return {**columns, **named, "fleet": np.concatenate([[step, len(known)], known.ravel()])}


def read_evidence(saved: Mapping[str, NDArray[Any]], clients: int) -> Evidence:
    """Return evidence of so many clients that was saved, by whatever version."""
    if not {"cosines", "compared"} & set(saved) and "against" in saved:  # answers in a row were counted once
        doubt = np.maximum(saved["against"] - 2, 0.0)
        saved = {**saved, "against": doubt, "cosines": np.zeros(clients), "compared": np.zeros(clients)}
    saved = {**{name: np.full(clients, COLUMNS[name]) for name in LATER}, **saved}
    if missing := {*COLUMNS, "fleet"} - set(saved):
        raise InputError(f"the saved ledger lacks {sorted(missing)} of what clients are trusted by")
    if bad := sorted(name for name, array in saved.items() if array.dtype.kind not in "fiub"):
        raise InputError(f"the saved ledger should hold numbers in {bad} of what clients are trusted by")
    columns: dict[str, FloatArray] = {}
    for name in COLUMNS:
        if saved[name].shape != (clients,):
            raise InputError(
                f"the saved ledger should hold {clients} entries of 'trust/{name}', not shape {saved[name].shape}"
            )
        columns[name] = np.array(saved[name], dtype=np.float64)
    fleet = np.array(saved["fleet"], dtype=np.float64).ravel()
    damaged = (
        fleet.size < 2 or not np.isfinite(fleet).all() or not (0 <= fleet[1] < fleet.size and fleet[1] == int(fleet[1]))
    )
    if damaged or fleet.size - 2 not in fleet[1] * np.arange(1, 4):
        raise InputError(f"the saved ledger's 'trust/fleet' is damaged: it has {fleet.size} entries")
    step, count = int(fleet[0]), int(fleet[1])
    known = fleet[2:].reshape(count, (fleet.size - 2) // count if count else 3)
    if known.shape[1] == 1:  # saved before lengths were kept by the version of the model
        known = np.concatenate([np.full((count, 1), fleet[0]), known], axis=1)
    if known.shape[1] == 2:  # and before it was known whose they are
        known = np.concatenate([known, np.full((count, 1), -1.0)], axis=1)
    kept = {name.removeprefix(BUFFERS): lengths for name, lengths in saved.items() if name.startswith(BUFFERS)}
    buffers = {kind: checked_lengths(lengths, clients) for kind, lengths in kept.items()}
    return columns, step, checked_lengths(known, clients), buffers


def corrections(
    cohort: Cohort, claimed: FloatArray, slower: FloatArray, weight: FloatArray, columns: Mapping[str, FloatArray]
) -> tuple[dict[str, Any], dict[int, str]]:
    """Return what is corrected of clients, as facts and as reasons of a decision.

    Args:
        cohort: with the reasons that there are.
        claimed: (n,) delays.
        slower: (n,) what these are multiplied by.
        weight: (n,) what clients count for.
        columns: the evidence.
    """
    scale, shape = columns["scale"], np.abs(np.nan_to_num(columns["shape"]))
    rows = np.flatnonzero((slower != 1) | (scale != 1) | (weight < 1) | (shape > 0)).tolist()
    reasons: dict[int, str] = {}
    for row in rows:
        said = [cohort.why.reasons[row]] if row in cohort.why.reasons else []
        if slower[row] != 1:
            said.append(f"claims {claimed[row]:.3g} s, and was seen to take {slower[row]:.3g} times as long")
        if scale[row] != 1:
            said.append(f"its moment is {1 / scale[row]:.3g} times as large as the median, and taken at that size")
        if shape[row] > 0:
            said.append(f"its update is not what its moment says, by {shape[row]:.2g} times what is allowed")
        if weight[row] < 1:
            said.append(f"counts for {weight[row]:.0%}: its updates were refused, or point away from the others'")
        reasons[row] = "; ".join(said)
    if not rows:
        return {}, {}
    table = tuple((row, float(slower[row]), float(scale[row]), float(weight[row])) for row in rows)
    return {"distrusted": table}, reasons
