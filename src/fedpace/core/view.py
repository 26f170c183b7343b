"""View, the input of a selector's choice, and Report, its feedback afterwards. Row i is one client in every array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, frozen
from fedpace.core.freezing import freeze
from fedpace.core.protocols import Moments


@dataclass(frozen=True, eq=False)
class InFlight:
    """Some tasks of the policy, one entry per task in order of their start; a client may have several."""

    ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows of the clients."""
    began: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Start of each task in seconds, on the same clock as `View.now`."""
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Version of the model that each task started from; `View.step` minus this is the staleness."""
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Weight that the policy planned for each task at its start."""
    tell: Callable[[], FloatArray | None] | None = None
    """Function behind `updates`."""

    def updates(self) -> FloatArray | None:
        """Return the update sketches, one row per task (NaN = not reported), or None if there are none.

        Only answers in hand have sketches. Call it only when you need them: it makes a simulator train the tasks.
        """
        return None if self.tell is None else self.tell()

    def __len__(self) -> int:
        """Number of tasks."""
        return int(self.ids.size)


_NOTHING = InFlight()


@dataclass(frozen=True, eq=False)
class View:
    """All facts that a selector may use. Row i is the same client in every array.

    Available clients have every fact in the selector's `needs`; other rows may hold NaN.
    """

    step: int
    """Steps made so far, which is the current version of the model."""
    now: float
    """Current time in seconds, virtual or real."""
    available: BoolArray
    """(n,) True for clients that can be chosen now."""
    share: FloatArray
    """(n,) weight of each client in the objective; sums to 1."""
    delay: FloatArray
    """(n,) estimated seconds per round; NaN = unknown."""
    loss: FloatArray
    """(n,) last reported loss; NaN = never reported."""
    loss_step: IntArray
    """(n,) version of the model that `loss` belongs to; -1 = never reported."""
    participations: IntArray
    """(n,) number of tasks that the client finished, warm-ups included."""
    samples: FloatArray | None = None
    """(n,) number of samples that the client holds, also if `share` does not depend on it; NaN = unknown."""
    labels: FloatArray | None = None
    """(n, c) label histograms."""
    updates: FloatArray | None = None
    """(n, r) sketch of each client's last update; rows of NaN = never reported. None = no client has reported one."""
    update_step: IntArray | None = None
    """(n,) version of the model that `updates` belong to; -1 = never reported. None if `updates` is None."""
    moments: Moments | None = None
    in_flight: InFlight = _NOTHING
    """Tasks without an answer so far. Clients with such a task are not available."""
    in_hand: InFlight = _NOTHING
    """Tasks with an answer that no step has used yet."""
    failed: InFlight = _NOTHING
    """Tasks that failed since the last step. Their clients can be chosen again."""
    accumulated: Mapping[str, FloatArray] = field(default_factory=dict)
    """Name -> values of each accumulator that the scheme lists in `accumulates`."""

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
        """Rows of the available clients, ascending."""
        return np.flatnonzero(self.available)


@dataclass(frozen=True, eq=False)
class Report:
    """The results of a step for a selector: one entry per task that was applied, failed or given up."""

    step: int
    """Number of the selection, counted from 0: the version of the model before this step."""
    now: float
    clients: IntArray
    """(k,) rows."""
    finished: BoolArray
    """(k,) False = the client failed, dropped out or was late."""
    seconds: FloatArray
    """(k,) seconds that the client took; for a failed client, how long the server waited. NaN = unknown."""
    loss: FloatArray
    """(k,) training loss at the received model; NaN = not reported."""
    samples: FloatArray
    """(k,) number of samples; NaN = not reported."""
    weights: FloatArray
    """(k,) weights: from the cohort in rounds, from the step for other policies."""
    updates: FloatArray | None = None
    """(k, r) sketches of the updates; rows of NaN = not reported."""
    step_facts: Mapping[str, float] = field(default_factory=dict)
    """Name -> number that the server step measured."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)
