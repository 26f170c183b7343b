"""Pace steering: which window a rejected device is told to come back in, so that check-ins arrive at a steady rate.

Bonawitz et al., "Towards Federated Learning at Scale: System Design" (MLSys 2019), section 2.3, describe the idea; the
rule here is ours. Each group has a target rate of check-ins. A device comes back within the same eligible period
(`near`) or on another day (`far`).

- Far windows decide how many devices come of their own accord. Those come when they become eligible, mostly in the
  evening. A window of T/2 to 3T/2 with T = peak x (devices of the group) / target keeps even the evening below the
  target, if the evening's rate is `peak` times the daily mean.
- Near windows fill the rest of the day: with f check-ins per second from far windows and a part s of near devices that
  really return, telling a part (1 - f / target) / s of the rejected devices to come back soon gives the target.

The state is a few numbers per group, all of them in `GroupBook`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpace._base.checks import FloatArray, above, finite
from fedpace._base.errors import InputError
from fedpace.population.book import GroupBook

LEAST_RETURNING = 0.2
"""Lowest estimate of the part of near devices that return."""


@dataclass(frozen=True)
class Steering:
    """Steady check-ins.

    Args:
        check_ins_per_second: target over all groups; each group gets its share of the population.
        peak: highest rate of devices that become eligible, divided by its daily mean.
        near: window for devices that return within the same eligible period, in seconds.
        least_far: shortest mean of a far window, in seconds.
        most_far: longest mean of a far window, in seconds.
    """

    check_ins_per_second: float
    peak: float = 4.0
    near: tuple[float, float] = (300.0, 900.0)
    least_far: float = 3600.0
    most_far: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        for name in ("check_ins_per_second", "peak", "least_far", "most_far"):
            finite(getattr(self, name), f"{name} of steering")
            above(getattr(self, name), 0, f"{name} of steering")
        low, high = self.near
        if not 0 < low <= high:
            raise InputError(f"near of steering must be a window of seconds above 0, but {self.near!r} came")

    def targets(self, book: GroupBook) -> FloatArray:
        """(groups,) check-ins per second that each group should make."""
        return np.asarray(np.maximum(self.check_ins_per_second * book.shares, 1e-9))

    def near_part(self, book: GroupBook) -> FloatArray:
        """(groups,) part of the rejected devices that are told to come back within the same eligible period."""
        wanted = 1 - book.fresh_rate / self.targets(book)
        with np.errstate(invalid="ignore", divide="ignore"):
            returning = np.where(book.told_near > 0, book.retry_rate / book.told_near, 1.0)
        return np.asarray(np.clip(wanted / np.clip(returning, LEAST_RETURNING, 1.0), 0.0, 1.0))

    def far(self, book: GroupBook) -> FloatArray:
        """(groups,) mean of the far windows in seconds; the window is from half to one and a half times this."""
        return np.asarray(np.clip(self.peak * book.known / self.targets(book), self.least_far, self.most_far))
