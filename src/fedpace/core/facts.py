"""What is known of each client, declared once: the ledger keeps, checks, shows and saves it from these lines.

A new fact is a line in `FACTS`, a field of that name in `View`, and one in `Outcome` where clients report it.
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
    """One number per client."""

    name: str
    dtype: Literal["float64", "int64", "bool"] = "float64"
    empty: float = math.nan
    """What stands for "nothing known"."""
    need: Need | None = None
    """What a scheme declares that cannot do without it: it is known where it is not NaN."""
    shown: bool = True
    """Whether the View has a field of that name."""
    reported: bool = False
    """Whether Outcome has a field of that name, NaN = not reported; the last report counts."""
    stamp: str = ""
    """The fact that notes at which step it was reported."""
    rule: str = "finite"
    """What is asked of a report, in words."""
    least: float = -math.inf
    most: float = LARGEST
    cause: str = ""
    """What most likely led to a report that is refused."""

    def plain(self, value: Any) -> bool:
        """Whether it is beyond doubt what clients report: said quickly, since they report in every round."""
        if type(value) is not float:
            return False
        return value != value or (self.least <= value <= self.most and value >= -self.most)

    def check(self, value: Any, who: str, *, required: bool = False) -> None:
        """Refuse what cannot be this fact; NaN = not reported, which is refused where it is required."""
        what = f"the {self.name} of {who}"
        came = real(value, what)
        if math.isinf(came) or came < self.least or (required and math.isnan(came)):
            raise InputError(f"{what} must be {self.rule}, but {value} came{self.cause}")
        if abs(came) > self.most:
            raise InputError(f"{what} must be at most {self.most:g}, but {came:g} came{self.cause}")


@dataclass(frozen=True)
class WideFact:
    """A vector per client, of one width for all; a table that is there from the first report on."""

    name: str
    need: Need
    what: str
    """What errors call a client's vector."""
    stamp: str = ""
    least: float = -math.inf

    def check(self, values: ArrayLike, who: str, width: int | None) -> FloatArray:
        """Return a vector that fits those of the other clients."""
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
"""Seconds that anything may take: 30,000 years. More is a mistake, and would stop the clock for good."""
SHORTEST = 1e-9
"""Seconds below which something took no time: the ratio of two delays must be a number."""


def valid_seconds(seconds: float, who: str) -> float:
    """Return a delay that is one."""
    came = real(seconds, f"the delay of {who}")
    if not (math.isfinite(came) and came >= 0):
        raise InputError(f"the delay of {who} must be a finite number of seconds, at least 0, but it is {came}")
    if came > LONGEST:
        raise InputError(f"the delay of {who} must be at most {LONGEST:g} s, but it is {came:g}")
    return ordinary(came)


def ordinary(seconds: float) -> float:
    """Return seconds that can be divided by one another; NaN stays what it is."""
    return 0.0 if seconds < SHORTEST else min(float(seconds), LONGEST)


def same_width(expected: int | None, came: int, what: str, unit: str) -> int:
    """Return the width that all clients have in common."""
    if expected is not None and came != expected:
        raise InputError(
            f"{what} has {came} {unit}, but those of other clients have {expected}: all clients of a session must "
            "report the same width"
        )
    return came


def grown(table: FloatArray, count: int) -> FloatArray:
    """Return the table with rows for clients that joined."""
    return np.concatenate([table, np.full((count, table.shape[1]), math.nan)])


def filled(table: FloatArray | None, count: int) -> BoolArray:
    """(n,) True where the fact is known of a client."""
    if table is None:
        return np.zeros(count, dtype=np.bool_)
    return np.asarray(~np.isnan(table).any(axis=1), dtype=np.bool_)
