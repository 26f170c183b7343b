"""`reclock` computes the times of a recorded run under other delays, without training again.

A scheme that uses neither delays nor time (`ignores_delays`) has the same rounds under every delay model: the same
clients, weights and models. Only the duration of each round differs:

    time = virtual_time(data, NycMeshDelays(), model_bytes=record.info.message_bytes, seed=record.info.seed)
    for current in reclock(record.rounds, time):
        ...

The result equals a run under those delays bit for bit, except that `by_speed` is None: other clients are slow under
other delays, and the models that would have to be evaluated on their data are gone. `depends_on_delays` lists the
configurations for which reclocking is not valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.types import Need, Selector
from fedpace.delays.availability import ChurnModel
from fedpace.records.run import Round
from fedpace.sim.clock import Clock, VirtualTime
from fedpace.sim.rounds import Fleet
from fedpace.sim.stopping import Stop


def reclock(rounds: Iterable[Round], time: VirtualTime) -> Iterator[Round]:
    """Yield `rounds` with the times that they would have had under the delays of `time`, a new `virtual_time`.

    The recorded run must not depend on delays (`depends_on_delays`), and must have the same absences and crashes.
    """
    if not has_own_availability(time):
        raise InputError("these delays come with absences of their own, under which other rounds would be played")
    expected = time.expected
    for current in rounds:
        if current.number == 0:
            yield replace(current, by_speed=None)
            continue
        before, work = time.now, 0.0
        tick, _ = time.wait_for_clients(current.number - 1)
        if current.warmed:
            took = time.delays_at(tick - 1)[np.array(current.warmed)]
            if time.clock.charge_warmup:
                work = _add_client_seconds(work, time.now, time.now + took)
                time.now += float(took.max())
            else:
                work = sum(took.tolist(), work)
        if current.probed:
            took = time.clock.probe_fraction * time.delays_at(tick)[np.array(current.probed)]
            work = _add_client_seconds(work, time.now, time.now + took)
            time.now += float(took.max())
        overhead = time.now - before
        clients = np.array(current.clients)
        took = time.delays_at(tick)[clients]
        if amounts := current.facts.get("work"):
            each = zip(took.tolist(), clients.tolist(), strict=True)
            took = np.array([time.with_work(one, row, tick, amounts.get(str(row), 1.0)) for one, row in each])
        seconds = float(took.max())
        work = _add_client_seconds(work, time.now, time.now + took)
        time.now += seconds
        if (failed := tuple(clients[time.availability.crashes(tick)[clients]].tolist())) != current.failed:
            raise InputError(
                f"clients {list(current.failed)} failed in round {current.number}, but now {list(failed)} do: "
                "a run can be clocked anew only under the same absences, and without deadlines"
            )
        yield replace(
            current,
            clock=time.now,
            seconds=seconds,
            overhead=overhead,
            work=None if current.work is None else work,
            by_speed=None,
            predicted_seconds=None if current.predicted_seconds is None else float(expected[clients].max()),
        )


def _add_client_seconds(work: float, now: float, ends: FloatArray) -> float:
    """Add the client-seconds from `now` to each of `ends` to `work`, summed in the same order as the coordinator."""
    for left, end in zip(range(ends.size, 0, -1), np.sort(ends).tolist(), strict=True):
        work += left * (end - now)
        now = end
    return work


def depends_on_delays(selector: Selector[Any], *, fleet: Fleet, clock: Clock, stop: Stop) -> str | None:
    """Return why runs of this configuration depend on the delays; None if `reclock` may be used."""
    if not selector.ignores_delays:
        return f"{selector.name} looks at delays or at time"
    if math.isfinite(clock.deadline):
        return "the deadline of [clock] decides by the delays who fails"
    if math.isfinite(stop.max_seconds):
        return "max_seconds of [stop] ends the run by the clock"
    if fleet.delays == "observed":
        return "delays are estimated from those observed, and recorded as predictions"
    if fleet.warmup == "lazy" and selector.needs - {Need.LABELS}:
        return "clients that ride along in a lazy warm-up are no part of the scheme's prediction"
    if fleet.waits_for(clock) < 1 and selector.needs - {Need.LABELS}:
        return "delays decide when those are known that the warm-up does not wait for"
    return None


def charged_warmup_trains(selector: Selector[Any], fleet: Fleet) -> bool:
    """Return whether charging the warm-up changes the rounds, because a charged warm-up moves the model."""
    return fleet.warmup == "full" and fleet.warmup_trains and bool(selector.needs - {Need.LABELS})


def has_own_availability(time: VirtualTime) -> bool:
    """Return whether availability is configured separately, rather than part of the delay model as in a trace."""
    return isinstance(time.availability, ChurnModel)
