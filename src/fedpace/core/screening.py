"""Updates that are many times as long as the others': refused by one rule, whatever the host.

The length of an update is compared with the median of the last `REMEMBERED` lengths that came, those of this step
included, refused ones too. So fewer than half of the replies cannot move what is usual, and where everybody's updates
really grow (a larger learning rate, another loss) the rule follows instead of refusing everybody for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

REMEMBERED = 64
"""Lengths that the usual one is the median of; a step with more answers is judged by all of its own."""
LONGEST = 1e300
"""What stands for infinity: files hold finite numbers."""
FEWEST = 3
"""Lengths without which nothing is called unusual: of two, either may be the wrong one."""


class LengthScreen:
    """What is usual, and what is not.

    Args:
        factor: refuse updates longer than this many times the median; 0 = refuse none.
        lengths: that came before.
    """

    def __init__(self, factor: float, lengths: Iterable[float] = ()) -> None:
        self.factor = factor
        self.lengths = list(lengths)[-REMEMBERED:]

    def unusual(self, lengths: Sequence[float]) -> dict[int, float]:
        """Take in the lengths of a step's updates; return position -> how many times the median, of those to refuse."""
        if not self.factor:
            return {}
        known = [*self.lengths, *(min(length, LONGEST) for length in lengths)]
        self.lengths = known[-REMEMBERED:]
        usual = median(known) if len(known) >= FEWEST else 0.0
        if not 0 < usual < math.inf:
            return {}
        return {place: length / usual for place, length in enumerate(lengths) if length > self.factor * usual}
