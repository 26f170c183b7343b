"""Completion times of simulated tasks."""

from __future__ import annotations

import numpy as np

from fedpace.core.events import Event
from fedpace.core.tasks import Due
from fedpace.sim.clock import VirtualTime


def endings(due: Due, time: VirtualTime, tick: int, *, in_rounds: bool) -> list[Event]:
    """Return the completion events of tasks that start now: each task ends after its client's delay at `tick`.

    Training tasks of asynchronous schemes use a turn per client instead of `tick`: the n-th task of a client has the
    same delay under every policy.
    """
    clients = np.fromiter((task.client for task in due.tasks), np.int64, len(due.tasks))
    kind = due.tasks[0].kind
    if kind == "train" and not in_rounds:
        own = [time.own(int(client), task.job + 1) for task, client in zip(due.tasks, clients, strict=True)]
        seconds, crashed = np.array([took for took, _ in own]), [crashes for _, crashes in own]
    else:
        # Turn 0 of the delays belongs to the warm-up, so that rounds have the same delays with and without a warm-up.
        seconds = time.drawn(tick - 1 if due.warmup else tick)[clients]
        safe = due.warmup or kind == "probe"
        crashed = [False] * clients.size if safe else time.availability.crashes(tick)[clients].tolist()
    counted = time.clock.probe_fraction if kind == "probe" else 1.0
    if due.warmup and not time.clock.charge_warmup:
        counted = 0.0
    when = (time.now + counted * seconds).tolist()
    return list(map(Event, when, [task.id for task in due.tasks], seconds.tolist(), crashed))
