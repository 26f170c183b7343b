"""Who made the first steps, where nobody is waited for; if it was mostly clients that lie, training begins again.

Without rounds the fastest clients make the first steps among themselves, before there is anybody to compare them with.
To wait for a majority first would cost honest runs more than half of their time. So nobody waits, but what everybody
does to the very first model is kept, as a sketch: all clients were given that one, so that their updates can be
compared whenever they come. Once half of the roster was heard, they are: early on clients agree on where to go, up to
what is their own, so that the main direction of their updates (the first singular vector of the directions) is what
most of them want. Who points the other way, below `OPPOSED` and far below the others, or went many times as far as the
median, is not trusted.
If such clients had more than half of the weight in the steps so far, the model is thrown away, and with it all that was
learnt in their company: training begins again with the first model, whose updates are in hand or still to come.

In rounds, where a scheme hears updates, as in a warm-up, those who work against the others are found likewise and asked
no more: the fastest would form cohorts of their own, in which they agree. Nothing begins again there.

As long as fewer than a quarter of the roster lie, they are fewer than half of those that are compared. Honest runs are
not touched: docs/trust.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InputError

HEARD = 0.5
"""Part of the roster that must be heard before anybody is judged by this."""
ENOUGH = 8
"""And so many clients at least."""
OPPOSED = -0.1
"""Cosine with the main direction that no honest client had."""
AGREED = 0.25
"""Median cosine below which clients do not agree on where to go, and nobody is judged."""
CHANCE = 2.0
"""And below this over the root of the number of coordinates: so far any directions agree."""
SPREADS = 4.5
"""Robust standard deviations below the median, which are measured above it, where who lies has nothing to gain."""
FAR = 5.0
"""Times the median length."""
PREFIX = "beginning/"


class Beginning:
    """What clients did to the first model, and what they weighed in the steps since, one row per client."""

    def __init__(self) -> None:
        self.sketches: FloatArray = np.zeros((0, 0))
        """(n, r) NaN = not heard yet."""
        self.led: FloatArray = np.zeros(0)
        """(n,) weight in all steps so far."""
        self.over = False

    def append(self, clients: int) -> None:
        """Add clients that were not heard."""
        self.led = np.concatenate([self.led, np.zeros(clients)])
        added = np.full((clients, self.sketches.shape[1]), math.nan)
        self.sketches = np.concatenate([self.sketches, added])

    def remove(self, rows: IntArray) -> None:
        """Forget clients."""
        self.led, self.sketches = np.delete(self.led, rows), np.delete(self.sketches, rows, axis=0)

    def hear(self, row: int, sketch: FloatArray) -> None:
        """Take in what a client did to the first model; its first answer counts."""
        if self.over or (self.sketches.shape[1] and self.sketches.shape[1] != sketch.size):
            return
        if not self.sketches.shape[1]:
            self.sketches = np.full((self.led.size, sketch.size), math.nan)
        if np.isnan(self.sketches[row]).all():
            self.sketches[row] = sketch

    def enough(self, more: IntArray) -> bool:
        """Whether enough clients were heard, with those in these rows."""
        heard = self._heard()
        heard[more] = True
        return int(heard.sum()) >= max(ENOUGH, HEARD * self.led.size)

    def _heard(self) -> BoolArray:
        if not self.sketches.shape[1]:
            return np.zeros(self.led.size, dtype=np.bool_)
        return np.asarray(~np.isnan(self.sketches).any(axis=1))

    def judge(self) -> BoolArray | None:
        """(n,) who works against most others; None while too few were heard. Judged once."""
        if self.over or not self.enough(np.zeros(0, dtype=np.int64)):
            return None
        heard = np.flatnonzero(self._heard())
        told = self.sketches[heard]
        found = np.zeros(self.led.size, dtype=np.bool_)
        found[heard] = opposed(told)
        self.over, self.sketches = True, np.zeros((self.led.size, 0))
        return found

    def owned(self, rows: BoolArray) -> bool:
        """Whether these clients had most of the weight so far."""
        total = float(self.led.sum())
        return total > 0 and float(self.led[rows].sum()) > 0.5 * total

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on."""
        named = {"sketches": self.sketches, "led": self.led, "over": np.array([self.over])}
        return {PREFIX + name: array for name, array in named.items()}

    def load(self, saved: Mapping[str, NDArray[Any]], clients: int) -> None:
        """Take over what was saved; states from before are past their beginning."""
        over = np.asarray(saved.get(PREFIX + "over", np.array(True)))
        led, sketches = saved.get(PREFIX + "led", np.zeros(clients)), saved.get(PREFIX + "sketches")
        sketches = np.zeros((clients, 0)) if sketches is None else sketches
        if over.size != 1 or any(array.dtype.kind not in "fiub" for array in (over, led, sketches)):
            raise InputError("the saved ledger's account of how training began is damaged")
        self.over = bool(over.ravel()[0])
        if led.shape != (clients,) or sketches.ndim != 2 or len(sketches) != clients:
            raise InputError(f"the saved ledger should hold {clients} rows of how training began, not {led.shape}")
        self.led, self.sketches = np.array(led, dtype=np.float64), np.array(sketches, dtype=np.float64)


def opposed(updates: FloatArray) -> BoolArray:
    """(n,) whose updates, all of one model, point against most of the others', or are many times as long.

    Args:
        updates: (n, r).
    """
    largest = np.abs(updates).max(axis=1, keepdims=True)
    moved = largest[:, 0] > 0
    found = np.zeros(len(updates), dtype=np.bool_)
    if int(moved.sum()) < ENOUGH:
        return found
    scaled = updates[moved] / largest[moved]
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    directions = scaled / norms
    cosines = directions @ np.linalg.svd(directions, full_matrices=False)[2][0]
    cosines = cosines if float(np.median(cosines)) >= 0 else -cosines
    lengths = np.log(norms[:, 0]) + np.log(largest[moved, 0])
    far = lengths > float(np.median(lengths)) + math.log(FAR)
    middle, upper = np.quantile(cosines, [0.5, 0.75])
    # Few coordinates agree by chance, and clients whose data differ much point many ways: neither makes them liars.
    if middle < max(AGREED, CHANCE / math.sqrt(updates.shape[1])):
        return found
    limit = min(OPPOSED, middle - SPREADS * (upper - middle) / 0.6745)
    found[moved] = (cosines < limit) | (far & (cosines < min(0.0, limit - OPPOSED)))
    return found
