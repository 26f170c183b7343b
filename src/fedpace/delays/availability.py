"""Availability of clients: on/off periods, late joiners and crashes per round, or nights by the clock. Ours.

Each round, a host asks `available(step)`, which clients a selector may choose, and `crashes(step)`, which of the chosen
clients will not answer. The answers are drawn for ALL clients and do not depend on the selection, so that all schemes
meet the same absences. Time counts in rounds, not seconds. By the clock, a slow scheme would meet other absences than a
fast one, and the comparison would no longer be paired.

With `hours` above 0, clients are available at night instead, by the clock (`daily.py` describes the calibration).

A round may have no available clients: with `late = 1.0`, round 0 is empty, and the host must wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.delays.base import count_of, number, step_of
from fedpace.delays.correlation import reorder_by
from fedpace.delays.daily import DailyModel


@runtime_checkable
class AvailabilityModel(Protocol):
    """Which clients are available per round. `TraceModel` also implements it."""

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that may be chosen in round `step`."""
        ...

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        ...


class ChurnModel:
    """On/off periods, join rounds and crashes; the arrays are read-only, and the same for the same step."""

    def __init__(self, on: FloatArray, off: FloatArray, phase: FloatArray, joins: IntArray, crash: float, seed: int):
        """Store each client's rounds on and off, its phase in this period, and the round in which it joins."""
        self._on, self._period, self._phase = on, on + off, phase
        self._joins, self._crash, self._seed = joins, crash, seed
        self._always = not (off.any() or joins.any())

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that have joined and are in an on period."""
        step = step_of(step)
        if self._always:
            return _read_only(np.ones(self._joins.size, dtype=np.bool_))
        present = (step + self._phase) % self._period < self._on
        return _read_only(present & (step >= self._joins))

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        step = step_of(step)
        if not self._crash:
            return _read_only(np.zeros(self._joins.size, dtype=np.bool_))
        uniform = stream(self._seed, "availability", "crash", step).random(self._joins.size)
        return _read_only(uniform < self._crash)


@dataclass(frozen=True)
class Availability:
    """Options of availability; by default, all clients are always available. The fields are the options."""

    on: float = 1.0
    """Mean rounds per on period."""
    off: float = 0.0
    """Mean rounds per off period; 0 = never away."""
    spread: float = 0.5
    """Each client's periods lie within this fraction of the means; 0 = equal periods, but still at different phases."""
    crash: float = 0.0
    """Probability that a chosen client does not answer in a round."""
    late: float = 0.0
    """Fraction of clients that join late."""
    join_by: int = 50
    """Round by which late clients have joined, at random rounds in 1 .. join_by."""
    hours: float = 0.0
    """Mean hours per night that a client is available and charging; 0 = no nights, `on` and `off` count rounds."""
    plugs_in: float = 23.0
    """Mean hour at which nights begin, by the client's local clock."""
    habits: float = 1.5
    """Standard deviation between clients of the hour at which nights begin; `spread` does the same for their length."""
    nights: float = 0.5
    """Standard deviation between nights of one client of the hour at which they begin."""
    zones: int = 4
    """Number of time zones, one hour apart; clients are spread evenly over them."""
    by_day: float = 0.24
    """Probability that a client is available in an hour outside its nights."""
    starts: float = 12.0
    """Hour of the day in the first zone at which the run begins."""
    slow_away: float = 0.0
    """In [-1, 1]: how strongly slow clients tend to have short nights; negative = long nights."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        number(self.on, "on", low=1.0)
        number(self.off, "off", low=0.0)
        number(self.spread, "spread", low=0.0, high=0.9)
        number(self.crash, "crash", low=0.0, high=1.0)
        number(self.late, "late", low=0.0, high=1.0)
        if isinstance(self.join_by, bool) or not isinstance(self.join_by, int) or self.join_by < 1:
            raise InputError(f"join_by must be a round of at least 1, but {self.join_by!r} came")
        number(self.hours, "hours", low=0.0, high=24.0)
        number(self.plugs_in, "plugs_in", low=0.0, high=24.0)
        number(self.starts, "starts", low=0.0, high=24.0)
        number(self.habits, "habits", low=0.0, high=12.0)
        number(self.nights, "nights", low=0.0, high=6.0)
        number(self.by_day, "by_day", low=0.0, high=1.0)
        number(self.slow_away, "slow_away", low=-1.0, high=1.0)
        if isinstance(self.zones, bool) or not isinstance(self.zones, int) or not 1 <= self.zones <= 24:
            raise InputError(f"zones must be a whole number from 1 to 24, but {self.zones!r} came")
        if self.hours and (self.off or self.late):
            raise InputError("nights go by the clock, but off and late count in rounds: leave one of the two out")
        if self.slow_away and not self.hours:
            raise InputError("slow_away is about the length of nights: set hours too, such as hours = 8.0")

    def build(self, clients: int, *, seed: int, delays: ArrayLike | None = None) -> ChurnModel | DailyModel:
        """Return the availability of `clients` clients; the first clients do not depend on how many follow.

        `slow_away` needs `delays`, which show the slow clients.
        """
        clients = count_of(clients)
        if self.hours:
            return self._nights(clients, seed, delays)
        on = self.on * self._factor(clients, seed, "on")
        off = self.off * self._factor(clients, seed, "off")
        phase = (on + off) * stream(seed, "availability", "phase").random(clients)
        is_late = stream(seed, "availability", "late").random(clients) < self.late
        joins = stream(seed, "availability", "join").integers(1, self.join_by, clients, endpoint=True)
        return ChurnModel(on, off, phase, np.where(is_late, joins, 0), self.crash, seed)

    def _nights(self, clients: int, seed: int, delays: ArrayLike | None) -> DailyModel:
        hours = self.hours * self._factor(clients, seed, "hours")
        if self.slow_away:
            if delays is None:
                raise InputError("slow_away needs the clients' delays, which say who is slow")
            speed = -float_array(delays, "delays") if self.slow_away > 0 else float_array(delays, "delays")
            hours = hours[reorder_by(speed, hours, strength=abs(self.slow_away))]
        zone = stream(seed, "availability", "zone").integers(0, self.zones, clients)
        habit = self.habits * stream(seed, "availability", "habit").standard_normal(clients)
        return DailyModel(
            hours=frozen(hours),
            plugs_in=frozen(self.plugs_in + zone + habit),
            nights=self.nights,
            by_day=frozen(np.minimum(self.by_day * hours / self.hours, 1.0)),
            starts=self.starts,
            crash=self.crash,
            seed=seed,
        )

    def _factor(self, clients: int, seed: int, key: str) -> FloatArray:
        uniform = stream(seed, "availability", key).uniform(-1, 1, clients)
        return np.asarray(1 + self.spread * uniform)


def _read_only(flags: BoolArray) -> BoolArray:
    flags.setflags(write=False)
    return flags
