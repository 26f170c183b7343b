"""Which updates no server should use: one rule, whatever the host, the scheme and the age of the model.

An update is refused that is not finite, or longer than `factor` times what is usual and than `SPREADS` robust standard
deviations of the logarithms above it. Usual is the median of the `REMEMBERED` lengths that belong to versions of the
model closest to the update's, those of this step included, refused ones too. So fewer than half of the replies cannot
move what is usual; where everybody's updates really grow (a larger learning rate, another loss) the rule follows
instead of refusing everybody for good; and replies to old models, longer by nature where training converges, are
compared with replies to models as old. Of each client the last `EACH` lengths count, so that who answers more often
than the others does not decide alone what is usual. Before `FEWEST` clients were heard there is nothing to compare
with: then what is refused changes parameters by more than `FIRST`, root mean square. Whoever points against the others
of its step is allowed `OPPOSED` of both, and `ALONE` where the others agree: to undo what the others did takes an
update that does, while honest ones that disagree with most are not long too. One that is long and not against them may
be a newcomer's whose data are like nobody's: refused at once, it would never get in.

Spread is measured below the median: who lies gains nothing by a short update, so that the lower half is honest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.core.stepping import Vector, norm

FACTOR, SPREADS, OPPOSED, ALONE = 10.0, 3.5, (0.3, 0.6), (0.23, 0.6)
"""See above; opposed and alone: of the factor, and of the spreads."""
AGREED = 0.2
"""Median cosine of a step from which on clients agree on where to go."""
REMEMBERED = 32
"""Lengths that the usual one is the median of; a version with more replies in a step is judged by all of its own."""
LENGTHS_KEPT = 256
"""Lengths that are kept: replies to old models need those of their time."""
EACH = 8
"""Lengths of one client that are kept; those of clients that have left are nobody's."""
FEWEST = 3
"""Lengths, and clients, without which nothing is called unusual: of two, either may be the wrong one."""
FIRST = 100.0
"""How far an update may change parameters while so few were heard: see above."""
ENOUGH = 4
"""Updates below which none is said to point against the others: of its version, or else of the step."""
FARTHEST = 1e6
"""The same of running statistics and counters, in all: data may not be scaled."""
LONGEST = 1e300
"""What stands for infinity: files hold finite numbers."""


class Judged(NamedTuple):
    """Which of k updates must not count."""

    times: FloatArray
    """(k,) how many times as long as is usual those are that are too long (`Screen.judge`), 0 for the others."""
    against: BoolArray
    """(k,) which of them work against the others of the step (`fedpace.core.turning`)."""


class Screen:
    """What is usual, and what is not.

    Args:
        factor: refuse updates longer than this many times the median; 0 = refuse only what is not finite.
    """

    def __init__(self, factor: float = FACTOR) -> None:
        self.factor = factor
        self.known: FloatArray = np.zeros((0, 3))
        """Version of the model, length, and row of the client (-1 = nobody's), of the last updates that came."""

    def judge(
        self,
        lengths: ArrayLike,
        versions: ArrayLike = 0,
        cosines: ArrayLike = math.nan,
        *,
        rows: ArrayLike = -1,
        first: float = math.inf,
        remember: bool = True,
    ) -> FloatArray:
        """(k,) how many times as long as is usual those updates of a step are that must not count; 0 for the others.

        Args:
            lengths: Euclidean lengths; NaN or infinite where any entry is.
            versions: of the models that they were trained from.
            cosines: with what the others of the same version agree on; NaN where too few came.
            rows: of the clients; -1 = nobody's that is known.
            first: what no update may be longer than while too few clients were heard.
            remember: whether they show what is usual from now on; those of one update must do so once.
        """
        given = np.asarray(lengths, dtype=np.float64)
        came = np.minimum(np.nan_to_num(given, nan=LONGEST, posinf=LONGEST), LONGEST)
        born = np.broadcast_to(np.asarray(versions, dtype=np.float64), came.shape)
        common = np.broadcast_to(np.asarray(cosines, dtype=np.float64), came.shape)
        times = np.where(np.isfinite(given), 0.0, math.inf)
        if not self.factor:
            return times
        whose = np.broadcast_to(np.asarray(rows, dtype=np.float64), came.shape)
        known = _fair(np.concatenate([self.known, np.stack([born, came, whose], axis=1)[came > 0]]))
        few = np.unique(known[known[:, 2] >= 0, 2]).size < FEWEST and len(known) < 2 * EACH  # two may be all there are
        if math.isfinite(first) and few:
            times = np.where(came > first, came / first, times)
        for version in np.unique(born):
            answers = np.flatnonzero(born == version)
            usual, *limits = self._limits(known, float(version), answers.size)
            with np.errstate(over="ignore"):
                ratio = came[answers] / usual
            allowed = np.array(limits)[_opposition(common)[answers]]
            times[answers] = np.where(ratio > allowed, ratio, times[answers])
        if remember:
            self.known = known[-LENGTHS_KEPT:]
        return times

    def remove(self, rows: IntArray, clients: int) -> None:
        """Let lengths of clients that leave be nobody's; the rows behind them, of so many clients, move up."""
        self.known = _moved(self.known, rows, clients)

    def _limits(self, known: FloatArray, version: float, count: int) -> tuple[float, ...]:
        """Return what is usual of a version, and how many times that an update may be; one that is opposed; alone."""
        newest_first = known[::-1]
        near = np.argsort(np.abs(newest_first[:, 0] - version), kind="stable")[: max(REMEMBERED, count)]
        if near.size < FEWEST:
            return 1.0, math.inf, math.inf, math.inf
        low, middle = np.quantile(np.log(newest_first[near, 1]), [0.25, 0.5])
        spread = SPREADS * float(middle - low) / 0.6745
        allowed = (
            math.exp(min(700.0, max(math.log(max(1.0, length * self.factor)), width * spread)))
            for length, width in ((1.0, 1.0), OPPOSED, ALONE)
        )
        return math.exp(float(middle)), *allowed


def _opposition(cosines: FloatArray) -> IntArray:
    """(k,) 0 = not against the others of its step, or nobody can tell; 1 = against them; 2 = and these agree."""
    told = np.clip(cosines[np.isfinite(cosines)], -1.0, 1.0)  # whatever a host says that they are
    middle = float(np.median(told)) if told.size >= ENOUGH else 0.0
    alone = (cosines < -middle / 4) & (middle >= AGREED)
    return np.asarray(np.where(alone, 2, np.where(cosines < 0, 1, 0)), dtype=np.int64)


class Screens:
    """The same rule for what a model holds beside its parameters, kind by kind: no update is as long as a counter.

    Args:
        factor: as of `Screen`.
    """

    def __init__(self, factor: float = FACTOR) -> None:
        self.factor = factor
        self.known: dict[str, FloatArray] = {}
        """Kind -> `Screen.known`."""

    def judge(self, lengths: Mapping[str, Sequence[float]], versions: Sequence[int], rows: Sequence[int]) -> FloatArray:
        """(k,) how many times as far as is usual those of a step went that must not count; 0 for the others."""
        times = np.zeros(len(rows))
        for kind, told in lengths.items():
            screen = Screen(self.factor)
            screen.known = self.known.get(kind, screen.known)
            times = np.maximum(times, screen.judge(told, versions, rows=rows, first=FARTHEST))
            self.known[kind] = screen.known
        return times

    def remove(self, rows: IntArray, clients: int) -> None:
        """See `Screen.remove`."""
        self.known = {kind: _moved(known, rows, clients) for kind, known in self.known.items()}


def _moved(known: FloatArray, rows: IntArray, clients: int) -> FloatArray:
    """Return lengths with the rows that clients have when some of so many have left; theirs are nobody's."""
    after = np.arange(clients) - np.searchsorted(np.sort(rows), np.arange(clients))
    after[rows] = -1
    whose = known[:, 2].astype(np.int64)
    moved = known.copy()
    moved[:, 2] = np.where(whose >= 0, after[whose], -1) if clients else -1
    return moved


def checked_lengths(saved: ArrayLike, clients: int) -> FloatArray:
    """Return what was saved of a screen."""
    known = np.array(saved, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] != 3 or not np.isfinite(known).all() or not (known[:, 2] < clients).all():
        raise InputError(f"the saved lengths of updates are damaged: their shape is {known.shape}")
    return known


def _fair(known: FloatArray) -> FloatArray:
    """Return lengths without those of clients that have too many: the oldest of these."""
    counts = Counter[float]()
    kept = np.ones(len(known), dtype=np.bool_)
    for place in range(len(known) - 1, -1, -1):
        whose = float(known[place, 2])
        counts[whose] += 1
        kept[place] = whose < 0 or counts[whose] <= EACH
    return known[kept]


def compared(
    updates: Callable[[], Iterable[Vector]], versions: Sequence[int], believed: BoolArray | None = None
) -> tuple[list[float], FloatArray]:
    """Return the lengths of updates, and the cosine of each with the sum of the others' directions.

    Updates are compared with those of their version where there are `ENOUGH`, else with all of the step; where these
    are too few, cosines are NaN. They are gone through twice, so that no more than one need be in memory.

    Args:
        updates: yields them, flat, each time that it is called.
        versions: of the models that they were trained from.
        believed: (k,) which of them the others are compared with; None = all.
    """
    counts = [True] * len(versions) if believed is None else believed.tolist()
    lengths: list[float] = []
    sums: dict[int, Any] = {}
    for version, update, counted in zip(versions, updates(), counts, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            length = norm(update)
        lengths.append(length)
        if counted and 0 < length < math.inf:
            sums[version] = update / length if version not in sums else sums[version] + update / length
    moves = [0 < length < math.inf for length in lengths]
    summed = [moved and counted for moved, counted in zip(moves, counts, strict=True)]
    many = Counter(version for version, counted in zip(versions, summed, strict=True) if counted)
    groups = [version if many[version] >= ENOUGH else None for version in versions]
    totals: dict[int | None, Any] = {None: sum(sums.values())} | sums if sums else {}
    squares = {group: float(totals[group] @ totals[group]) for group in set(groups) if sums}
    cosines = np.full(len(lengths), math.nan)
    for place, (group, update) in enumerate(zip(groups, updates(), strict=True)):
        if moves[place] and many.total() >= ENOUGH:
            along, own = float(update @ totals[group]) / lengths[place], float(summed[place])
            rest = squares[group] - 2 * own * along + own  # without its own direction, where that is in the sum
            cosines[place] = (along - own) / math.sqrt(rest) if rest > 1e-20 else 0.0
    return lengths, cosines
