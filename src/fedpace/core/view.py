"""What a selector is shown before it chooses, and what it is told afterwards: row i is one client in every array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, frozen
from fedpace.core.freezing import freeze
from fedpace.core.protocols import Moments


@dataclass(frozen=True, eq=False)
class InFlight:
    """Tasks of a policy's, one entry each, in the order in which they began; a client may have several."""

    ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows."""
    began: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Seconds, as `View.now`."""
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The version of the model that each was given: `View.step` minus this is how stale an answer is."""
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """What the policy meant each to count for when it began."""
    tell: Callable[[], FloatArray | None] | None = None
    """What `updates` asks."""

    def updates(self) -> FloatArray | None:
        """Return sketches of the answers' updates, one row each, NaN = not reported; None where there are none at all.

        Only answers in hand have any. Ask when they are needed, not before: a simulator trains the tasks then.
        """
        return None if self.tell is None else self.tell()

    def __len__(self) -> int:
        """How many."""
        return int(self.ids.size)


_NOTHING = InFlight()


@dataclass(frozen=True, eq=False)
class View:
    """All that a selector may know. Row i is client i in every array.

    Every row in `available` has what the selector's `needs` name; other rows may hold NaN.
    """

    step: int
    """Selections made so far."""
    now: float
    """Seconds, virtual or real."""
    available: BoolArray
    """(n,) may be chosen in this round."""
    share: FloatArray
    """(n,) weight of the client in the objective; sums to 1."""
    delay: FloatArray
    """(n,) estimated seconds for one round; NaN = never seen."""
    loss: FloatArray
    """(n,) last reported loss; NaN = never."""
    loss_step: IntArray
    """(n,) step at which `loss` was reported; -1 = never."""
    participations: IntArray
    """(n,) rounds that the client finished."""
    samples: FloatArray | None = None
    """(n,) samples that the client holds, whatever it weighs in the objective; NaN = never told."""
    labels: FloatArray | None = None
    """(n, c) label histograms."""
    updates: FloatArray | None = None
    """(n, r) sketch of each client's last update; NaN rows = never."""
    update_step: IntArray | None = None
    """(n,) step at which `updates` were reported; -1 = never. None along with them."""
    moments: Moments | None = None
    in_flight: InFlight = _NOTHING
    """Tasks that may still be answered. Who has one is not available."""
    in_hand: InFlight = _NOTHING
    """Tasks that were answered and not yet applied."""
    failed: InFlight = _NOTHING
    """Tasks that failed since the last step. Their clients are available, and may be tried again."""
    accumulated: Mapping[str, FloatArray] = field(default_factory=dict)
    """What the scheme asked to have remembered, by the names of what it `accumulates`."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)
        object.__setattr__(self, "accumulated", {name: frozen(each) for name, each in self.accumulated.items()})

    @property
    def clients(self) -> int:
        """Number of clients in the roster."""
        return int(self.available.size)

    @property
    def candidates(self) -> IntArray:
        """Rows that may be chosen, ascending."""
        return np.flatnonzero(self.available)


@dataclass(frozen=True, eq=False)
class Report:
    """The clients that settled in a round, as a selector sees them."""

    step: int
    """The selection this is about."""
    now: float
    clients: IntArray
    """(k,) rows."""
    finished: BoolArray
    """(k,) False = failed, dropped out or late."""
    seconds: FloatArray
    """(k,) observed; NaN = unknown. For a failed client: how long it was waited for."""
    loss: FloatArray
    """(k,) training loss at the received model; NaN = not reported."""
    samples: FloatArray
    """(k,) NaN = not reported."""
    weights: FloatArray
    """(k,) what the cohort gave them."""
    updates: FloatArray | None = None
    """(k, r) sketches of the updates; NaN rows = not reported."""
    step_facts: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the server step measured, by the names that it gives them."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)
