"""`Fleet`: up to hundreds of millions of devices as counts per group, which check in by day and by night.

A device is dormant (not idle, charging and on Wi-Fi), eligible, training, or told to come back later. The devices of a
group are alike, so a count per group and state is all that is kept: memory grows with groups, not with devices.

Dormant devices become eligible at the rate `starts(hour)`, eligible ones stop being so at the rate `stops(hour)`, by
the local clock of their group. By default most devices are plugged in around 22:30 and unplugged around 7:00.
Bonawitz et al. (MLSys 2019) report four times as many participating devices at the daily peak as at the trough;
`Group.day` sets this ratio.

A device that is told to come back after a time does so when it is first eligible after it: at once, if it is eligible
then, or when it next becomes eligible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, above, at_least, between, finite, frozen, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.population.admission import DAY, Told

HOUR = 3600.0
MOST_DEVICES = 10**12
"""Devices of a group, at most; counts are whole numbers of 64 bits."""
MINUTES = 1440
"""Entries of the tables of a day."""
LONGEST_FAR = 62 * 24
"""Hours that a device can be told to stay away."""
PLUGGED_IN, UNPLUGGED = 22.5, 7.0
"""Local hours at which most devices become eligible, and cease to be."""
EVENING_SPREAD = 1.5
"""Standard deviation of both, in hours."""
NIGHT_STARTS, NIGHT_STOPS = 0.5, 0.6
"""Highest rates per hour at which dormant devices become eligible in the evening, and eligible ones stop at dawn."""
DAY_STOPS = 0.5
"""Rate per hour at which eligible devices stop during the day; a session then lasts two hours on average."""
NIGHT_BASE = 0.02
"""Rate per hour at which eligible devices stop at night."""


@dataclass(frozen=True)
class Group:
    """Devices that are alike: in speed, time zone, habits and data.

    Args:
        name: name of the group.
        devices: number of devices.
        seconds: median seconds from the start of a device's task to its answer.
        spread: standard deviation of the logarithm of these seconds.
        dropout: part of the tasks that end without an answer.
        zone: hours by which the local clock is ahead of the server's.
        day: eligible devices at the daily peak, divided by those at the trough.
        presence: multiplies the rate at which devices become eligible; below 1 for groups that are plugged in rarely.
    """

    name: str
    devices: int
    seconds: float = 120.0
    spread: float = 0.5
    dropout: float = 0.08
    zone: float = 0.0
    day: float = 4.0
    presence: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a group is named by a text that is not empty, but {self.name!r} came")
        whole(self.devices, 1, f"devices of {self.name}")
        between(self.devices, 1, MOST_DEVICES, f"devices of {self.name}")
        for option in ("seconds", "spread", "dropout", "zone", "day", "presence"):
            finite(getattr(self, option), f"{option} of {self.name}")
        above(self.seconds, 0, f"seconds of {self.name}")
        at_least(self.spread, 0, f"spread of {self.name}")
        between(self.dropout, 0, 0.95, f"dropout of {self.name}")
        at_least(self.day, 1, f"day of {self.name}")
        above(self.presence, 0, f"presence of {self.name}")


@dataclass(frozen=True, eq=False)
class Habits:
    """Rates of a group by the minute of its local day, and the part of its devices that are eligible."""

    starts: FloatArray
    """(1440,) rate per second at which a dormant device becomes eligible."""
    stops: FloatArray
    """(1440,) rate per second at which an eligible device stops being eligible."""
    eligible: FloatArray
    """(1440,) part of the devices that are eligible."""


@lru_cache(maxsize=256)
def habits(day: float, presence: float) -> Habits:
    """Return the habits whose eligible part has the ratio `day` between the peak and the trough of a day.

    The daytime rate of becoming eligible is found by bisection; a ratio of 1 means habits without day and night.
    """
    if day <= 1:
        starts = np.full(MINUTES, 0.15 * presence / HOUR)
        stops = np.full(MINUTES, 0.3 / HOUR)
        return Habits(frozen(starts), frozen(stops), frozen(starts / (starts + stops)))
    low, high = 1e-6, 5.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        found = _habits(middle, presence)
        if found.eligible.max() / found.eligible.min() > day:
            low = middle
        else:
            high = middle
    return _habits(math.sqrt(low * high), presence)


def _habits(by_day: float, presence: float) -> Habits:
    hours = np.arange(MINUTES) / 60.0
    evening, morning = _bump(hours, PLUGGED_IN), _bump(hours, UNPLUGGED)
    asleep = ((hours - PLUGGED_IN) % 24) < ((UNPLUGGED - PLUGGED_IN) % 24)
    starts = presence * (by_day + NIGHT_STARTS * evening) / HOUR
    stops = (np.where(asleep, NIGHT_BASE, DAY_STOPS) + NIGHT_STOPS * morning) / HOUR
    part = 0.3
    eligible = np.empty(MINUTES)
    for _ in range(3):  # three days from any start are enough to forget it
        for minute in range(MINUTES):
            eligible[minute] = part
            part += 60.0 * (starts[minute] * (1 - part) - stops[minute] * part)
    return Habits(frozen(starts), frozen(stops), frozen(eligible))


def _away(hours: FloatArray, centre: float) -> FloatArray:
    return (hours - centre + 12) % 24 - 12


def _bump(hours: FloatArray, centre: float) -> FloatArray:
    return np.exp(-0.5 * (_away(hours, centre) / EVENING_SPREAD) ** 2)


class Fleet:
    """The devices of all groups as counts; `check_ins` and `settle` move the clock by one tick.

    Args:
        groups: the groups.
        tick: seconds per tick.
        seed: for all draws.
        rollout: seconds over which devices first hear of the server: each draws a time in this period.
    """

    def __init__(self, groups: Sequence[Group], *, tick: float = 60.0, seed: int = 0, rollout: float = DAY) -> None:
        if not groups or len({group.name for group in groups}) != len(groups):
            raise InputError("a fleet needs at least one group, and a different name for each")
        above(tick, 0, "tick of a fleet")
        at_least(rollout, 0, "rollout of a fleet")
        self.groups = tuple(groups)
        self.tick = float(tick)
        self.now = 0.0
        self._rng = stream(seed, "fleet")
        tables = [habits(group.day, group.presence) for group in groups]
        self._starts = np.array([table.starts for table in tables])
        self._stops = np.array([table.stops for table in tables])
        self._eligible = np.array([table.eligible for table in tables])
        self._zones = np.array([round(group.zone * 60) for group in groups])
        self._each = np.arange(len(groups))
        self.devices = np.array([group.devices for group in groups], dtype=np.int64)
        self.dormant = np.zeros((2, len(groups)), dtype=np.int64)
        """Devices that check in when they next become eligible; row 0: for the first time, row 1: again."""
        self._far = np.zeros((2, len(groups), LONGEST_FAR), dtype=np.int64)
        """Devices that were told to come back in a later hour; a ring of hours."""
        self._this_hour = np.zeros((2, len(groups)), dtype=np.int64)
        """Devices of the current hour of `_far` whose time has not come yet."""
        self._hour = -1
        near = 2 + math.ceil(4 * HOUR / self.tick)
        self._near = np.zeros((len(groups), near), dtype=np.int64)
        """Devices that return within their eligible period; a ring of ticks."""
        self._position = 0
        hours = math.ceil(rollout / HOUR)
        if hours:
            self._far[0, :, :hours] = self._rng.multinomial(self.devices, np.full(hours, 1 / hours))
        else:
            here = self._part_now(self._eligible)
            now = self._rng.binomial(self.devices, here)
            self._this_hour[0] += now
            self.dormant[0] += self.devices - now

    @property
    def shares(self) -> dict[str, float]:
        """Share of each group in the population."""
        total = int(self.devices.sum())
        return {group.name: group.devices / total for group in self.groups}

    def eligible(self) -> FloatArray:
        """(groups,) part of each group's devices that are idle, charging and on Wi-Fi now."""
        return self._part_now(self._eligible)

    def check_ins(self) -> IntArray:
        """(3, groups) devices that check in during this tick, by kind of visit."""
        hour = int(self.now // HOUR)
        if hour != self._hour:
            self._hour = hour
            self._this_hour += self._far[:, :, hour % LONGEST_FAR]
            self._far[:, :, hour % LONGEST_FAR] = 0
        left = max(1.0, ((hour + 1) * HOUR - self.now) / self.tick)
        due = self._rng.binomial(self._this_hour, min(1.0, 1 / left))
        self._this_hour -= due
        come = self._rng.binomial(due, self._part_now(self._eligible))
        self.dormant += due - come
        woken = self._rng.binomial(self.dormant, -np.expm1(-self._part_now(self._starts) * self.tick))
        self.dormant -= woken
        retry = self._near[:, self._position].copy()
        self._near[:, self._position] = 0
        return np.concatenate([come + woken, retry[None]])

    def settle(
        self, told: Told, rest: FloatArray, unanswered: IntArray | None = None, retry: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Send the devices of this tick where they were told to go, and move the clock.

        Args:
            told: the answers to the check-ins; admitted devices are back after `rest`.
            rest: (groups,) mean seconds after which an admitted device comes back.
            unanswered: (groups,) devices that got no answer, because the server or their edge was dead.
            retry: window of seconds after which those try again.
        """
        self._later(told.accepted.sum(0), rest, bool(told.far_mean.any()))
        self._later(told.far, told.far_mean, True)
        if told.near.any():
            self._soon(told.near, told.near_window)
        if unanswered is not None and unanswered.any():
            self._soon(unanswered, retry)
        self.now += self.tick
        self._position = (self._position + 1) % self._near.shape[1]

    def _later(self, counts: IntArray, mean: FloatArray, spread: bool) -> None:
        """Schedule devices to come back after the hours of their windows: T/2 to 3T/2, or exactly T if not `spread`."""
        for row in np.flatnonzero(counts).tolist():
            low, high = (0.5 * mean[row], 1.5 * mean[row]) if spread else (mean[row], mean[row])
            first = int((self.now + low) // HOUR) + 1
            hours = min(max(1, int((high - low) // HOUR)), LONGEST_FAR - 2)
            drawn = self._rng.multinomial(counts[row], np.full(hours, 1 / hours))
            slots = np.minimum(first + np.arange(hours), self._hour + LONGEST_FAR - 1) % LONGEST_FAR
            np.add.at(self._far[1, row], slots, drawn)

    def _soon(self, counts: IntArray, window: tuple[float, float]) -> None:
        """Schedule devices to come back within their eligible period; those that are gone by then become dormant."""
        size = self._near.shape[1]
        first = max(1, round(window[0] / self.tick))
        last = min(max(first, round(window[1] / self.tick)), size - 1)
        ticks = np.arange(first, last + 1)
        drawn = self._rng.multinomial(counts, np.full(ticks.size, 1 / ticks.size))
        stays = np.exp(-self._part_now(self._stops)[:, None] * ticks * self.tick)
        back = self._rng.binomial(drawn, stays)
        self._near[:, (self._position + ticks) % size] += back
        self.dormant[1] += (drawn - back).sum(1)

    def _part_now(self, table: FloatArray) -> FloatArray:
        return np.asarray(table[self._each, (int(self.now // 60) + self._zones) % MINUTES])
