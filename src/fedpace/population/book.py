"""`GroupBook`: what the server knows about a fleet of anonymous devices, a few numbers per group and none per device.

The mean time in flight of a group is estimated as (seconds that its tasks spent in flight) / (tasks that ended). Tasks
that have not ended yet count in the numerator, so that a slow group is not taken for a fast one while only its fastest
devices have answered. By Little's law this is also (mean tasks in flight) / (ends per second).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, shares
from fedpace._base.errors import InputError

MEMORY_SECONDS = 1800.0
"""Time constant of the check-in rates."""
TASKS_KEPT = 200.0
"""Ended tasks over which a group's delay and drop-out are averaged, about."""
PRIOR_TASKS = 1.0
"""Weight, in tasks, of the mean over all groups in a group's estimates."""

QUANTUM = 0.2
"""Seconds for which changes of the clock are collected before they are applied to all groups."""

COUNTS = ("in_flight", "answered", "lost", "checked_in", "admitted", "known", "in_buffer")
MEANS = ("fresh_rate", "retry_rate", "exposure", "ended", "failed", "told_near")


@dataclass(eq=False)
class GroupBook:
    """Counts and running means of each group; row g of each array belongs to `names[g]`."""

    names: list[str]
    declared: FloatArray | None
    """(groups,) population shares that the operator declared; None = learnt from first check-ins."""
    rows: dict[str, int]
    in_flight: IntArray
    """Devices that train now."""
    answered: IntArray
    lost: IntArray
    checked_in: IntArray
    admitted: IntArray
    known: IntArray
    """Distinct devices seen so far: check-ins of kind `first`."""
    in_buffer: IntArray
    """Answers since the last step."""
    fresh_rate: FloatArray
    """Check-ins per second of the kinds `first` and `again`."""
    retry_rate: FloatArray
    """Check-ins per second of the kind `retry`."""
    exposure: FloatArray
    """Seconds that tasks spent in flight, with forgetting."""
    ended: FloatArray
    """Tasks that ended, with forgetting."""
    failed: FloatArray
    """Tasks that ended without an answer, with forgetting."""
    told_near: FloatArray
    """Rejections per second that asked the device to return in the same eligible period."""
    now: float = 0.0
    began: float = math.nan
    """Time of the first event; NaN = there was none."""
    applied: float = 0.0
    """Time up to which rates have decayed and tasks in flight have added to the exposure."""
    training: int = 0
    """Devices that train now, over all groups."""
    version: int = 0
    stepped_at: float = 0.0
    started: int = 0
    """Devices admitted since the last step."""
    step_seconds: float = math.nan
    """Running mean of the seconds between steps; NaN = no step yet."""

    @classmethod
    def of(cls, declared: Mapping[str, float] | None = None) -> GroupBook:
        """Return an empty book; `declared` maps each group to its share of the population."""
        names = [] if declared is None else [_name(name) for name in declared]
        if declared is not None and not names:
            raise InputError("shares must name at least one group, but they are empty; leave them out to learn them")
        fixed = None if declared is None else shares(list(declared.values()), len(names), name=lambda g: names[g])
        size = len(names)
        counts: dict[str, Any] = {name: np.zeros(size, dtype=np.int64) for name in COUNTS}
        means: dict[str, Any] = {name: np.zeros(size) for name in MEANS}
        return cls(names, fixed, {name: row for row, name in enumerate(names)}, **counts, **means)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.names)

    def row(self, group: str, most: int) -> int | None:
        """Return the row of a group; a new group gets one, unless shares are declared or there are `most` groups."""
        row = self.rows.get(group)
        if row is None:
            if self.declared is not None or len(self.names) >= most:
                return None
            row = self.rows[_name(group)] = len(self.names)
            self.names.append(group)
            for name in (*COUNTS, *MEANS):
                array = getattr(self, name)
                setattr(self, name, np.append(array, array.dtype.type(0)))
        return row

    # -- what happens ----------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move the clock: rates decay, and tasks in flight add to the exposure."""
        if math.isnan(self.began):
            self.began = self.now = self.applied = now
        seconds = now - self.now
        if seconds < 0:
            raise InputError(f"time must not run backwards, but {now:g} s came after {self.now:g} s")
        self.now = now
        if (passed := now - self.applied) >= QUANTUM:
            keep = math.exp(-passed / MEMORY_SECONDS)
            self.fresh_rate *= keep
            self.retry_rate *= keep
            self.told_near *= keep
            self.exposure += self.in_flight * passed
            self.applied = now

    def end(self, row: int, count: int = 1, *, failed: bool = False) -> None:
        """Record that tasks of a group ended."""
        if self.in_flight[row] < count:
            raise InputError(
                f"{count} tasks of {self.names[row]!r} ended, but only {self.in_flight[row]} are in flight"
            )
        self.in_flight[row] -= count
        self.training -= count
        if failed:
            self.lost[row] += count
            self.failed[row] += count
        else:
            self.answered[row] += count
            self.in_buffer[row] += count
        self.ended[row] += count
        if self.ended[row] > TASKS_KEPT:
            keep = TASKS_KEPT / self.ended[row]
            self.ended[row] *= keep
            self.failed[row] *= keep
            self.exposure[row] *= keep

    # -- estimates -------------------------------------------------------------------------------------------

    @property
    def shares(self) -> FloatArray:
        """(groups,) share of each group in the population: declared, or the share of the distinct devices seen."""
        if self.declared is not None:
            return self.declared
        total = self.known.sum()
        return self.known / total if total else np.full(len(self), 1.0 / max(len(self), 1))

    @property
    def check_in_rates(self) -> FloatArray:
        """(groups,) check-ins per second of all kinds, right from the first second on."""
        seen = -math.expm1(-max(self.now - self.began, 1.0) / MEMORY_SECONDS)
        return (self.fresh_rate + self.retry_rate) / seen

    @property
    def delays(self) -> FloatArray:
        """(groups,) mean seconds that a task is in flight; 1 for all groups before any task has ended."""
        ended = self.ended.sum()
        mean = self.exposure.sum() / ended if ended else 1.0
        if not mean > 0:
            return np.ones(len(self))
        return (self.exposure + PRIOR_TASKS * mean) / (self.ended + PRIOR_TASKS)

    @property
    def failure_rates(self) -> FloatArray:
        """(groups,) part of the tasks that end without an answer."""
        ended = self.ended.sum()
        mean = self.failed.sum() / ended if ended else 0.0
        return (self.failed + PRIOR_TASKS * mean) / (self.ended + PRIOR_TASKS)

    # -- on disk ---------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """Return the book as plain values for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in (*COUNTS, *MEANS)}
        scalars = {name: getattr(self, name) for name in (*_TIMES, *_WHOLE)}
        measured = {name: None if math.isnan(getattr(self, name)) else getattr(self, name) for name in _MEASURED}
        declared = None if self.declared is None else self.declared.tolist()
        return {"names": list(self.names), "declared": declared, **arrays, **scalars, **measured}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> GroupBook:
        """Return the book that `saved` returned; raise InputError if fields are missing or lengths differ."""
        try:
            names = [_name(name) for name in saved["names"]]
            counts: dict[str, Any] = {name: np.array(saved[name], dtype=np.int64) for name in COUNTS}
            means: dict[str, Any] = {name: np.array(saved[name], dtype=np.float64) for name in MEANS}
            declared = None if saved["declared"] is None else np.array(saved["declared"], dtype=np.float64)
            scalars: dict[str, Any] = {name: float(saved[name]) for name in _TIMES}
            whole: dict[str, Any] = {name: int(saved[name]) for name in _WHOLE}
            measured: dict[str, Any] = {
                name: math.nan if saved[name] is None else float(saved[name]) for name in _MEASURED
            }
        except (KeyError, TypeError, ValueError) as cause:
            raise InputError(f"this is not a saved book of groups: {cause!r}") from cause
        arrays: Sequence[Any] = [*counts.values(), *means.values(), *([] if declared is None else [declared])]
        if any(array.shape != (len(names),) or not np.isfinite(array).all() for array in arrays):
            raise InputError(f"this is not a saved book of groups: expected {len(names)} finite numbers per field")
        rows = {name: row for row, name in enumerate(names)}
        return cls(names, declared, rows, **counts, **means, **scalars, **whole, **measured)


_TIMES, _WHOLE = ("now", "applied", "stepped_at"), ("training", "version", "started")
_MEASURED = ("step_seconds", "began")


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"a group is named by a text that is not empty, but {name!r} came")
    return name
