"""What is said of clients, their choice and their answers, by hosts, the coordinator and selectors.

Selectors speak of rows (Cohort, Probe), hosts of their own client ids (Selection, ProbeRequest, Outcome).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace._base.names import shown
from fedpace.core.freezing import freeze

ClientId = Hashable
"""The host's name of a client: anything hashable."""

Mode = Literal["average", "delta"]
"""`average`: x <- sum a_i x_i. `delta`: x <- x + sum a_i (x_i - x), which importance weights need."""


Table = tuple[tuple[float | int | None, ...], ...]
"""Rows of numbers."""


class Need(StrEnum):
    """What a selector must be told about each client before it can choose it."""

    DELAY = "delays"
    LOSS = "losses"
    LABELS = "label histograms"
    UPDATE = "update sketches"
    MOMENT = "feature moments"
    TARGETS = "targets in the moments"
    """Moments of [features; targets] together, where the host can: see `fedpace.moments.factor`."""


def _freeze_rows(instance: Cohort | Probe) -> None:
    """Freeze `clients`. A mask or fractions would become rows without a word, and other clients than were meant."""
    rows = np.asarray(instance.clients)
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"clients must be rows, whole numbers, but an array of {rows.dtype} came")
    freeze(instance)


@dataclass(frozen=True)
class Diagnostics:
    """Why a cohort was chosen: recorded with the round and shown to the user."""

    objective: float | None = None
    """What the scheme minimised or maximised, at the chosen cohort."""
    predicted_seconds: float | None = None
    """The round time that the scheme expects."""
    status: str = "ok"
    """How the solver ended, in words."""
    facts: Mapping[str, float | int | str | bool | Table | None] = field(default_factory=dict)
    """Scheme-specific scalars, such as B_S and the rescaling constant, or a small table of them."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row -> why this client is in (or out)."""

    def __post_init__(self) -> None:
        """Take private copies of the mappings."""
        object.__setattr__(self, "facts", dict(self.facts))
        object.__setattr__(self, "reasons", dict(self.reasons))


@dataclass(frozen=True, eq=False)
class Cohort:
    """What a selector answers: who trains, and what each counts for."""

    clients: IntArray
    """(k,) unique rows."""
    weights: FloatArray
    """(k,) what the aggregation uses."""
    mode: Mode = "average"
    deadline: float = math.inf
    """Seconds to wait for the cohort."""
    why: Diagnostics = field(default_factory=Diagnostics)
    quorum: int = 0
    """Over-commitment: the round ends when this many have finished, and the others count as late; 0 = all."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze_rows(self)


ProbeKind = Literal["loss", "gradient"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Clients to ask for a loss or a gradient before choosing."""

    clients: IntArray
    """(q,) unique rows."""
    kind: ProbeKind = "loss"
    samples: int = 0
    """Samples of the client's data to answer from, drawn uniformly; 0 = all. A host that cannot cut may use all."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        _freeze_rows(self)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One client's answer, as the host hands it to `Session.observe` or `Session.observe_late`."""

    client: ClientId
    seconds: float = math.nan
    finished: bool = True
    loss: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    """Factor F (r x d) of the second moment F'F of the client's features, or of features and targets together."""
    update: FloatArray | None = None
    """Sketch of the update; every client of a session uses the same projection."""
    measured: float = math.nan
    """Seconds from sending the task to seeing its answer by the server's own clock, where `seconds` is a claim: it
    then counts for no less than this, less a transfer allowance (`fedpace.trust`)."""
    late: bool = False
    """It was asked in a warm-up that ended without it: `Session.observe_late` will report it."""

    def __post_init__(self) -> None:
        """Refuse arrays of Python objects: they could be used, but not saved."""
        for what, value in (("moment", self.moment), ("update", self.update)):
            if value is not None and _holds_objects(value):
                raise InputError(
                    f"the {what} of client {shown(self.client)} must be an array of numbers, but one of Python objects "
                    "came: make it with np.asarray(values, dtype=float)"
                )


def _holds_objects(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "O")
    try:
        return bool(np.asarray(value).dtype.kind == "O")
    except (TypeError, ValueError, OverflowError):
        return False  # rows of different lengths, say: `Session.observe` says what is wrong with it


@dataclass(frozen=True, eq=False)
class Selection:
    """A Cohort in the host's own client ids: what `Session.select` returns."""

    step: int
    """Number of this selection; a warm-up carries the step of the selection it prepares."""
    clients: tuple[ClientId, ...]
    weights: FloatArray
    mode: Mode
    deadline: float
    why: Diagnostics
    warmup: bool = False
    """True: train and report as usual, but leave the shared model as it is."""
    quorum: int = 0
    """The round ends when this many have finished; 0 = all."""
    newcomers: int = 0
    """The last so many of `clients` are new to the scheme: they report, and weigh 0."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        freeze(self)


@dataclass(frozen=True)
class ProbeRequest:
    """A Probe in the host's own client ids: what `Session.probe` returns."""

    step: int
    clients: tuple[ClientId, ...]
    kind: ProbeKind
    samples: int = 0
