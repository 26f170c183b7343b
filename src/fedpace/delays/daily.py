"""Availability by the hour: clients charge at night, in time zones. Ours, calibrated to one published figure.

A phone takes part while it is idle, charging and on Wi-Fi, which is mostly at night. Bonawitz et al., "Towards
Federated Learning at Scale: System Design" (MLSys 2019), report four times as many available phones at the daily peak
as at the trough, for a population centred on the US. With its defaults, this model has a ratio of 3.95 over four time
zones; `by_day` was set to match that figure. All other defaults are plausible values, not measurements: we know of no
trace of real phones that we could ship.

Unlike the absences in `availability.py`, which count in rounds, these follow the clock. Under one seed, all schemes
meet the same days, but faster schemes meet fewer of them. A client that becomes unavailable during training still
answers; `crash` is drawn separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, frozen
from fedpace._base.errors import InfeasibleError
from fedpace._base.rng import stream
from fedpace.delays.base import number, step_of

HOUR, DAY = 3600.0, 24
LOOK = 600.0
"""Seconds between two checks of an empty fleet."""
LONGEST = 14 * DAY * HOUR
"""Seconds without any available client after which the configuration counts as wrong."""
DRAWS_KEPT = 64
"""Number of nights and hours whose draws are cached."""


@runtime_checkable
class TimedAvailability(Protocol):
    """Which clients are available at a given second."""

    def available_at(self, seconds: float) -> BoolArray:
        """(n,) True for clients that may be chosen at that time."""
        ...

    def back_at(self, seconds: float) -> float:
        """Return the first time, from `seconds` on, at which a client is available."""
        ...

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        ...


@dataclass(frozen=True, eq=False)
class DailyModel:
    """Availability by the clock. Hours are counted from the midnight before the run begins."""

    hours: FloatArray
    """(n,) length of each client's nights."""
    plugs_in: FloatArray
    """(n,) mean hour at which each client's nights begin, by the clock of the first zone."""
    nights: float
    """Standard deviation of that hour from night to night."""
    by_day: FloatArray
    """(n,) probability that the client is available in an hour outside its nights."""
    starts: float
    """Hour of the day in the first zone at second 0."""
    crash: float
    seed: int

    def __post_init__(self) -> None:
        """Create the cache of draws: each day is queried many times."""
        object.__setattr__(self, "_drawn", {})

    def available_at(self, seconds: float) -> BoolArray:
        """(n,) True for clients in one of their nights, or available by chance."""
        number(seconds, "seconds", low=0.0)
        hour = self.starts + seconds / HOUR
        since = (hour - self.plugs_in) / DAY
        present = self._draw("hour", math.floor(hour)) < self.by_day
        # A night may begin hours before or after its mean, so the neighbouring nights are checked too.
        for night in range(math.floor(since.min()) - 1, math.floor(since.max()) + 2):
            into = hour - self.plugs_in - DAY * night - self.nights * self._draw("night", night)
            present |= (into >= 0) & (into < self.hours)
        present.setflags(write=False)
        return present

    def back_at(self, seconds: float) -> float:
        """Return the first time, from `seconds` on, at which a client is available, in steps of ten minutes."""
        for look in range(int(LONGEST / LOOK)):
            if self.available_at(seconds + look * LOOK).any():
                return seconds + look * LOOK
        raise InfeasibleError(
            "no client is available for two weeks on end: raise `hours` or `by_day` of [availability]"
        )

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        uniform = stream(self.seed, "availability", "crash", step_of(step)).random(self.hours.size)
        crashed: BoolArray = np.asarray(uniform < self.crash)
        crashed.setflags(write=False)
        return crashed

    def _draw(self, what: str, place: int) -> FloatArray:
        """(n,) uniform draws for an hour, or normal draws for a night."""
        drawn: dict[tuple[str, int], FloatArray] = getattr(self, "_drawn")  # noqa: B009 - a frozen class sets it by name
        if (what, place) not in drawn:
            if len(drawn) >= DRAWS_KEPT:
                del drawn[next(iter(drawn))]
            rng = stream(self.seed, "availability", what, place)
            size = self.hours.size
            drawn[what, place] = frozen(rng.random(size) if what == "hour" else rng.standard_normal(size))
        return drawn[what, place]
