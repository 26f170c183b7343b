"""What clients claim, held against what is seen of them. It corrects what every scheme is shown, so that none has to.

A client gains by being believed: that it is fast, that its data are those of everybody, that its update is worth its
weight. Each claim is bounded by something that the server sees itself:

- Seconds. What a client reports counts for no less than the server's own clock measured, less a transfer allowance
  (`Outcome.measured`). Delays that were given beforehand are compared with what answers took: a client whose answers
  are later than those of the fleet beyond doubt (`LATE` standard errors) is shown as slow as it was seen to be.
- Moments. The size of a moment (its trace) further from the fleet's median than `SPREADS` robust standard deviations,
  and than a factor of `SCALE`, says nothing: the moment is taken at the median size. Whose update is far from what the
  others' updates make of its moment (`fedpace.core.claims`) is taken for a client of whose data nothing is known.
- Weights. One client has at most `CAP` of a cohort's weight, or its share of the objective where that is more; what is
  above goes to the others in proportion. Not in rosters of fewer than `FLEET` clients, where one may have to be most.
- Updates. A client whose updates point away from those of the others on average (`fedpace.core.turning`), or were
  refused (`fedpace.core.screening`), counts half as much with each, and is not asked once it counts for less than
  `LEAST`; who turns its updates round is not asked any more. Nor does it then count in the objective: schemes would
  wait for slow clients to stand in for data that nobody can reach.

Everything is relative to the fleet's median, so that up to half of the clients may lie before honest ones suffer; and
all other evidence halves in `HALF_LIFE` steps, so that an accident is forgiven. Honest runs do not feel it (figures:
docs/trust.md). What was corrected is in the records, and in the reasons of a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace.core.beginning import Beginning
from fedpace.core.claims import unlikely
from fedpace.core.evidence import COLUMNS, FADING, corrections, evidence_arrays, read_evidence
from fedpace.core.messages import Cohort, Outcome
from fedpace.core.outliers import robust, trimmed
from fedpace.core.screening import FACTOR, Judged, Screen, Screens, compared
from fedpace.core.turning import COUNTED, add_cosines, doubted, noise_of
from fedpace.core.weights import CAP, FLEET, capped

ALLOWANCE = (0.25, 1.0)
"""What a report may be below the server's measurement: this part of it, and these seconds."""
LATE = 4.0
"""Standard errors by which answers must be later than the fleet's before a claimed delay is corrected."""
LEAST_SPREAD = 0.2
"""Of the logarithms of seconds: clients that were all alike so far do not prove that the next answer is."""
SPREADS, SCALE = 5.0, 4.0
"""See above: of moments."""
EXTREME = 600.0
"""Logarithm of what a moment is multiplied by at the most: more is no number."""
LEAST = 0.6
"""A client that counts for less than this part of its weight is not asked."""
HALF_LIFE, TURNED = 50.0, 12.0
"""Steps; and what is held against who turns its updates round, which does not fade."""
ENOUGH = 4
"""Clients below which there is no fleet to compare with."""


class Trust:
    """Evidence, one row per client.

    Args:
        on: False = everything is believed, and nothing is kept.
        screen: factor of the rule for updates that are too long (`fedpace.core.screening`); 0 = no limit.
    """

    def __init__(self, *, on: bool = True, screen: float = FACTOR) -> None:
        self.on = on
        self.screen, self.buffers = Screen(screen), Screens(screen)
        self.columns: dict[str, FloatArray] = {name: np.zeros(0) for name in COLUMNS}
        self.beginning = Beginning()
        self._step = 0
        """The newest step that evidence came from."""

    def append(self, clients: int) -> None:
        """Add clients of which nothing was seen."""
        for name, empty in COLUMNS.items():
            self.columns[name] = np.concatenate([self.columns[name], np.full(clients, empty)])
        self.beginning.append(clients)

    def remove(self, rows: IntArray) -> None:
        """Forget clients."""
        for screen in (self.screen, self.buffers):
            screen.remove(rows, self.columns["timed"].size)
        self.beginning.remove(rows)
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}

    # -- seconds ---------------------------------------------------------------------------------------------

    def seconds(self, outcome: Outcome) -> float:
        """Return how long a client took: what it says, but no less than was measured, less an allowance."""
        stated, measured = float(outcome.seconds), float(outcome.measured)  # NumPy's half floats end at 65,504
        if not self.on or math.isnan(measured) or math.isnan(stated):
            return stated
        part, seconds = ALLOWANCE
        return max(stated, measured - max(part * measured, min(seconds, measured / 2)))

    def time(self, rows: IntArray, claimed: FloatArray, seconds: FloatArray, finished: BoolArray, step: int) -> None:
        """Compare what answers took with what was claimed; one given up tells something only if it was late by then."""
        self._fade(step)
        with np.errstate(divide="ignore", invalid="ignore"):
            late = np.log(seconds) - np.log(claimed)
        counted = np.isfinite(late) & (finished | (late > self._lateness()[rows]))
        if not self.on or not counted.any():
            return
        np.add.at(self.columns["timed"], rows[counted], 1.0)
        np.add.at(self.columns["late"], rows[counted], late[counted])

    def slower(self) -> FloatArray:
        """(n,) what claimed delays are multiplied by."""
        timed = self.columns["timed"]
        seen = timed > 0
        if not self.on or int(seen.sum()) < ENOUGH:
            return np.ones(timed.size)
        # One vote per client, however often it answers: who claims to be fast is asked more often than others.
        mean = self._lateness() - trimmed(self._lateness()[seen], LEAST_SPREAD)[0]
        surprise = mean * np.sqrt(timed)
        spread = max(trimmed(surprise[seen], LEAST_SPREAD)[1], LEAST_SPREAD)
        return np.where(seen & (surprise > LATE * spread), np.exp(mean), 1.0)

    def _lateness(self) -> FloatArray:
        """(n,) mean logarithm of seconds taken over seconds claimed; 0 where nothing was seen."""
        timed = self.columns["timed"]
        return np.asarray(np.divide(self.columns["late"], timed, out=np.zeros(timed.size), where=timed > 0))

    # -- moments ---------------------------------------------------------------------------------------------

    def weigh(self, moments: Mapping[int, FloatArray]) -> dict[int, float]:
        """Take in the sizes of moments by row; return what all that must change are multiplied by, new ones or not."""
        size, scale = self.columns["size"], self.columns["scale"]
        if not self.on:
            return dict.fromkeys(moments, 1.0)
        for row, factor in moments.items():
            trace = float(np.sum(factor * factor))
            size[row] = math.log(trace) if trace > 0 else math.nan
            told = self.columns["shape"][row]
            self.columns["shape"][row] = -abs(told) if told else math.nan  # who was not believed is not, until compared
        known = np.isfinite(size)
        wanted = np.ones(size.size)
        if int(known.sum()) >= ENOUGH:
            middle, spread = robust(size[known])
            away = np.abs(size - middle) > max(math.log(SCALE), SPREADS * spread)
            # Kept while the median moves a little: to change a moment has everything computed anew.
            target = np.exp(np.clip(middle - np.where(known, size, middle), -EXTREME, EXTREME))
            near = (scale != 1.0) & (np.abs(np.log(target / scale)) < 0.1)
            wanted = np.where(away & known, np.where(near, scale, target), 1.0)
        changed = np.flatnonzero(wanted != scale).tolist()
        self.columns["scale"] = wanted
        return {row: float(wanted[row]) for row in {*changed, *moments}}

    def forget_moments(self) -> None:
        """Forget how large moments were: all are told anew."""
        self.columns["size"][:] = self.columns["shape"][:] = math.nan
        self.columns["scale"][:] = 1.0

    def compare_shapes(self, rows: IntArray, updates: FloatArray, points: FloatArray) -> None:
        """Hold the moments of clients that trained from one model against their updates (`fedpace.core.claims`).

        Who was found to be believed or not stays so until it tells another moment: its claim has not changed either.
        """
        shape = self.columns["shape"][rows]
        times, told = shape.copy(), ~(shape > 0)
        times[told] = unlikely(updates[told], points[told])
        self.columns["shape"][rows] = np.where(shape >= 0, shape, times)

    def doubted(self) -> BoolArray | None:
        """(n,) whose moments are not believed; None where all are."""
        doubted = np.abs(self.columns["shape"]) > 0
        return doubted if self.on and doubted.any() else None

    # -- updates ---------------------------------------------------------------------------------------------

    def believed(self, rows: Sequence[int], versions: Sequence[int], coordinates: int = 0) -> BoolArray:
        """(k,) with whose updates those of a step are compared: all, where versions differ or half would be left."""
        places = np.asarray(rows, dtype=np.int64)
        everybody = np.ones(places.size, dtype=np.bool_)
        if not self.on or len(set(versions)) != 1:
            return everybody
        bad = doubted(self.columns, noise_of(coordinates)) | (self.weight() < LEAST)
        found = ~np.append(bad, False)[places]  # nobody's row is -1
        return found if 2 * found.sum() > found.size else everybody

    def judge(
        self,
        rows: Sequence[int],
        lengths: ArrayLike,
        versions: Sequence[int],
        cosines: FloatArray,
        step: int,
        first: float = math.inf,
        coordinates: int = 0,
    ) -> Judged:
        """Say which updates of a step must not count; row -1 is nobody's that is still there."""
        believed, noise = self.believed(rows, versions, coordinates), noise_of(coordinates)
        self._fade(step)
        if not self.on:
            return Judged(np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_))
        against = add_cosines(self.columns, rows, cosines, believed, one_model=len(set(versions)) == 1, noise=noise)
        return Judged(self.screen.judge(lengths, versions, cosines, rows=rows, first=first), against)

    def shown(self, sketches: FloatArray, versions: Sequence[int]) -> FloatArray:
        """Return sketches of updates in hand, NaN where they would be refused: policies must not be led by them."""
        if not self.on:
            return sketches
        known = np.flatnonzero(~np.isnan(sketches).any(axis=1))
        born = [versions[place] for place in known.tolist()]
        lengths, cosines = compared(lambda: iter(sketches[known]), born)
        bad = known[self.screen.judge(lengths, born, cosines, remember=False) > 0]
        if not bad.size:
            return sketches
        sketches = sketches.copy()
        sketches[bad] = math.nan
        return sketches

    def refuse(self, rows: Sequence[int]) -> None:
        """Note that the updates of clients were refused."""
        if self.on:
            np.add.at(self.columns["refused"], np.asarray(rows, dtype=np.int64), 1.0)

    def hear_first(self, updates: Mapping[int, ArrayLike]) -> None:
        """Take in sketches of what clients, by row, did to the first model (`fedpace.core.beginning`)."""
        for row, update in updates.items():
            self.beginning.hear(row, np.asarray(update, dtype=np.float64))

    def judge_beginning(self) -> BoolArray | None:
        """(n,) who works against most others, which is held against it from now on; None while too few were heard."""
        found = self.beginning.judge()
        if found is not None:
            self.columns["turned"][found] = 1.0
        return found

    def begins_again(self, found: BoolArray) -> bool:
        """Whether these owned the steps so far; if so, nothing counts that was found in their company."""
        if not self.beginning.owned(found):
            return False
        for name in COUNTED:
            self.columns[name][:] = 0.0
        self.columns["against"][~found] = self.columns["turned"][~found] = 0.0
        self.screen.known, self.buffers.known = self.screen.known[:0], {}
        return True

    def weight(self) -> FloatArray:
        """(n,) in (0, 1]: what clients count for, as a part of what they are given."""
        return np.asarray(0.5 ** self._doubt())

    def _doubt(self) -> FloatArray:
        doubt = self.columns["refused"] + self.columns["against"] + TURNED * self.columns["turned"]
        return np.asarray(doubt if self.on else np.zeros_like(doubt))

    def admitted(self, among: BoolArray) -> BoolArray:
        """(n,) whom of these to ask; nobody is left out where half of them would be."""
        if not self._doubt().any():  # asked twice after every answer
            return among
        bad = among & (self.weight() < LEAST)
        if not bad.any() or 2 * int(bad.sum()) > int(among.sum()):
            return among
        return among & ~bad

    def bound(self, cohort: Cohort, shares: FloatArray, claimed: FloatArray) -> Cohort:
        """Return a cohort in which no client has more weight than it may; and say what was corrected of anybody.

        Args:
            cohort: as the scheme chose it.
            shares: (n,) of the clients in the objective.
            claimed: (n,) their delays as they were claimed.
        """
        if not self.on:
            return cohort
        weights = cohort.weights * self.weight()[cohort.clients]
        if cohort.mode == "average":
            few = shares.size < FLEET
            weights = capped(weights, 1.0 if few else max(CAP, float(shares[cohort.clients].max())))
        facts, reasons = corrections(cohort, claimed, self.slower(), self.weight(), self.columns)
        if not facts and np.array_equal(weights, cohort.weights):
            return cohort
        why = replace(cohort.why, facts={**cohort.why.facts, **facts}, reasons={**cohort.why.reasons, **reasons})
        return replace(cohort, weights=weights, why=why)

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on."""
        known = evidence_arrays(self.columns, self._step, self.screen.known, self.buffers.known)
        return {**known, **self.beginning.arrays()}

    def load(self, saved: Mapping[str, NDArray[Any]], clients: int) -> None:
        """Take over what was saved; states from before there was any evidence have none."""
        if not saved:
            return
        self.columns, self._step, self.screen.known, self.buffers.known = read_evidence(saved, clients)
        self.beginning.load(saved, clients)

    def _fade(self, step: int) -> None:
        if step > self._step:
            for name in FADING:
                self.columns[name] = self.columns[name] * 0.5 ** ((step - self._step) / HALF_LIFE)
            self._step = step
