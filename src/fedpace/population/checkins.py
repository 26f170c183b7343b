"""Check-ins and the answers to them: the messages between an anonymous device and the server.

A device that is idle, charging and on an unmetered network checks in. The server answers `Accept`: train now, or
`Reject`: come back when you are first eligible after a time that you draw uniformly from `retry_between`. The device
keeps two facts about itself, when it last trained and what it was told; the server keeps no fact about a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedpace._base.checks import above, at_least, finite, whole
from fedpace._base.errors import InputError

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
