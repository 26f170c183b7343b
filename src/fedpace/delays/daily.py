"""Clients by the hour: charging at night, in time zones. Ours, with one figure from a fleet in production.

A phone takes part while it is idle, charging and on Wi-Fi, which mostly is at night. Bonawitz et al., "Towards
Federated Learning at Scale: System Design" (MLSys 2019), see four times as many of them at the peak of a day as at its
trough, for a population that is centred on the US. With its defaults this model has 3.95 times as many, over four time
zones: `by_day` was set to meet that figure. All others are plausible and no measurements; no trace of real phones is to
be had that could be shipped.

Other than the absences of `availability.py`, which count in rounds, these go by the clock: under one seed all schemes
meet the same days, but who is faster meets less of them. A client that leaves while it trains still answers: its
`crash` is drawn apart.
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
"""Seconds from one look at an empty fleet to the next."""
LONGEST = 14 * DAY * HOUR
"""Seconds without a single client after which the configuration is taken to be wrong."""
DRAWS_KEPT = 64
"""Nights and hours whose draws are kept in mind."""


@runtime_checkable
class TimedAvailability(Protocol):
    """Who is there at which second."""

    def available_at(self, seconds: float) -> BoolArray:
        """(n,) True where the client may be chosen at that time."""
        ...

    def back_at(self, seconds: float) -> float:
        """Return when somebody is there: `seconds` itself, or the first time after it."""
        ...

    def crashes(self, step: int) -> BoolArray:
        """(n,) True where the client, if chosen in round `step`, never answers."""
        ...


@dataclass(frozen=True, eq=False)
class DailyModel:
    """The days of some clients. Hours are counted from midnight before the run begins."""

    hours: FloatArray
    """(n,) how long each client's nights are."""
    plugs_in: FloatArray
    """(n,) when they begin on the mean, by the clock of the first zone."""
    nights: float
    """Standard deviation of that from night to night."""
    by_day: FloatArray
    """(n,) probability of being there in an hour outside of them."""
    starts: float
    """Hour of the day, in the first zone, at which second 0 is."""
    crash: float
    seed: int

    def __post_init__(self) -> None:
        """Keep draws in mind: a day is asked for many times."""
        object.__setattr__(self, "_drawn", {})

    def available_at(self, seconds: float) -> BoolArray:
        """(n,) True where the client is in one of its nights, or there by chance."""
        number(seconds, "seconds", low=0.0)
        hour = self.starts + seconds / HOUR
        since = (hour - self.plugs_in) / DAY
        present = self._draw("hour", math.floor(hour)) < self.by_day
        # A night may begin hours before or after its mean, so neighbours of the one that is due are looked at too.
        for night in range(math.floor(since.min()) - 1, math.floor(since.max()) + 2):
            into = hour - self.plugs_in - DAY * night - self.nights * self._draw("night", night)
            present |= (into >= 0) & (into < self.hours)
        present.setflags(write=False)
        return present

    def back_at(self, seconds: float) -> float:
        """Return when somebody is there, to ten minutes."""
        for look in range(int(LONGEST / LOOK)):
            if self.available_at(seconds + look * LOOK).any():
                return seconds + look * LOOK
        raise InfeasibleError(
            "no client is available for two weeks on end: raise `hours` or `by_day` of [availability]"
        )

    def crashes(self, step: int) -> BoolArray:
        """(n,) True where the client, if chosen, never answers."""
        uniform = stream(self.seed, "availability", "crash", step_of(step)).random(self.hours.size)
        crashed: BoolArray = np.asarray(uniform < self.crash)
        crashed.setflags(write=False)
        return crashed

    def _draw(self, what: str, place: int) -> FloatArray:
        """(n,) uniform draws of an hour, or normal ones of a night."""
        drawn: dict[tuple[str, int], FloatArray] = getattr(self, "_drawn")  # noqa: B009 - a frozen class sets it by name
        if (what, place) not in drawn:
            if len(drawn) >= DRAWS_KEPT:
                del drawn[next(iter(drawn))]
            rng = stream(self.seed, "availability", what, place)
            size = self.hours.size
            drawn[what, place] = frozen(rng.random(size) if what == "hour" else rng.standard_normal(size))
        return drawn[what, place]
