"""Virtual time: a synchronous round lasts as long as the slowest client that is waited for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray, above, at_least, finite


@dataclass(frozen=True)
class Clock:
    """What is charged to the clock beside the rounds themselves.

    The paper's tables charge neither (its full warm-up rounds take longer than some of its totals), so both are off.

    Args:
        charge_warmup: whether the rounds that only measure count.
        probe_fraction: what answering a probe costs, as a fraction of the client's delay in that round; 0 = free.
        deadline: seconds after which the server goes on without those that are missing, whatever the scheme says.
    """

    charge_warmup: bool = False
    probe_fraction: float = 0.0
    deadline: float = math.inf

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.probe_fraction, 0, "probe_fraction of clock")
        finite(self.probe_fraction, "probe_fraction of clock")
        above(self.deadline, 0, "deadline of clock")

    def warmup_seconds(self, drawn: FloatArray) -> float:
        """Return what a warm-up with these delays costs."""
        return float(drawn.max()) if self.charge_warmup else 0.0

    def probe_seconds(self, drawn: FloatArray) -> float:
        """Return what asking clients with these delays costs."""
        return self.probe_fraction * float(drawn.max())


@dataclass(frozen=True, eq=False)
class RoundTiming:
    """Who made it, how long the server waited, and how long each client was waited for."""

    finished: BoolArray
    seconds: float
    observed: FloatArray
    """Seconds of those that finished; for the late, how long they were waited for; NaN for crashes."""


def settle(
    drawn: FloatArray, deadline: float = math.inf, *, crashed: BoolArray | None = None, enough: int = 0
) -> RoundTiming:
    """Wait for everybody, for `enough` of them, or until the deadline: who is not there by then has failed.

    A crash is noticed when the client would have answered (its connection breaks), and says nothing about its speed.
    """
    down = np.zeros(drawn.size, dtype=np.bool_) if crashed is None else crashed
    end = min(deadline, float(drawn.max()))
    answers = np.sort(drawn[~down])
    if 0 < enough <= answers.size:
        end = min(end, float(answers[enough - 1]))
    finished = (drawn <= end) & ~down
    observed = np.where(down, math.nan, np.minimum(drawn, end))
    return RoundTiming(finished, end, observed)
