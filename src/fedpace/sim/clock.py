"""Virtual time: a synchronous round lasts as long as the slowest client that is waited for.

Nothing here knows of training: what was trained once can be clocked many times (`reclock.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpace.core import checks
from fedpace.core.checks import BoolArray, FloatArray, IntArray, above, at_least, finite
from fedpace.core.errors import InfeasibleError
from fedpace.core.types import DelayModel
from fedpace.core.waiting import round_end
from fedpace.delays.availability import AvailabilityModel

LONGEST_WAIT = 1000
"""Rounds without a single available client after which the configuration is taken to be wrong."""


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

    def warmup_seconds(self, drawn: FloatArray, enough: int = 0) -> float:
        """Return what a warm-up with these delays costs that waits for `enough` of them; 0 = for all."""
        return round_end(drawn, enough=enough) if self.charge_warmup else 0.0

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
    end = round_end(drawn, deadline, enough=enough, answers=~down)
    finished = (drawn <= end) & ~down
    observed = np.where(down, math.nan, np.minimum(drawn, end))
    return RoundTiming(finished, end, observed)


class VirtualTime:
    """The time of one run: what it is now, who is there, and what everything that happens costs.

    A tick is a turn of the delays and absences. Turns in which nobody is there pass without a round, so ticks may run
    ahead of rounds.
    """

    def __init__(self, delays: DelayModel, availability: AvailabilityModel, clock: Clock, *, clients: int) -> None:
        self.delays = delays
        self.availability = availability
        self.clock = clock
        self.clients = clients
        self.now = 0.0
        self.skipped = 0
        """Turns in which nobody was there."""

    @property
    def expected(self) -> FloatArray:
        """Mean seconds of each client."""
        return checks.delays(self.delays.expected(), count=self.clients)

    def wait(self, step: int) -> tuple[int, IntArray]:
        """Return the tick of selection `step`, and who is there; while nobody is, time goes by at the median's pace."""
        for _ in range(LONGEST_WAIT):
            tick = step + 1 + self.skipped
            here = np.flatnonzero(self.availability.available(tick))
            if here.size:
                return tick, here
            self.skipped += 1
            self.now += float(np.median(self.expected))
        raise InfeasibleError(
            f"no client was available in {LONGEST_WAIT} rounds running: raise `on` or lower `off` of [availability]"
        )

    def warm_up(self, tick: int, clients: IntArray, *, enough: int = 0) -> tuple[FloatArray, BoolArray]:
        """Let these clients measure; return the seconds of each, and who has answered when time goes on.

        Where it is charged, `enough` of them are waited for (0 = all); where it is not, everybody is there at once.
        """
        # Turn 0 of the delays belongs to the warm-up, so that rounds meet the same draws with and without one.
        drawn = self._drawn(tick - 1)[clients]
        seconds = self.clock.warmup_seconds(drawn, enough)
        self.now += seconds
        return drawn, drawn <= seconds if self.clock.charge_warmup else np.ones(drawn.size, dtype=np.bool_)

    def probe(self, tick: int, clients: IntArray) -> None:
        """Ask these clients."""
        self.now += self.clock.probe_seconds(self._drawn(tick)[clients])

    def hold(self, tick: int, clients: IntArray, deadline: float = math.inf, *, enough: int = 0) -> RoundTiming:
        """Let these clients train; say who made it."""
        timing = settle(
            self._drawn(tick)[clients],
            min(deadline, self.clock.deadline),
            crashed=self.availability.crashes(tick)[clients],
            enough=enough,
        )
        self.now += timing.seconds
        return timing

    def _drawn(self, tick: int) -> FloatArray:
        return checks.delays(self.delays.draw(tick), count=self.clients)
