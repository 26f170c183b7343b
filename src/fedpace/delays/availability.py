"""Who is there, and who drops out: on/off periods, late joiners and crashes by rounds, or nights by the clock. Ours.

A host asks two questions each round: `available(step)`, whom a selector may choose, and `crashes(step)`, who of those
chosen will not come back. Like the delays, the answers are drawn for ALL clients and do not depend on who is chosen,
so that schemes are compared on the same absences. Time is counted in rounds, not seconds: by the clock, a slow scheme
would meet other absences than a fast one, and the comparison would no longer be paired.

With `hours` above 0 clients are there at night instead, by the clock (`daily.py` says what that is calibrated to).

Nobody promises that someone is there: with `late = 1.0` round 0 is empty, and the host has to wait.
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
    """Who is there, round by round. `TraceModel` is one too."""

    def available(self, step: int) -> BoolArray:
        """(n,) True where the client may be chosen in round `step`."""
        ...

    def crashes(self, step: int) -> BoolArray:
        """(n,) True where the client, if chosen in round `step`, never answers."""
        ...


class ChurnModel:
    """The absences of some clients: read-only answers, the same for the same step."""

    def __init__(self, on: FloatArray, off: FloatArray, phase: FloatArray, joins: IntArray, crash: float, seed: int):
        """Take each client's rounds on and off, where in its period it starts, and the round it joins in."""
        self._on, self._period, self._phase = on, on + off, phase
        self._joins, self._crash, self._seed = joins, crash, seed
        self._always = not (off.any() or joins.any())

    def available(self, step: int) -> BoolArray:
        """(n,) True where the client has joined and is in an on period."""
        step = step_of(step)
        if self._always:
            return _read_only(np.ones(self._joins.size, dtype=np.bool_))
        present = (step + self._phase) % self._period < self._on
        return _read_only(present & (step >= self._joins))

    def crashes(self, step: int) -> BoolArray:
        """(n,) True where the client, if chosen, never answers."""
        step = step_of(step)
        if not self._crash:
            return _read_only(np.zeros(self._joins.size, dtype=np.bool_))
        uniform = stream(self._seed, "availability", "crash", step).random(self._joins.size)
        return _read_only(uniform < self._crash)


@dataclass(frozen=True)
class Availability:
    """On/off periods, late joiners and crashes; the defaults are everybody, always. Fields are the options."""

    on: float = 1.0
    """Mean rounds that a client stays."""
    off: float = 0.0
    """Mean rounds that it is then away; 0 = never away."""
    spread: float = 0.5
    """Clients' own periods lie within this share of the means: 0 = all alike, which still start at different points."""
    crash: float = 0.0
    """Probability that a chosen client never answers in a round."""
    late: float = 0.0
    """Share of the clients that are not there from the start."""
    join_by: int = 50
    """Round by which the late ones have joined: evenly spread over 1 .. join_by."""
    hours: float = 0.0
    """Mean hours of a night that a client is there, charging; 0 = no nights: `on` and `off` count in rounds."""
    plugs_in: float = 23.0
    """Hour, by the client's own clock, at which nights begin on the mean."""
    habits: float = 1.5
    """Standard deviation over the clients of when their nights begin, in hours; `spread` is that of their lengths."""
    nights: float = 0.5
    """Standard deviation of the same from night to night, in hours."""
    zones: int = 4
    """Time zones, an hour apart, over which the clients are spread evenly."""
    by_day: float = 0.24
    """Probability that a client is there in an hour outside of its nights."""
    starts: float = 12.0
    """Hour of the day, in the first zone, at which the run begins."""
    slow_away: float = 0.0
    """In [-1, 1]: how strictly the slow clients are those with the shortest nights; below 0, with the longest."""

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
        """Return who is there of `clients` clients; the first ones do not depend on how many follow.

        `delays` says who is slow, for `slow_away`.
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
