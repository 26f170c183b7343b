"""The virtual clock: the current time, the available clients, and the delay of each client.

Nothing here depends on training, so a recorded run can be timed again under other delays (`reclock.py`).
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
"""Rounds in a row without an available client after which the simulator reports a configuration error."""

TURNS = 256
"""Draws of delays and crashes kept in memory for asynchronous schemes, in which fast clients are ahead of slow ones."""


@dataclass(frozen=True)
class Clock:
    """What costs virtual time besides training rounds.

    By default warm-up and probes are free, as in the paper's tables: its full warm-up rounds take longer than some of
    its totals.

    Args:
        charge_warmup: whether rounds that only measure take virtual time.
        probe_fraction: time to answer a probe, as a fraction of the client's delay in that round; 0 = free.
        deadline: seconds after which the server continues without the missing clients, under every scheme.
    """

    charge_warmup: bool = False
    probe_fraction: float = 0.0
    deadline: float = math.inf

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        at_least(self.probe_fraction, 0, "probe_fraction of clock")
        finite(self.probe_fraction, "probe_fraction of clock")
        above(self.deadline, 0, "deadline of clock")


class VirtualTime:
    """The clock of one run: the current time, the available clients, and their delays.

    A tick numbers the draws of delays and absences. A tick without any available client passes without a round, so
    ticks may run ahead of rounds.
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
        """Ticks without any available client."""
        self._turns: dict[int, tuple[FloatArray, BoolArray]] = {}

    @property
    def expected(self) -> FloatArray:
        """Mean delay of each client in seconds."""
        return checks.delays(self.delays.expected(), count=self.clients)

    def wait(self, step: int) -> tuple[int, IntArray]:
        """Return the tick of selection `step` and the available clients; while there are none, advance the clock.

        If absences are counted in rounds, each round without clients takes the median of the expected delays. If
        absences follow the clock, the clock advances until a client is back.
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
        """Return the delay of every client at `tick` in seconds."""
        return checks.delays(self.delays.draw(tick), count=self.clients)

    def own(self, client: int, turn: int) -> tuple[float, bool]:
        """Return the delay of one client in its own turn number `turn`, and whether it crashes in that turn."""
        if turn not in self._turns:
            if len(self._turns) >= TURNS:
                del self._turns[next(iter(self._turns))]
            self._turns[turn] = self.drawn(turn), self.availability.crashes(turn)
        seconds, crashes = self._turns[turn]
        return float(seconds[client]), bool(crashes[client])
