"""The virtual clock: the current time, the available clients, their delays, and when each task ends.

Nothing here depends on training, so a recorded run can be timed again under other delays (`reclock.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base import checks
from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InfeasibleError
from fedpace._base.options import FINITE, Above, AtLeast, Options
from fedpace.core.tasks import Actions, Event
from fedpace.core.types import DelayModel
from fedpace.delays.availability import AvailabilityModel, TimedAvailability
from fedpace.delays.base import WorkDelays, compute_seconds

MAX_EMPTY_ROUNDS = 1000
"""Rounds in a row without an available client after which the simulator reports a configuration error."""

MAX_CACHED_DRAWS = 256
"""Draws of delays and crashes kept in memory for asynchronous schemes, in which fast clients are ahead of slow ones."""


@dataclass(frozen=True)
class Clock(Options):
    """What costs virtual time besides training rounds.

    Args:
        charge_warmup: whether the warm-up takes virtual time. False = it is free, as in the paper's tables: its full
            warm-up rounds take longer than some of its totals.
        probe_fraction: time to answer a probe, as a fraction of the client's delay in that round; 0 = free.
        deadline: seconds after which the server continues without the missing clients, under every scheme.
    """

    options_of: ClassVar[str] = "clock"

    charge_warmup: bool = True
    probe_fraction: Annotated[float, AtLeast(0), FINITE] = 0.0
    deadline: Annotated[float, Above(0)] = math.inf


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
        self.transfers = 1.0
        """Factor on the part of training tasks that does not grow with the work, for larger messages."""
        self._draws: dict[int, tuple[FloatArray, BoolArray]] = {}
        self._compute: dict[int, FloatArray] = {}

    @property
    def expected(self) -> FloatArray:
        """Mean delay of each client in seconds."""
        return checks.delays(self.delays.expected(), count=self.clients)

    @property
    def expected_compute(self) -> FloatArray | None:
        """The part of the mean delays that grows with the work of a task; None if the delay model does not say it."""
        return self.delays.expected_compute() if isinstance(self.delays, WorkDelays) else None

    def wait_for_clients(self, step: int) -> tuple[int, IntArray]:
        """Return the tick of selection `step` and the available clients; while there are none, advance the clock.

        If absences are counted in rounds, each round without clients takes the median of the expected delays. If
        absences follow the clock, the clock advances until a client is back.
        """
        if isinstance(self.availability, TimedAvailability):
            self.now = self.availability.next_available_at(self.now)
            return step + 1, np.flatnonzero(self.availability.available_at(self.now))
        for _ in range(MAX_EMPTY_ROUNDS):
            tick = step + 1 + self.skipped
            present = np.flatnonzero(self.availability.available(tick))
            if present.size:
                return tick, present
            self.skipped += 1
            self.now += float(np.median(self.expected))
        raise InfeasibleError(
            f"no client was available in {MAX_EMPTY_ROUNDS} rounds running: raise `on` or lower `off` of [availability]"
        )

    def delays_at(self, tick: int) -> FloatArray:
        """Return the delay of every client at `tick` in seconds."""
        return checks.delays(self.delays.draw(tick), count=self.clients)

    def with_work(self, seconds: float, client: int, tick: int, work: float) -> float:
        """Return the seconds of a task with this `work`, from the client's `seconds` at `tick` for work 1."""
        if work == 1 and self.transfers == 1:
            return seconds
        compute = self.compute_at(tick, client)
        return seconds + (work - 1) * compute + (self.transfers - 1) * max(0.0, seconds - compute)

    def compute_at(self, tick: int, client: int) -> float:
        """Return the part of a client's seconds at `tick` that grows with the work of a task, for work 1."""
        if tick not in self._compute:
            if len(self._compute) >= MAX_CACHED_DRAWS:
                del self._compute[next(iter(self._compute))]
            self._compute[tick] = compute_seconds(self.delays, tick)
        return float(self._compute[tick][client])

    def client_draw(self, client: int, turn: int) -> tuple[float, bool]:
        """Return the delay of one client in its own turn number `turn`, and whether it crashes in that turn."""
        if turn not in self._draws:
            if len(self._draws) >= MAX_CACHED_DRAWS:
                del self._draws[next(iter(self._draws))]
            self._draws[turn] = self.delays_at(turn), self.availability.crashes(turn)
        seconds, crashes = self._draws[turn]
        return float(seconds[client]), bool(crashes[client])


def draw_completion_times(
    due: Actions, time: VirtualTime, tick: int, *, in_rounds: bool, split: bool = False
) -> list[Event]:
    """Return the completion events of tasks that start now: each task ends after its client's delay at `tick`.

    Training tasks of asynchronous schemes use a turn per client instead of `tick`: the n-th task of a client has the
    same delay under every policy. With `split`, events also say which part of the seconds grew with the work.
    """
    clients = np.fromiter((task.client for task in due.tasks), np.int64, len(due.tasks))
    kind = due.tasks[0].kind
    if kind == "train" and not in_rounds:
        own = [time.client_draw(int(client), task.job + 1) for task, client in zip(due.tasks, clients, strict=True)]
        seconds, crashed = np.array([took for took, _ in own]), [crashes for _, crashes in own]
        ticks = [task.job + 1 for task in due.tasks]
    else:
        # Turn 0 of the delays belongs to the warm-up, so that rounds have the same delays with and without a warm-up.
        ticks = [tick - 1 if due.warmup else tick] * clients.size
        seconds = time.delays_at(ticks[0])[clients]
        safe = due.warmup or kind == "probe"
        crashed = [False] * clients.size if safe else time.availability.crashes(tick)[clients].tolist()
    work = [task.work for task in due.tasks]
    if any(amount != 1 for amount in work) or (kind == "train" and time.transfers != 1):
        each = zip(seconds.tolist(), clients.tolist(), ticks, work, strict=True)
        seconds = np.array([time.with_work(*one) for one in each])
    counted = time.clock.probe_fraction if kind == "probe" else 1.0
    if due.warmup and not time.clock.charge_warmup:
        counted = 0.0
    when = (time.now + counted * seconds).tolist()
    compute = [-1.0] * len(work)
    if split and isinstance(time.delays, WorkDelays):
        trained = zip(clients.tolist(), ticks, work, strict=True)
        compute = [amount * time.compute_at(turn, client) for client, turn, amount in trained]
    return list(map(Event, when, [task.id for task in due.tasks], seconds.tolist(), crashed, compute))
