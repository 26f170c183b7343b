"""The declaration of every fact about a client; the ledger stores, checks, shows and saves facts as declared here.

To add a fact, add a line to `FACTS` and a field with the same name to `View`. If clients report the fact, add the field
to `Outcome` too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import LARGEST, BoolArray, FloatArray, float_array, real
from fedpace._base.errors import InputError
from fedpace.core.messages import Need


@dataclass(frozen=True)
class Fact:
    """A fact that is one number per client."""

    name: str
    dtype: Literal["float64", "int64", "bool"] = "float64"
    empty: float = math.nan
    """The value that means "unknown"."""
    need: Need | None = None
    """The `Need` of schemes that require this fact; the fact is known where it is not NaN."""
    shown: bool = True
    """Whether View has a field with this name."""
    reported: bool = False
    """Whether Outcome has a field with this name (NaN = not reported); the last report counts."""
    stamp: str = ""
    """Name of the fact that stores the step of the last report."""
    rule: str = "finite"
    """What a valid value is, in words, for error messages."""
    least: float = -math.inf
    most: float = LARGEST
    cause: str = ""
    """The most likely cause of an invalid value, for error messages."""

    def plain(self, value: Any) -> bool:
        """Return whether `value` is a valid float; a fast test that lets most reports skip `check`."""
        if type(value) is not float:
            return False
        return value != value or (self.least <= value <= self.most and value >= -self.most)

    def check(self, value: Any, who: str, *, required: bool = False) -> None:
        """Raise InputError if `value` is invalid; NaN (not reported) is valid unless `required`."""
        what = f"the {self.name} of {who}"
        came = real(value, what)
        if math.isinf(came) or came < self.least or (required and math.isnan(came)):
            raise InputError(f"{what} must be {self.rule}, but {value} came{self.cause}")
        if abs(came) > self.most:
            raise InputError(f"{what} must be at most {self.most:g}, but {came:g} came{self.cause}")


@dataclass(frozen=True)
class WideFact:
    """A fact that is one vector per client, of the same width for all; its table exists after the first report."""

    name: str
    need: Need
    what: str
    """Name of the vector in error messages."""
    stamp: str = ""
    least: float = -math.inf

    def check(self, values: ArrayLike, who: str, width: int | None) -> FloatArray:
        """Return the vector as an array; raise InputError if it is invalid or differs from `width` (None = any)."""
        counts = self.least > -math.inf
        vector = float_array(values, f"{self.what} of {who}", finite=not counts)
        if not vector.size:
            raise InputError(f"{self.what} of {who} must have entries, but it is empty")
        if counts and not (np.isfinite(vector) & (vector >= self.least)).all():
            raise InputError(
                f"{self.what} of {who} must hold counts of at least {self.least:g}, but {vector.tolist()} came"
            )
        same_width(width, vector.size, f"{self.what} of {who}", "entries")
        return vector


FACTS: dict[str, Fact] = {
    fact.name: fact
    for fact in (
        Fact("samples", reported=True, rule="a count of at least 0", least=0, most=1e15),
        Fact("delay", need=Need.DELAY),
        Fact("loss", need=Need.LOSS, reported=True, stamp="loss_step", cause=": training diverged"),
        Fact("loss_step", "int64", -1),
        Fact("update_step", "int64", -1),
        Fact("participations", "int64", 0),
        Fact("failures", "int64", 0, shown=False),
        Fact("started", "int64", 0, shown=False),
        Fact("moment_step", "int64", -1, shown=False),
        Fact("asked", "bool", False, shown=False),
    )
}
REPORTED = tuple(fact for fact in FACTS.values() if fact.reported)

WIDE: dict[str, WideFact] = {
    fact.name: fact
    for fact in (
        WideFact("labels", Need.LABELS, "the label histogram", least=0),
        WideFact("updates", Need.UPDATE, "the update sketch", stamp="update_step"),
    )
}


LONGEST = 1e12
"""The longest valid time in seconds, about 30,000 years; longer times are mistakes."""
SHORTEST = 1e-9
"""Shorter times in seconds count as 0, so that ratios of two delays stay finite."""


def valid_seconds(seconds: float, who: str) -> float:
    """Return the delay as a float; raise InputError if it is negative, not finite or above `LONGEST`."""
    came = real(seconds, f"the delay of {who}")
    if not (math.isfinite(came) and came >= 0):
        raise InputError(f"the delay of {who} must be a finite number of seconds, at least 0, but it is {came}")
    if came > LONGEST:
        raise InputError(f"the delay of {who} must be at most {LONGEST:g} s, but it is {came:g}")
    return ordinary(came)


def ordinary(seconds: float) -> float:
    """Return the seconds limited to `LONGEST`, with times below `SHORTEST` set to 0; NaN stays NaN."""
    return 0.0 if seconds < SHORTEST else min(float(seconds), LONGEST)


def same_width(expected: int | None, came: int, what: str, unit: str) -> int:
    """Return the width `came`; raise InputError if it differs from the `expected` one (None = any)."""
    if expected is not None and came != expected:
        raise InputError(
            f"{what} has {came} {unit}, but those of other clients have {expected}: all clients of a session must "
            "report the same width"
        )
    return came


def grown(table: FloatArray, count: int) -> FloatArray:
    """Return the table with `count` rows of NaN added, for clients that joined."""
    return np.concatenate([table, np.full((count, table.shape[1]), math.nan)])


def filled(table: FloatArray | None, count: int) -> BoolArray:
    """(n,) True for rows of a wide fact's table without NaN; all False if there is no table."""
    if table is None:
        return np.zeros(count, dtype=np.bool_)
    return np.asarray(~np.isnan(table).any(axis=1), dtype=np.bool_)
