"""Virtual time: a synchronous round lasts as long as the slowest client that is waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray, at_least


@dataclass(frozen=True)
class Clock:
    """What is charged to the clock beside the rounds themselves.

    The paper's tables charge neither (its full warm-up rounds take longer than some of its totals), so both are off.

    Args:
        charge_warmup: whether the rounds that only measure count.
        probe_fraction: what answering a probe costs, as a fraction of the client's delay in that round; 0 = free.
    """

    charge_warmup: bool = False
    probe_fraction: float = 0.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        at_least(self.probe_fraction, 0, "probe_fraction of clock")

    def warmup_seconds(self, drawn: FloatArray) -> float:
        """Return what a warm-up with these delays costs."""
        return float(drawn.max()) if self.charge_warmup else 0.0

    def probe_seconds(self, drawn: FloatArray) -> float:
        """Return what asking clients with these delays costs."""
        return self.probe_fraction * float(drawn.max())


@dataclass(frozen=True, eq=False)
class RoundTiming:
    """Who made it, and how long the server waited."""

    finished: BoolArray
    seconds: float


def settle(drawn: FloatArray, deadline: float) -> RoundTiming:
    """Wait for everybody, or until the deadline: who is later than that has failed."""
    finished = drawn <= deadline
    return RoundTiming(finished, float(np.minimum(drawn, deadline).max()))
