"""Availability of clients: on/off periods, late joiners and crashes per round, or nights by the clock. Ours.

**By rounds** (`ChurnModel`). Each round, a host asks `available(step)`, which clients a selector may choose, and
`crashes(step)`, which of the chosen clients will not answer. The answers are drawn for ALL clients and do not depend on
the selection, so that all schemes meet the same absences. By the clock, a slow scheme would meet other absences than a
fast one, and the comparison would no longer be paired. A round may have no available clients: with `late = 1.0`, round
0 is empty, and the host must wait.

**By the clock** (`DailyModel`, with `hours` above 0). A phone takes part while it is idle, charging and on Wi-Fi, which
is mostly at night. Bonawitz et al., "Towards Federated Learning at Scale: System Design" (MLSys 2019), report four
times as many available phones at the daily peak as at the trough, for a population centred on the US. With its
defaults, this model has a ratio of 3.95 over four time zones; `by_day` was set to match that figure. All other defaults
are plausible values, not measurements: we know of no trace of real phones that we could ship. Under one seed, all
schemes meet the same days, but faster schemes meet fewer of them. A client that becomes unavailable during training
still answers; `crash` is drawn separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.options import FINITE, AtLeast, Between, Options, check_option
from fedpace._base.rng import stream
from fedpace.delays.base import NonNegative, check_clients, check_step
from fedpace.delays.correlation import reorder_by

HOUR, DAY = 3600.0, 24
CHECK_SECONDS = 600.0
"""Seconds between two checks of an empty fleet."""
MAX_EMPTY_SECONDS = 14 * DAY * HOUR
"""Seconds without any available client after which the configuration counts as wrong."""
MAX_CACHED_DRAWS = 64
"""Number of nights and hours whose draws are cached."""


@runtime_checkable
class TimedAvailability(Protocol):
    """Which clients are available at a given second."""

    def available_at(self, seconds: float) -> BoolArray:
        """(n,) True for clients that may be chosen at that time."""

    def next_available_at(self, seconds: float) -> float:
        """Return the first time, from `seconds` on, at which a client is available."""

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""


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
        check_option(NonNegative, seconds, "seconds")
        hour = self.starts + seconds / HOUR
        since = (hour - self.plugs_in) / DAY
        present = self._draw("hour", math.floor(hour)) < self.by_day
        # A night may begin hours before or after its mean, so the neighbouring nights are checked too.
        for night in range(math.floor(since.min()) - 1, math.floor(since.max()) + 2):
            into = hour - self.plugs_in - DAY * night - self.nights * self._draw("night", night)
            present |= (into >= 0) & (into < self.hours)
        present.setflags(write=False)
        return present

    def next_available_at(self, seconds: float) -> float:
        """Return the first time, from `seconds` on, at which a client is available, in steps of ten minutes."""
        for look in range(int(MAX_EMPTY_SECONDS / CHECK_SECONDS)):
            if self.available_at(seconds + look * CHECK_SECONDS).any():
                return seconds + look * CHECK_SECONDS
        raise InfeasibleError(
            "no client is available for two weeks on end: raise `hours` or `by_day` of [availability]"
        )

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        uniform = stream(self.seed, "availability", "crash", check_step(step)).random(self.hours.size)
        crashed: BoolArray = np.asarray(uniform < self.crash)
        crashed.setflags(write=False)
        return crashed

    def _draw(self, what: str, place: int) -> FloatArray:
        """(n,) uniform draws for an hour, or normal draws for a night."""
        drawn: dict[tuple[str, int], FloatArray] = getattr(self, "_drawn")  # noqa: B009 - a frozen class sets it by name
        if (what, place) not in drawn:
            if len(drawn) >= MAX_CACHED_DRAWS:
                del drawn[next(iter(drawn))]
            rng = stream(self.seed, "availability", what, place)
            size = self.hours.size
            drawn[what, place] = frozen(rng.random(size) if what == "hour" else rng.standard_normal(size))
        return drawn[what, place]


@runtime_checkable
class AvailabilityModel(Protocol):
    """Which clients are available per round. `TraceModel` also implements it."""

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that may be chosen in round `step`."""

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""


class ChurnModel:
    """On/off periods, join rounds and crashes; the arrays are read-only, and the same for the same step."""

    def __init__(self, on: FloatArray, off: FloatArray, phase: FloatArray, joins: IntArray, crash: float, seed: int):
        """Store each client's rounds on and off, its phase in this period, and the round in which it joins."""
        self._on, self._period, self._phase = on, on + off, phase
        self._joins, self._crash, self._seed = joins, crash, seed
        self._always = not (off.any() or joins.any())

    def available(self, step: int) -> BoolArray:
        """(n,) True for clients that have joined and are in an on period."""
        step = check_step(step)
        if self._always:
            return _read_only(np.ones(self._joins.size, dtype=np.bool_))
        present = (step + self._phase) % self._period < self._on
        return _read_only(present & (step >= self._joins))

    def crashes(self, step: int) -> BoolArray:
        """(n,) True for clients that never answer if chosen in round `step`."""
        step = check_step(step)
        if not self._crash:
            return _read_only(np.zeros(self._joins.size, dtype=np.bool_))
        uniform = stream(self._seed, "availability", "crash", step).random(self._joins.size)
        return _read_only(uniform < self._crash)


Share = Annotated[float, Between(0, 1)]
Hour = Annotated[float, Between(0, 24)]


@dataclass(frozen=True)
class Availability(Options):
    """Options of availability; by default, all clients are always available. The fields are the options."""

    options_of: ClassVar[str] = "availability"

    on: Annotated[float, AtLeast(1), FINITE] = 1.0
    """Mean rounds per on period."""
    off: NonNegative = 0.0
    """Mean rounds per off period; 0 = never away."""
    spread: Annotated[float, Between(0, 0.9)] = 0.5
    """Each client's periods lie within this fraction of the means; 0 = equal periods, but still at different phases."""
    crash: Share = 0.0
    """Probability that a chosen client does not answer in a round."""
    late: Share = 0.0
    """Fraction of clients that join late."""
    join_by: Annotated[int, AtLeast(1)] = 50
    """Round by which late clients have joined, at random rounds in 1 .. join_by."""
    hours: Hour = 0.0
    """Mean hours per night that a client is available and charging; 0 = no nights, `on` and `off` count rounds."""
    plugs_in: Hour = 23.0
    """Mean hour at which nights begin, by the client's local clock."""
    habits: Annotated[float, Between(0, 12)] = 1.5
    """Standard deviation between clients of the hour at which nights begin; `spread` does the same for their length."""
    nights: Annotated[float, Between(0, 6)] = 0.5
    """Standard deviation between nights of one client of the hour at which they begin."""
    zones: Annotated[int, Between(1, 24)] = 4
    """Number of time zones, one hour apart; clients are spread evenly over them."""
    by_day: Share = 0.24
    """Probability that a client is available in an hour outside its nights."""
    starts: Hour = 12.0
    """Hour of the day in the first zone at which the run begins."""
    slow_away: Annotated[float, Between(-1, 1)] = 0.0
    """In [-1, 1]: how strongly slow clients tend to have short nights; negative = long nights."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.hours and (self.off or self.late):
            raise InputError("nights go by the clock, but off and late count in rounds: leave one of the two out")
        if self.slow_away and not self.hours:
            raise InputError("slow_away is about the length of nights: set hours too, such as hours = 8.0")

    def build(self, clients: int, *, seed: int, delays: ArrayLike | None = None) -> ChurnModel | DailyModel:
        """Return the availability of `clients` clients; the first clients do not depend on how many follow.

        `slow_away` needs `delays`, which show the slow clients.
        """
        clients = check_clients(clients)
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
