"""A random part of the devices that check in: the check-ins of a day are thinned evenly.

Where many more devices check in than may train, first come, first served takes whoever comes just when a place is
free. This policy admits each device with the probability that makes admissions as frequent as places become free, so
that the admitted devices are a uniform sample of the check-ins. Steps and weights are those of `first-come`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpace._base.options import FINITE, AtLeast
from fedpace.population.book import GroupBook
from fedpace.population.policies.first_come import FirstCome

HEADROOM = 1.2
"""Admissions are this many times as frequent as tasks end, so that places do not stay empty."""


@dataclass(frozen=True)
class Random(FirstCome):
    """Each device with the same probability; a step whenever the buffer is full.

    The options are those of `first-come`.
    """

    name: ClassVar[str] = "random"

    over_selection: Annotated[float, AtLeast(1), FINITE] = 1.0

    def chance(self, book: GroupBook, concurrency: int) -> float:
        """Return the tasks that end per second, with some headroom, over the check-ins per second."""
        ended = float(book.ended.sum())
        check_ins = float(book.check_in_rates.sum())
        if not ended or not check_ins:
            return 1.0
        seconds = float(book.exposure.sum()) / ended
        rate = concurrency * self.over_selection / seconds if seconds > 0 else check_ins
        return min(1.0, HEADROOM * rate / check_ins)
