"""FedCompass: work is assigned so that clients answer in groups, and a group's answers make a step together.

Li, Chaturvedi, He, Chen, Singh, Kindratenko, Huerta, Kim and Madduri, "FedCompass: Efficient Cross-Silo Federated
Learning on Heterogeneous Client Devices using a Computing Power Aware Scheduler" (ICLR 2024). All clients train all the
time. An arrival group has an expected arrival time and a latest one. A client that becomes free is assigned, fastest
first,

- to the open group for which it gets the most work between `least` and `most` so that it answers at the expected time;
- else to a new group, with the work at which it meets a group that an open group may form next: one that begins at the
  latest time of the open group and lasts as long as the fastest client there takes for `most`. Too little work is
  raised to `least`; if no open group leads to at most `most`, the client gets `most`.

A new group's latest time is `late` times as far away as its expected one. Answers that are in time wait. When the whole
group has answered, or at its latest time, the model steps with the group's answers and with all late answers so far,

    x <- x + sum_i share_i alpha (1 + lag_i)^-staleness u_i,

and the clients of the group are assigned again. A client that is late starts again at once, and its answer joins the
next step.

Departures. The paper estimates seconds per local step from whole answers; here a task takes rest_i + work compute_i,
and both parts are known. So the first tasks are assigned by the same rule, where the paper gives all clients equal work
at first. Work is a real number; engines round it to local steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.options import FINITE, Above, AtLeast
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Diagnostics, Need, Report, Scheme, View
from fedpace.selectors._drawing import fitting_work


@dataclass(frozen=True)
class CompassState:
    """State: when the policy decided last, and how many answers it left in hand."""

    decided: float = -math.inf
    left: int = 0


@dataclass
class ArrivalGroup:
    """An arrival group, as its tasks show it."""

    expected: float
    """When its clients are expected to answer; the planned weight of its tasks."""
    created: float
    fastest: float
    """Shortest expected seconds of one of its clients with the most work."""
    latest: float


@dataclass(frozen=True)
class Fedcompass(Scheme):
    """Groups of clients that answer together; without rounds.

    Args:
        least: smallest work of a task, as a multiple of the configured local training; Q_min.
        most: largest work of a task; Q_max. The paper has 20 and 100 local steps.
        late: a group waits this many times as long as expected.
        alpha: factor of every update.
        staleness: weight of an update: (1 + lag) ** -staleness; 0 = stale updates count in full.
    """

    name: ClassVar[str] = "fedcompass"
    sets_work: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})
    rounds: ClassVar[bool] = False

    least: Annotated[float, Above(0), FINITE] = 0.2
    most: Annotated[float, Above(0), FINITE] = 1.0
    late: Annotated[float, AtLeast(1), FINITE] = 1.5
    alpha: Annotated[float, Above(0), FINITE] = 0.9
    staleness: Annotated[float, AtLeast(0), FINITE] = 0.5

    def init(self) -> CompassState:
        """Return the state before the first decision."""
        return CompassState()

    def observe(self, state: CompassState, report: Report) -> CompassState:
        """Return the state as it is: the next View contains the report."""
        return state

    def decide(self, state: CompassState, view: View, rng: np.random.Generator) -> tuple[Move, CompassState]:
        """Step with the groups that are complete or at their latest time, and assign free clients to groups."""
        hand = view.in_hand
        groups = self.groups(view)
        ripe, waiting = self._sorted(state, view, groups)
        idle = view.candidates[~np.isin(view.candidates, hand.clients[waiting])]
        if not (ripe.any() or len(view.in_flight) or idle.size):
            ripe = np.ones(len(hand), dtype=np.bool_)  # late answers only, and no client to wait for
        used = (ripe | ~waiting) if ripe.any() else np.zeros(len(hand), dtype=np.bool_)
        apply, facts = None, {}
        if used.any():
            lag = view.step - hand.step[used]
            weights = view.share[hand.clients[used]] * self.alpha * (1.0 + lag) ** -self.staleness
            apply = Apply(hand.ids[used], weights, "delta")
            facts = {
                "groups": len(groups),
                "late answers": int((~waiting & ~ripe).sum()),
                "mean lag": float(lag.mean()),
            }
            idle = view.candidates[~np.isin(view.candidates, hand.clients[waiting & ~used])]
        gone = {float(hand.weights[place]) for place in np.flatnonzero(ripe)}
        opened = [group for key, group in groups.items() if key not in gone and group.latest > view.now]
        start, work, expected = self._assign(view, idle, opened)
        left = len(hand) - int(used.sum())
        latest = min((group.latest for group in opened), default=math.inf)
        wait = Wait(left + 1, max(latest - view.now, 0.0) if math.isfinite(latest) else math.inf)
        reasons = {
            row: f"trains {amount:.2g} times as much as usual, to answer with its group at {when:.4g} s"
            for row, amount, when in zip(start.tolist(), work.tolist(), expected.tolist(), strict=True)
        }
        why = Diagnostics(facts=facts, reasons=reasons)
        move = Move(start, expected, apply, wait=wait, mode="delta", why=why, work=work)
        return move, CompassState(view.now, left)

    def groups(self, view: View) -> dict[float, ArrivalGroup]:
        """Return the groups of all tasks in flight and in hand, by expected arrival time."""
        full = view.seconds_with(self.most)
        found: dict[float, ArrivalGroup] = {}
        for tasks in (view.in_flight, view.in_hand):
            for key, began, row in zip(
                tasks.weights.tolist(), tasks.began.tolist(), tasks.clients.tolist(), strict=True
            ):
                group = found.setdefault(key, ArrivalGroup(key, began, math.inf, 0.0))
                group.created = min(group.created, began)
                group.fastest = float(min(group.fastest, full[row]))
        for group in found.values():
            group.latest = group.created + self.late * (group.expected - group.created)
        return found

    @staticmethod
    def _sorted(state: CompassState, view: View, groups: dict[float, ArrivalGroup]) -> tuple[BoolArray, BoolArray]:
        """Return which answers in hand are of groups that step now, and which are not late."""
        hand, flying = view.in_hand, set(view.in_flight.weights.tolist())
        ripe, in_time = np.zeros(len(hand), dtype=np.bool_), np.zeros(len(hand), dtype=np.bool_)
        for place, key in enumerate(hand.weights.tolist()):
            latest = groups[key].latest
            # After its latest time, a group's answers are in time only if they were in hand before: then this is the
            # first decision since.
            in_time[place] = view.now <= latest or (state.decided < latest and state.left > 0)
            ripe[place] = in_time[place] and (key not in flying or view.now >= latest)
        return ripe, in_time

    def _assign(
        self, view: View, idle: IntArray, opened: list[ArrivalGroup]
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the clients that start, their work, and the expected arrival time of their group."""
        order = idle[np.lexsort((idle, view.growing[idle]))]
        full = view.seconds_with(self.most)
        work, expected = np.zeros(order.size), np.zeros(order.size)
        for place, row in enumerate(order.tolist()):
            amount, group = self._joined(view, row, opened)
            if group is None:
                amount = self._alone(view, row, opened)
                seconds = float(view.delay[row] + (amount - 1) * view.growing[row])
                group = ArrivalGroup(view.now + seconds, view.now, float(full[row]), view.now + self.late * seconds)
                opened.append(group)
            group.fastest = min(group.fastest, float(full[row]))
            work[place], expected[place] = amount, group.expected
        back = np.argsort(order, kind="stable")
        return order[back], work[back], expected[back]

    def _joined(self, view: View, row: int, opened: list[ArrivalGroup]) -> tuple[float, ArrivalGroup | None]:
        """Return the most work with which a client meets an open group, and that group; None = it meets none."""
        best, chosen = 0.0, None
        for group in opened:
            fits = self._fits(view, row, group.expected)
            if self.least <= fits <= self.most and fits > best:
                best, chosen = fits, group
        return best, chosen

    def _alone(self, view: View, row: int, opened: list[ArrivalGroup]) -> float:
        """Return the work of a client that opens a group."""
        possible = [self._fits(view, row, group.latest + group.fastest) for group in opened]
        possible = [fits for fits in possible if 0 <= fits <= self.most]
        return max(self.least, max(possible)) if possible else self.most

    @staticmethod
    def _fits(view: View, row: int, until: float) -> float:
        """Return the work with which a client is expected to answer at `until`, allowing for rounding."""
        fits = float(fitting_work(view, np.array([row]), until - view.now)[0])
        return round(fits, 9) if math.isfinite(fits) else fits
