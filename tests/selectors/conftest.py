"""Views, and a host that trains nothing but answers everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sessions import warmup_due

from fedpace.core.session import Session
from fedpace.core.types import Outcome, View


def make_view(n: int, *, step: int = 1, seed: int = 0, **changes: Any) -> View:
    """Return a view of n clients about which everything is known, apart from `changes`."""
    rng = np.random.default_rng([seed, n])
    facts: dict[str, Any] = {
        "step": step,
        "now": 0.0,
        "available": np.ones(n, bool),
        "share": np.full(n, 1 / n),
        "delay": rng.lognormal(4, 1, n),
        "loss": rng.random(n) + 0.1,
        "loss_step": np.zeros(n),
        "participations": rng.integers(1, 5, n),
        "labels": rng.integers(0, 50, (n, 5)) + np.eye(n, 5),
        "updates": rng.standard_normal((n, 4)),
    }
    return View(**{**facts, **changes})


class Host:
    """Clients with fixed delays, losses and updates; `failing` of each cohort drop out."""

    def __init__(self, selector: Any, n: int, *, seed: int = 0, failing: float = 0.0, updates: bool = True) -> None:
        self.rng = np.random.default_rng(seed)
        self.delay = self.rng.lognormal(4, 1, n)
        self.updates = self.rng.standard_normal((n, 4)) if updates else None
        self.failing = failing
        self.session = Session(selector, seed=seed, shares="samples", learn_delays=False)
        self.session.join(
            range(n),
            samples=self.rng.integers(1, 100, n).tolist(),
            delays=self.delay,
            labels=self.rng.integers(0, 50, (n, 5)),
        )

    def outcome(self, client: int, finished: bool, step: int) -> Outcome:
        if not finished:
            return Outcome(client, seconds=1.0, finished=False)
        loss = (0.5 + client % 3) * 0.95**step
        return Outcome(client, float(self.delay[client]), loss=loss, update=self._update(client))

    def _update(self, client: int) -> Any:
        return None if self.updates is None else self.updates[client]

    def round(self) -> Any:
        """Warm up if due, answer the probe, select, report; return the selection."""
        session = self.session
        while warmup_due(session):
            session.observe([self.outcome(client, True, 0) for client in session.select().clients])
        request = session.probe()
        if request is not None and request.kind == "loss":
            session.answer({client: 0.5 + client % 3 for client in request.clients})
        elif request is not None:
            session.answer({client: 0.1 * self._update(client) for client in request.clients})
        selection = session.select()
        lost = self.rng.random(len(selection.clients)) < self.failing
        settled = zip(selection.clients, ~lost, strict=True)
        session.observe([self.outcome(client, bool(well), session.step) for client, well in settled])
        return selection


@pytest.fixture
def view() -> Callable[..., View]:
    return make_view


@pytest.fixture
def host() -> type[Host]:
    return Host
