"""The facts that a server knows about each client, what a valid value of each is, and the checks of reports.

To add a fact, add a line to `FACTS` and a field to View, and to Outcome if clients report it. The values are in the
ledger (`ledger.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import LARGEST, FloatArray, float_array, of_ordinary_size, real
from fedpace._base.errors import InputError
from fedpace.core.types import Need, Outcome


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
        Fact("compute"),
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


MAX_SECONDS = 1e12
"""The longest valid time in seconds, about 30,000 years; longer times are mistakes."""
MIN_SECONDS = 1e-9
"""Shorter times in seconds count as 0, so that ratios of two delays stay finite."""


def valid_seconds(seconds: float, who: str) -> float:
    """Return the delay as a float; raise InputError if it is negative, not finite or above `MAX_SECONDS`."""
    came = real(seconds, f"the delay of {who}")
    if not (math.isfinite(came) and came >= 0):
        raise InputError(f"the delay of {who} must be a finite number of seconds, at least 0, but it is {came}")
    if came > MAX_SECONDS:
        raise InputError(f"the delay of {who} must be at most {MAX_SECONDS:g} s, but it is {came:g}")
    return ordinary(came)


def ordinary(seconds: float) -> float:
    """Return the seconds limited to `MAX_SECONDS`, with times below `MIN_SECONDS` set to 0; NaN stays NaN."""
    return 0.0 if seconds < MIN_SECONDS else min(float(seconds), MAX_SECONDS)


def same_width(expected: int | None, came: int, what: str, unit: str) -> int:
    """Return the width `came`; raise InputError if it differs from the `expected` one (None = any)."""
    if expected is not None and came != expected:
        raise InputError(
            f"{what} has {came} {unit}, but those of other clients have {expected}: all clients of a session must "
            "report the same width"
        )
    return came


# -- reports of clients ------------------------------------------------------------------------------------------------


WideKind = Literal["moment", "update"]
KINDS: tuple[WideKind, ...] = ("moment", "update")


def width_of(told: Any, kind: WideKind) -> int | None:
    """Return the width of a reported moment or sketch; None if it is missing or has the wrong number of axes."""
    if told is None:
        return None
    try:
        shape = np.shape(told)
    except ValueError:  # rows of different lengths
        return None
    return shape[-1] if len(shape) == (2 if kind == "moment" else 1) and shape[-1] else None


def check_outcomes(
    outcomes: Sequence[Outcome],
    names: Callable[[int], str],
    moment_width: int | None,
    update_width: int | None,
    *,
    learn_delays: bool,
) -> None:
    """Raise InputError if a report is invalid.

    Args:
        outcomes: the reports.
        names: index of a report -> name of its client in error messages.
        moment_width: width of the known moments; None = unknown.
        update_width: width of the known sketches; None = unknown.
        learn_delays: whether every client that finished must report its seconds.
    """
    # An unknown width is the most common width of these reports, so the error names the client that differs.
    moment_width = moment_width or _usual(outcomes, "moment")
    update_width = update_width or _usual(outcomes, "update")
    for place, outcome in enumerate(outcomes):
        if not _plain(outcome):
            _check_numbers(outcome, names(place), learn_delays=learn_delays)
        if outcome.moment is None and outcome.update is None:
            continue
        if _plain_array(outcome.moment, 2, moment_width) and _plain_array(outcome.update, 1, update_width):
            continue
        who = names(place)
        if outcome.moment is not None:
            factor = float_array(outcome.moment, f"the moment factor of {who}", ndim=2)
            if factor.shape[1] == 0:
                raise InputError(f"the moment factor of {who} has no columns: its shape is {factor.shape}")
            moment_width = same_width(moment_width, factor.shape[1], f"the moment of {who}", "features")
            of_ordinary_size(factor, f"the moment factor of {who}")
        if outcome.update is not None:
            update = WIDE["updates"].check(outcome.update, who, update_width)
            update_width = update.size
            of_ordinary_size(update, f"the update sketch of {who}")


def _plain(outcome: Outcome) -> bool:
    """Return whether all numbers are valid; a fast test that lets nearly all reports skip `_check_numbers`."""
    return (
        type(outcome.finished) is bool
        and type(outcome.seconds) is float
        and 0.0 <= outcome.seconds <= MAX_SECONDS
        and type(outcome.measured) is float
        and (0.0 <= outcome.measured <= MAX_SECONDS or outcome.measured != outcome.measured)
        and type(outcome.compute) is float
        and (0.0 <= outcome.compute <= MAX_SECONDS or outcome.compute != outcome.compute)
        and all(fact.plain(getattr(outcome, fact.name)) for fact in REPORTED)
    )


def _plain_array(values: Any, ndim: int, width: int | None) -> bool:
    """Return whether an array is missing or valid; a fast test that lets nearly all reports skip the other checks."""
    if values is None:
        return True
    if not (isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == ndim and values.size):
        return False
    return values.shape[-1] == width and bool(np.abs(values).max() <= LARGEST)


def _check_numbers(outcome: Outcome, who: str, *, learn_delays: bool) -> None:
    if not isinstance(outcome.finished, bool | np.bool_):
        raise InputError(f"finished of {who} must be True or False, but {outcome.finished!r} came")
    if not math.isnan(real(outcome.seconds, f"the seconds of {who}")):
        valid_seconds(outcome.seconds, who)
    elif outcome.finished and learn_delays:
        raise InputError(f"{who} finished, but its delay is missing: report the seconds that it took")
    for value, what in ((outcome.measured, "measured"), (outcome.compute, "computing")):
        if not math.isnan(real(value, f"the {what} seconds of {who}")):
            valid_seconds(value, who)
    for fact in REPORTED:
        fact.check(getattr(outcome, fact.name), who)


def _usual(outcomes: Sequence[Outcome], kind: WideKind) -> int | None:
    told = [each for outcome in outcomes if (each := getattr(outcome, kind)) is not None]
    counts = Counter(width for each in told if (width := width_of(each, kind)) is not None)
    return counts.most_common(1)[0][0] if counts else None
