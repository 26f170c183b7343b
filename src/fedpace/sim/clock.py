"""Virtual time: what it is now, who is there, and how long everybody takes.

Nothing here knows of training: what was trained once can be clocked many times (`reclock.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedpace._base import checks
from fedpace._base.checks import BoolArray, FloatArray, IntArray, above, at_least, finite
from fedpace._base.errors import InfeasibleError
from fedpace.core.types import DelayModel
from fedpace.delays.availability import AvailabilityModel
from fedpace.delays.daily import TimedAvailability

LONGEST_WAIT = 1000
"""Rounds without a single available client after which the configuration is taken to be wrong."""

TURNS = 256
"""Turns that are kept in mind where clients are each in one of their own: the fast are ahead of the slow."""


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


class VirtualTime:
    """The time of one run: what it is now, who is there, and what everything that happens costs.

    A tick is a turn of the delays and absences. Turns in which nobody is there pass without a round, so ticks may run
    ahead of rounds.
    """

    def __init__(
        self, delays: DelayModel, availability: AvailabilityModel | TimedAvailability, clock: Clock, *, clients: int
    ) -> None:
        self.delays = delays
        self.availability = availability
        self.clock = clock
        self.clients = clients
        self.now = 0.0
        self.skipped = 0
        """Turns in which nobody was there."""
        self._turns: dict[int, tuple[FloatArray, BoolArray]] = {}

    @property
    def expected(self) -> FloatArray:
        """Mean seconds of each client."""
        return checks.delays(self.delays.expected(), count=self.clients)

    def wait(self, step: int) -> tuple[int, IntArray]:
        """Return the tick of selection `step`, and who is there; while nobody is, time goes by.

        Absences that count in rounds let it go by at the median's pace, and those by the clock until somebody is back.
        """
        if isinstance(self.availability, TimedAvailability):
            self.now = self.availability.back_at(self.now)
            return step + 1, np.flatnonzero(self.availability.available_at(self.now))
        for _ in range(LONGEST_WAIT):
            tick = step + 1 + self.skipped
            present = np.flatnonzero(self.availability.available(tick))
            if present.size:
                return tick, present
            self.skipped += 1
            self.now += float(np.median(self.expected))
        raise InfeasibleError(
            f"no client was available in {LONGEST_WAIT} rounds running: raise `on` or lower `off` of [availability]"
        )

    def drawn(self, tick: int) -> FloatArray:
        """Seconds of every client in this turn."""
        return checks.delays(self.delays.draw(tick), count=self.clients)

    def own(self, client: int, turn: int) -> tuple[float, bool]:
        """Seconds of one client in a turn of its own, and whether it crashes there."""
        if turn not in self._turns:
            if len(self._turns) >= TURNS:
                del self._turns[next(iter(self._turns))]
            self._turns[turn] = self.drawn(turn), self.availability.crashes(turn)
        seconds, crashes = self._turns[turn]
        return float(seconds[client]), bool(crashes[client])
