"""Schemes that do one thing, and sessions that know their clients already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace import Cohort, Need, Outcome, Probe, Session
from fedpace.core.types import Stateless


@dataclass(frozen=True)
class Everybody(Stateless):
    """All that can be had, evenly."""

    name: ClassVar[str] = "everybody"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    def select(self, state, view, rng):
        rows = view.candidates
        return Cohort(rows, np.full(rows.size, 1 / rows.size)), None


@dataclass(frozen=True)
class Asking(Everybody):
    """Asks everybody for a loss or gradient first, then takes the client with the largest."""

    name: ClassVar[str] = "asking"
    needs: ClassVar[frozenset[Need]] = frozenset()

    kind: str = "loss"

    def probe(self, state, view, rng):
        return Probe(view.candidates, self.kind)

    def select(self, state, view, rng):
        seen = view.loss if self.kind == "loss" else view.updates[:, 0]
        best = int(np.nanargmax(np.where(view.available, seen, np.nan)))
        return Cohort([best], [1.0]), None


@dataclass(frozen=True)
class Listening(Everybody):
    """Remembers how many clients it was told about."""

    name: ClassVar[str] = "listening"
    needs: ClassVar[frozenset[Need]] = frozenset()

    @dataclass(frozen=True)
    class State:
        reports: tuple = ()

    def init(self):
        return self.State()

    def select(self, state, view, rng):
        return super().select(None, view, rng)[0], state

    def observe(self, state, report):
        return self.State((*state.reports, report))


def settled(selection, seconds=10.0, **facts):
    return [Outcome(client, seconds=seconds, **facts) for client in selection.clients]


def warmup_due(session, available=None):
    """Whether the next selection will be a full warm-up."""
    coordinator = session.coordinator
    return bool(coordinator.warmup.unmeasured(coordinator.reachable(available)).size)


def warmed(selector=None, clients=("a", "b", "c"), **options):
    session = Session(selector or Everybody(), **options)
    session.join(clients)
    if warmup_due(session):
        session.observe(settled(session.select()))
    return session
