"""The messages between hosts, the coordinator and selectors: cohorts, probes and the answers of clients.

Selectors name clients by rows (Cohort, Probe). Hosts name them by their own ids (Selection, ProbeRequest, Outcome).
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
"""The host's name for a client: anything hashable."""

Mode = Literal["average", "delta"]
"""How a step uses the weights a_i. `average`: x <- sum a_i x_i. `delta`: x <- x + sum a_i (x_i - x), for importance
weights, which need not sum to 1."""


Table = tuple[tuple[float | int | None, ...], ...]
"""A small table of numbers."""


class Need(StrEnum):
    """Facts about clients that a scheme can require (`needs`) or use (`uses`)."""

    DELAY = "delays"
    LOSS = "losses"
    LABELS = "label histograms"
    UPDATE = "update sketches"
    MOMENT = "feature moments"
    TARGETS = "targets in the moments"
    """Moments of features and targets together, if the host can compute them; see `fedpace.moments.factor`."""


def _freeze_rows(instance: Cohort | Probe) -> None:
    """Freeze the arrays. Raise InputError if `clients` are not integers: a mask would silently become wrong rows."""
    rows = np.asarray(instance.clients)
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"clients must be rows, whole numbers, but an array of {rows.dtype} came")
    freeze(instance)


@dataclass(frozen=True)
class Diagnostics:
    """Why the scheme chose a cohort; recorded with the round and shown to the user."""

    objective: float | None = None
    """Value of the scheme's objective at the chosen cohort."""
    predicted_seconds: float | None = None
    """The round time that the scheme expects."""
    status: str = "ok"
    """Result of the solver, in words."""
    facts: Mapping[str, float | int | str | bool | Table | None] = field(default_factory=dict)
    """Values specific to the scheme, such as B_S and the rescaling constant; scalars or small tables."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row -> why the scheme chose this client, or did not."""

    def __post_init__(self) -> None:
        """Copy the mappings."""
        object.__setattr__(self, "facts", dict(self.facts))
        object.__setattr__(self, "reasons", dict(self.reasons))


@dataclass(frozen=True, eq=False)
class Cohort:
    """A selector's choice: the clients that train, and their weights."""

    clients: IntArray
    """(k,) unique rows."""
    weights: FloatArray
    """(k,) aggregation weights."""
    mode: Mode = "average"
    deadline: float = math.inf
    """Longest wait for the cohort, in seconds."""
    why: Diagnostics = field(default_factory=Diagnostics)
    quorum: int = 0
    """For over-commitment: the round ends when this many clients have finished, and the others are late; 0 = all."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze_rows(self)


ProbeKind = Literal["loss", "gradient"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Clients that the server asks for a loss or a gradient before the scheme chooses."""

    clients: IntArray
    """(q,) unique rows."""
    kind: ProbeKind = "loss"
    samples: int = 0
    """Samples of the client's data to use, drawn uniformly; 0 = all. A host that cannot subsample may use all."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        _freeze_rows(self)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One client's answer; a host passes it to `Session.observe`, `Session.observe_late` or `Coordinator.receive`."""

    client: ClientId
    seconds: float = math.nan
    finished: bool = True
    loss: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    """Factor F (r x d) of the second moment F'F of the client's features, or of features and targets together."""
    update: FloatArray | None = None
    """Sketch of the update; all clients of a session use the same projection."""
    measured: float = math.nan
    """Seconds from sending the task to receiving the answer, by the server's clock. `seconds`, the client's claim, then
    counts as at least this minus an allowance for the transfer (`fedpace.trust`)."""
    late: bool = False
    """The warm-up ended before the client answered; the host reports it later with `Session.observe_late`."""

    def __post_init__(self) -> None:
        """Raise InputError for arrays of Python objects, which cannot be saved."""
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
        return False  # e.g. rows of different lengths: `Session.observe` raises a clear error


@dataclass(frozen=True, eq=False)
class Selection:
    """A Cohort with the host's client ids; `Session.select` returns it."""

    step: int
    """Number of this selection; a warm-up has the number of the selection that follows it."""
    clients: tuple[ClientId, ...]
    weights: FloatArray
    mode: Mode
    deadline: float
    why: Diagnostics
    warmup: bool = False
    """True = clients train and report as usual, but the shared model must not change."""
    quorum: int = 0
    """The round ends when this many clients have finished; 0 = all."""
    newcomers: int = 0
    """How many of the last entries in `clients` are new to the scheme: they report, and have weight 0."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        freeze(self)


@dataclass(frozen=True)
class ProbeRequest:
    """A Probe with the host's client ids; `Session.probe` returns it."""

    step: int
    clients: tuple[ClientId, ...]
    kind: ProbeKind
    samples: int = 0
