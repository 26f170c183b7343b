"""A session under any sequence of joins, leaves, rounds, failures, saves and restores."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sessions import warmup_due

from fedpace import Cohort, Need, Outcome, Session
from fedpace._base.errors import InputError, OrderError
from fedpace.core.types import Stateless

IDS = st.one_of(st.integers(0, 9), st.sampled_from(["a", "b", ("x", 1), None, 2.5]))


@dataclass(frozen=True)
class Some(Stateless):
    """Up to k of those that it knows the delay of."""

    name: ClassVar[str] = "some"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: int = 3

    def select(self, state, view, rng):
        assert np.isfinite(view.delay[view.available]).all(), "whoever is available is known"
        rows = rng.choice(view.candidates, min(self.k, view.candidates.size), replace=False)
        return Cohort(rows, np.full(rows.size, 1 / rows.size)), None


class Life(RuleBasedStateMachine):
    """The session against a plain model of its roster."""

    @initialize(warmup=st.sampled_from(["full", "lazy"]), shares=st.sampled_from(["uniform", "samples"]))
    def start(self, warmup, shares):
        self.session = Session(Some(), seed=1, warmup=warmup, shares=shares, warmup_quota=2)
        self.roster = []
        self.finished = {}
        self.owing = set()

    @rule(clients=st.lists(IDS, max_size=4, unique=True), known=st.booleans())
    def join(self, clients, known):
        delays = [5.0] * len(clients) if known else None
        joining = [client for client in clients if client not in self.roster]
        if len(joining) < len(clients):
            with pytest.raises(InputError, match="is in the roster already"):
                self.session.join(clients, samples=[1.0] * len(clients), delays=delays)
            return
        self.session.join(clients, samples=[float(i + 1) for i in range(len(clients))], delays=delays)
        self.roster += clients
        self.finished |= dict.fromkeys(clients, 0)

    @rule(data=st.data())
    def leave(self, data):
        gone = data.draw(st.lists(st.sampled_from(self.roster), unique=True)) if self.roster else []
        self.session.leave(gone)
        self.roster = [client for client in self.roster if client not in gone]
        self.owing -= set(gone)  # who comes back is new

    @rule()
    def select(self):
        if self.session.pending is not None:
            with pytest.raises(OrderError):
                self.session.select()
        elif not self.roster:
            with pytest.raises(InputError, match="no clients"):
                self.session.select()
        else:
            due = warmup_due(self.session)
            selection = self.session.select()
            self.owing = set(selection.clients)
            assert selection.warmup == due
            assert set(selection.clients) <= set(self.roster)
            assert len(set(selection.clients)) == len(selection.clients)
            assert (selection.weights >= 0).all()
            assert math.isclose(selection.weights.sum(), 1.0, rel_tol=1e-9)

    @precondition(lambda self: self.session.pending is not None)
    @rule(data=st.data())
    def observe(self, data):
        pending = self.session.pending
        failing = data.draw(st.sets(st.sampled_from(list(pending.clients))))
        step = self.session.step
        self.session.observe(
            [
                Outcome(client, finished=False) if client in failing else Outcome(client, seconds=3.0, loss=1.0)
                for client in pending.clients
            ]
        )
        assert self.session.step == step + (not pending.warmup)
        for client in pending.clients:
            if client in self.owing and client not in failing:
                self.finished[client] += 1

    @rule()
    def abandon(self):
        self.session.abandon()

    @rule()
    def save_and_restore(self):
        with tempfile.TemporaryDirectory() as folder:
            self.session.save(folder)
            self.session = Session.restore(folder, Some())

    @invariant()
    def the_roster_is_the_models(self):
        assert self.session.clients == tuple(self.roster)
        if self.roster:
            view = self.session.view()
            assert view.participations.tolist() == [self.finished[client] for client in self.roster]
            assert math.isclose(view.share.sum(), 1.0)
            assert view.delay.shape == (len(self.roster),)


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)
TestLife = Life.TestCase
