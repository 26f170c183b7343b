"""Places names beside marks, on the side where a name covers least; for the picture and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Side = Literal["top", "bottom", "right", "left"]
Box = tuple[float, float, float, float]
"""Left, low, right and high, as shares of the axes."""
NAMED = 10
"""Marks up to which each has its name beside it; the colours of the legend tell more of them apart."""
MARK = 0.02
"""Half of a mark's width and height."""


def sides(places: Sequence[tuple[float, float]], names: Sequence[str], letter: float) -> list[Side]:
    """Return the side of each mark where its name covers least of the marks and of the names before it.

    Args:
        places: of the marks, as shares of the axes.
        names: of the marks.
        letter: width of a letter, as a share of the axes'.
    """
    taken = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in places]
    found: list[Side] = []
    for (x, y), name in zip(places, names, strict=True):
        wide = letter * len(name)
        boxes: dict[Side, Box] = {
            "top": (x - wide / 2, y + 0.03, x + wide / 2, y + 0.07),
            "bottom": (x - wide / 2, y - 0.07, x + wide / 2, y - 0.03),
            "right": (x + 0.03, y - 0.02, x + 0.03 + wide, y + 0.02),
            "left": (x - 0.03 - wide, y - 0.02, x - 0.03, y + 0.02),
        }
        side, box = min(boxes.items(), key=lambda entry: _covered(entry[1], taken))
        taken.append(box)
        found.append(side)
    return found


def _covered(box: Box, taken: list[Box]) -> float:
    """Return how much of a box others cover, or lies outside of the axes."""
    left, low, right, high = box
    outside = max(0.0, -left) + max(0.0, right - 1.0) + max(0.0, -low) + max(0.0, high - 1.0)
    over = [
        max(0.0, min(right, other[2]) - max(left, other[0])) * max(0.0, min(high, other[3]) - max(low, other[1]))
        for other in taken
    ]
    return outside + sum(over)
