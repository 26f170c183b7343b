"""Admission: the counterpart of selection for fleets without a roster, where anonymous devices check in.

    admission = Admission(make_admission("paced"), Limits(concurrency=1000), shares={"fast": 0.7, "slow": 0.3})
    answer = admission.admit(CheckIn("slow"), now)          # Accept, or Reject with a window to come back in
    ...
    admission.answered("slow", now)                         # or admission.lost("slow", now)
    if admission.step_due(now):
        weights = admission.weigh(groups, versions)         # one weight per answer in the buffer
        ...                                                 # apply the server rule admission.server
        admission.stepped(now)

A policy says how many devices of each group may train at a time, when the model steps, and with which weights. The
state is a `GroupBook`: O(groups), not O(devices). The module does no I/O and starts no threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, above, at_least, finite, real, shortened, whole
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.server_rule import ServerRule
from fedpace.population.book import MEMORY_SECONDS, GroupBook
from fedpace.population.steering import Steering
from fedpace.server.average import Average

REFRESH_SECONDS = 1.0
"""Quotas and chances are computed anew at most this often, so that a decision costs a few comparisons."""
BURST_SECONDS = 5.0
"""Starts that were not used are kept for this long under `Limits.starts_per_second`."""
STEPS_KEPT = 0.1
"""Weight of the last step in the mean time between steps."""
VISITS = ("first", "again", "retry")
Visit = Literal["first", "again", "retry"]
"""Why a device checks in. `first`: it has never spoken to the server. `again`: it was told to come back another day.
`retry`: it was told to come back within the same eligible period."""
DAY = 86_400.0


class CheckIn(NamedTuple):
    """What a device says when it checks in."""

    group: str
    """Group of the device, such as its region and speed class."""
    idle: bool = True
    charging: bool = True
    unmetered: bool = True
    since_trained: float = math.inf
    """Seconds since the device last trained, by its own clock; infinite if it never did."""
    visit: Visit = "first"


class Accept(NamedTuple):
    """Train now."""

    group: str
    version: int
    """Version of the model to train from."""


class Reject(NamedTuple):
    """Do not train now."""

    retry_between: tuple[float, float]
    """Seconds from now: the device draws a time from this window and returns when it is first eligible after it."""
    why: str


@dataclass(frozen=True)
class Limits:
    """Limits that hold under every admission policy.

    Args:
        concurrency: most devices that train at a time.
        starts_per_second: most devices that start per second, on average; 0 = no limit.
        min_separation: seconds that must pass before a device trains again.
        retry_between: window for rejected devices where no pace steering sets one, in seconds.
        max_groups: most groups; further group names are rejected, so that memory stays bounded.
    """

    concurrency: int = 1000
    starts_per_second: float = 0.0
    min_separation: float = DAY
    retry_between: tuple[float, float] = (600.0, 1800.0)
    max_groups: int = 4096

    def __post_init__(self) -> None:
        """Raise InputError if a limit is invalid."""
        whole(self.concurrency, 1, "concurrency")
        whole(self.max_groups, 1, "max_groups")
        for name in ("starts_per_second", "min_separation"):
            finite(getattr(self, name), name)
            at_least(getattr(self, name), 0, name)
        try:
            low, high = self.retry_between
        except (TypeError, ValueError) as cause:
            raise InputError(
                f"retry_between must be two numbers of seconds, but {self.retry_between!r} came"
            ) from cause
        for value in (low, high):
            finite(value, "retry_between")
        above(low, 0, "the start of retry_between")
        if high < low:
            raise InputError(f"retry_between must end after it starts, but {self.retry_between!r} came")

    def ineligible(self, check_in: CheckIn) -> str:
        """Return why the device may not train whatever the policy says; empty = it may."""
        for name in ("idle", "charging", "unmetered"):
            if not getattr(check_in, name):
                return f"the device is not {name}" if name != "unmetered" else "the network is metered"
        if not check_in.since_trained >= self.min_separation:
            return "the device trained too recently"
        return ""


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Decides how many devices of each group train at a time, when the model steps and with which weights.

    A policy is a frozen dataclass with its options as fields. All state is in the `GroupBook`. A class that derives
    from this one needs `name`, `due` and `weigh`; the rest says: every device that checks in, while there is room.
    """

    name: ClassVar[str]

    @property
    def server(self) -> ServerRule[Any]:
        """The server rule that the policy uses by default."""
        return Average()

    @property
    def abandons(self) -> bool:
        """Whether a step ends all tasks in flight, as in synchronous rounds."""
        return False

    @property
    def averaging(self) -> float:
        """The model to use is the mean over about this part of all steps (`averaged`); 0 = the last model."""
        return 0.0

    def quotas(self, book: GroupBook, concurrency: int) -> FloatArray:
        """(groups,) most devices of each group that may train at a time; infinite = only the total counts."""
        return np.full(len(book), np.inf)

    def room(self, book: GroupBook, concurrency: int) -> int:
        """Return how many more devices may start now, over all groups."""
        return concurrency - book.training

    def chance(self, book: GroupBook, concurrency: int) -> float:
        """Return the probability with which a device that fits is admitted."""
        return 1.0

    def due(self, book: GroupBook, concurrency: int, now: float) -> bool:
        """Return whether the model should step with the answers in the buffer."""
        ...

    def weigh(self, book: GroupBook, groups: IntArray, lags: IntArray) -> FloatArray:
        """(answers,) weight of each answer, from its group and from the steps made since it was sent the model."""
        ...


def averaged(before: Any, model: Any, steps: int, part: float) -> Any:
    """Return the mean of the models over about the last `part` of all steps, from the mean before the last step.

    Devices go on training from the model itself. Shamir and Zhang, "Stochastic Gradient Descent for Non-smooth
    Optimization" (ICML 2013): such a mean forgets the start and averages out the swings around the path.
    """
    return before + (model - before) / max(1.0, part * steps)


class Told(NamedTuple):
    """What became of the check-ins of one instant, as counts per kind of visit and group."""

    accepted: IntArray
    """(3, groups) admitted devices; rows are the kinds of `Visit`."""
    near: IntArray
    """(groups,) rejected devices that return within the same eligible period."""
    far: IntArray
    """(groups,) rejected devices that return another day."""
    near_window: tuple[float, float]
    far_mean: FloatArray
    """(groups,) mean of the far windows in seconds."""


class Admission:
    """Answers check-ins; holds the policy, the limits, pace steering and the book of groups.

    Args:
        policy: the admission policy.
        limits: limits that hold under every policy.
        shares: share of each group in the population; None = learnt from the first check-ins of devices.
        steering: pace steering; None = rejected devices return in `limits.retry_between`.
        seed: for the random draws of policies and steering.
        book: the state to go on from, see `GroupBook.saved`; it replaces `shares`.
    """

    def __init__(
        self,
        policy: AdmissionPolicy,
        limits: Limits | None = None,
        *,
        shares: Mapping[str, float] | None = None,
        steering: Steering | None = None,
        seed: int = 0,
        book: GroupBook | None = None,
    ) -> None:
        if not isinstance(policy, AdmissionPolicy):
            raise InputError(f"expected an admission policy, but {shortened(policy)} came: see make_admission")
        self.policy = policy
        self.limits = limits or Limits()
        self.steering = steering
        self.book = GroupBook.of(shares) if book is None else book
        self._rng = stream(seed, "admission", self.book.version, int(self.book.admitted.sum()))
        self._refreshed = -math.inf
        self._tokens = self.limits.starts_per_second * BURST_SECONDS
        self._quotas: FloatArray = np.zeros(0)
        self._chance = 1.0
        self._near: FloatArray = np.zeros(0)
        self._far: FloatArray = np.zeros(0)

    @property
    def server(self) -> ServerRule[Any]:
        """The server rule of the policy."""
        return self.policy.server

    # -- check-ins -------------------------------------------------------------------------------------------

    def admit(self, check_in: CheckIn, now: float) -> Accept | Reject:
        """Return the answer to one check-in."""
        if not isinstance(check_in, CheckIn):
            raise InputError(f"expected a CheckIn, but {shortened(check_in)} came")
        if check_in.visit not in VISITS:
            raise InputError(f"visit must be one of {', '.join(VISITS)}, but {check_in.visit!r} came")
        if why := self.limits.ineligible(check_in):
            self._advance(now)
            wait = max(0.0, self.limits.min_separation - real(check_in.since_trained, "since_trained"))
            low, high = self.limits.retry_between
            return Reject((low + wait, high + wait), why)
        row = self.book.row(check_in.group, self.limits.max_groups)
        if row is None:
            self._advance(now)
            day = self.limits.min_separation
            return Reject((day, 2 * day or 1.0), f"the group {check_in.group!r} is not known to this server")
        self._advance(now, refresh=False)
        self._note(check_in.visit, row, 1)
        self._refresh(now)
        book = self.book
        if (
            self._total_room() > 0
            and self._quotas[row] - book.in_flight[row] >= 0.5
            and (self._chance >= 1 or self._rng.random() < self._chance)
        ):
            self._start(row, 1)
            return Accept(check_in.group, book.version)
        return self._reject(row)

    def admit_counts(self, visits: IntArray, now: float) -> Told:
        """Answer many eligible check-ins of one instant at once, given as counts; for simulators of large fleets.

        Args:
            visits: (3, groups) check-ins of the kinds `first`, `again` and `retry`.
            now: seconds.
        """
        self._advance(now, refresh=False)
        book, waiting = self.book, np.asarray(visits)
        if waiting.shape != (3, len(book)):
            raise InputError(f"expected counts of shape (3, {len(book)}), but {waiting.shape} came")
        for kind, visit in enumerate(VISITS):
            for row in np.flatnonzero(waiting[kind]).tolist():
                self._note(visit, row, int(waiting[kind, row]))
        self._refresh(now)
        wanted = waiting if self._chance >= 1 else self._rng.binomial(waiting, self._chance)
        fits = np.minimum(wanted.sum(0), np.maximum(np.floor(self._quotas - book.in_flight + 0.5), 0)).astype(np.int64)
        room = max(self._total_room(), 0)
        if fits.sum() > room:
            fits = self._rng.multivariate_hypergeometric(fits, room, method="marginals")
        accepted = np.zeros_like(waiting)
        for row in np.flatnonzero(fits).tolist():
            accepted[:, row] = self._rng.multivariate_hypergeometric(wanted[:, row], int(fits[row]), method="marginals")
            self._start(row, int(fits[row]))
        left = (waiting - accepted).sum(0)
        if self.steering is None:
            nothing = np.zeros_like(left)
            return Told(accepted, left, nothing, self.limits.retry_between, np.zeros(len(book)))
        near = self._rng.binomial(left, self._near)
        book.told_near += near / MEMORY_SECONDS
        return Told(accepted, near, left - near, self.steering.near, self._far)

    def rest(self) -> FloatArray:
        """(groups,) mean seconds after which a device that was admitted should come back; the window is as for far."""
        if self.steering is None:
            return np.full(len(self.book), self.limits.min_separation)
        return np.maximum(self.limits.min_separation, self.steering.far(self.book))

    # -- tasks -----------------------------------------------------------------------------------------------

    def answered(self, group: str, now: float) -> None:
        """Record that a device of a group has answered; the answer is in the buffer until the next step."""
        self._advance(now)
        self.book.end(self._known(group))

    def lost(self, group: str, now: float, count: int = 1) -> None:
        """Record that devices of a group dropped out."""
        self._advance(now)
        self.book.end(self._known(group), count, failed=True)

    # -- steps -----------------------------------------------------------------------------------------------

    def step_due(self, now: float) -> bool:
        """Return whether the model should step with the answers in the buffer."""
        self._advance(now)
        return bool(self.book.in_buffer.any()) and self.policy.due(self.book, self.limits.concurrency, now)

    def weigh(self, groups: Sequence[str] | IntArray, versions: Sequence[int] | IntArray) -> FloatArray:
        """(answers,) weights of the answers in the buffer.

        Args:
            groups: group of each answer, as name or as row of the book.
            versions: version of the model that each device was sent.
        """
        given = list(groups)
        rows = np.array([self._known(group) if isinstance(group, str) else group for group in given], dtype=np.int64)
        lags = self.book.version - np.asarray(versions, dtype=np.int64)
        if rows.size == 0 or rows.shape != lags.shape or (lags < 0).any():
            raise InputError(
                f"expected a group and a version up to {self.book.version} for each of at least one answer, but "
                f"{rows.size} groups and {lags.size} versions came"
            )
        return self.policy.weigh(self.book, rows, lags)

    def stepped(self, now: float) -> None:
        """Record that the model has made a step with all answers in the buffer."""
        self._advance(now)
        book = self.book
        lasted, before = now - (book.stepped_at if book.version else book.began), book.step_seconds
        book.step_seconds = lasted if math.isnan(before) else before + STEPS_KEPT * (lasted - before)
        book.version += 1
        book.in_buffer[:] = 0
        book.started = 0
        book.stepped_at = now
        if self.policy.abandons:
            book.in_flight[:] = 0
            book.training = 0
        self._refreshed = -math.inf

    # -- inside ----------------------------------------------------------------------------------------------

    def _advance(self, now: float, *, refresh: bool = True) -> None:
        before = self.book.now
        self.book.advance(real(now, "now"))
        if self.limits.starts_per_second:
            rate = self.limits.starts_per_second
            self._tokens = min(self._tokens + rate * (now - before), max(rate * BURST_SECONDS, 1.0))
        if refresh:
            self._refresh(now)

    def _refresh(self, now: float) -> None:
        """Compute quotas and windows anew, if they are old or there is a new group."""
        if now - self._refreshed >= REFRESH_SECONDS or self._quotas.size != len(self.book):
            book, most = self.book, self.limits.concurrency
            self._quotas = self.policy.quotas(book, most)
            self._chance = self.policy.chance(book, most)
            if self.steering is not None:
                self._near, self._far = self.steering.near_part(book), self.steering.far(book)
            self._refreshed = now

    def _note(self, visit: str, row: int, count: int) -> None:
        book = self.book
        book.checked_in[row] += count
        if visit == "retry":
            book.retry_rate[row] += count / MEMORY_SECONDS
        else:
            book.fresh_rate[row] += count / MEMORY_SECONDS
        if visit == "first":
            book.known[row] += count

    def _total_room(self) -> int:
        room = self.policy.room(self.book, self.limits.concurrency)
        return min(room, int(self._tokens)) if self.limits.starts_per_second else room

    def _start(self, row: int, count: int) -> None:
        book = self.book
        book.in_flight[row] += count
        book.training += count
        book.admitted[row] += count
        book.started += count
        if self.limits.starts_per_second:
            self._tokens -= count

    def _reject(self, row: int) -> Reject:
        why = "enough devices of the group are training"
        if self.steering is None:
            return Reject(self.limits.retry_between, why)
        if self._rng.random() < self._near[row]:
            self.book.told_near[row] += 1 / MEMORY_SECONDS
            return Reject(self.steering.near, why)
        mean = float(self._far[row])
        return Reject((0.5 * mean, 1.5 * mean), why)

    def _known(self, group: str) -> int:
        row = self.book.rows.get(group)
        if row is None:
            raise InputError(f"no device of the group {group!r} was admitted; known: {', '.join(self.book.names)}")
        return row
