"""How clients are met of which the selector knows too little: all at once, or a few in each cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from sessions import warmup_due

from fedpace import Cohort, Diagnostics, Need, Outcome, Session
from fedpace.core.types import Stateless
from fedpace.selectors.random import Random


@dataclass(frozen=True)
class Fastest(Stateless):
    """The fastest known clients, evenly, or scaled down in delta mode."""

    name: ClassVar[str] = "fastest"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: int = 2
    mode: str = "average"

    def select(self, state, view, rng):
        rows = view.candidates
        rows = rows[np.argsort(view.delay[rows], kind="stable")][: self.k]
        why = Diagnostics(objective=1.5, status="sorted", reasons=dict.fromkeys(rows.tolist(), "fast"))
        weight = 1 / rows.size if self.mode == "average" else 0.1
        return Cohort(rows, np.full(rows.size, weight), mode=self.mode, why=why), None


def play(session, *, failing=(), lasting=lambda client: 10.0 + client):
    """One selection and its report; failing clients report nothing at all."""
    selection = session.select()
    session.observe(
        [
            Outcome(client, finished=False) if client in failing else Outcome(client, seconds=lasting(client))
            for client in selection.clients
        ]
    )
    return selection


def test_a_full_warm_up_meets_everybody_once():
    session = Session(Fastest())
    session.join(range(5))
    assert warmup_due(session)
    selection = play(session)
    assert selection.warmup
    assert selection.clients == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(selection.weights, 0.2)
    assert selection.why.status == "warm-up: fastest knows too little of 5 clients"
    assert set(selection.why.reasons.values()) == {"warm-up"}
    assert session.step == 0, "a warm-up is no round"
    assert not warmup_due(session)
    assert np.isfinite(session.view().delay).all()
    after = play(session)
    assert not after.warmup
    assert after.clients == (0, 1)
    assert session.step == 1


def test_nobody_is_met_by_a_scheme_that_needs_nothing():
    session = Session(Random(k=2))
    session.join(range(5))
    assert not warmup_due(session)
    assert not session.select().warmup


def test_a_warm_up_weighs_by_shares():
    session = Session(Fastest(), shares="samples")
    session.join(range(3), samples=[1, 1, 2])
    np.testing.assert_allclose(session.select().weights, [0.25, 0.25, 0.5])


def test_the_selector_is_not_told_of_a_warm_up():
    @dataclass(frozen=True)
    class Deaf(Fastest):
        def observe(self, state, report):
            raise AssertionError

    session = Session(Deaf())
    session.join(range(3))
    assert play(session).warmup


def test_late_joiners_get_a_warm_up_of_their_own():
    session = Session(Fastest())
    session.join(range(3))
    play(session)
    play(session)
    session.join([3, 4])
    selection = play(session)
    assert selection.warmup
    assert selection.clients == (3, 4)
    assert selection.step == 1
    np.testing.assert_allclose(selection.weights, 0.5)
    assert not play(session).warmup


def test_only_the_available_are_warmed_up_now_and_the_others_later():
    session = Session(Fastest())
    session.join(range(3))
    assert warmup_due(session, available=[0])
    selection = session.select(available=[0])
    assert selection.clients == (0,)
    session.observe([Outcome(0, seconds=1.0)])
    assert not warmup_due(session, available=[0])
    assert warmup_due(session)
    assert session.select(available=[0]).clients == (0,)


def test_who_failed_the_warm_up_rides_along_later():
    session = Session(Fastest(), warmup_quota=1)
    session.join(range(4))
    play(session, failing=(2, 3))
    assert not warmup_due(session), "asked once, they are not waited for again"
    met = []
    for _ in range(40):
        selection = play(session)
        assert not selection.warmup
        assert selection.clients[:2] == (0, 1)
        assert len(selection.clients) <= 3
        met += selection.clients[2:]
    assert sorted(met) == [2, 3], "each is met until it answers"


def test_who_keeps_failing_is_tried_ever_more_rarely():
    """One dead client must not slow every round down, but it is never given up."""
    session = Session(Fastest(), warmup_quota=1)
    session.join(range(3))
    play(session, failing=(2,))
    tried = [2 in play(session, failing=(2,)).clients for _ in range(200)]
    assert 2 <= sum(tried) <= 12, "about log2 of the rounds, not all of them"
    assert sum(tried[:20]) >= 1
    assert not np.isfinite(session.view().delay[2])


def test_lazy_meets_a_quota_at_a_time():
    session = Session(Fastest(), warmup="lazy", warmup_quota=2, seed=3)
    session.join(range(7))
    assert not warmup_due(session)
    first = play(session)
    assert not first.warmup
    assert len(first.clients) == 2
    np.testing.assert_allclose(first.weights, 0.5)
    assert first.why.status == "lazy warm-up: fastest knows too little of every client"
    assert session.step == 1, "its training counts"
    second = play(session)
    assert set(second.clients[:2]) == set(first.clients), "nobody else is known"
    assert not set(second.clients[2:]) & set(first.clients)
    assert len(second.clients) == 4
    met = {*second.clients}
    for _ in range(2):
        met |= {*play(session).clients}
    assert met == set(range(7))
    assert set(play(session).clients) == {0, 1}, "all are known: the selector is on its own"


def test_newcomers_come_along_and_the_cohort_is_as_the_scheme_chose_it():
    session = Session(Fastest(), warmup="lazy", warmup_quota=2, shares="samples")
    session.join(range(3), samples=[1, 2, 1], delays=[1, 2, 3])
    session.join(["x", "y"], samples=[4, 8])
    selection = session.select()
    assert selection.clients == (0, 1, "x", "y")
    assert selection.weights.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert selection.newcomers == 2
    assert selection.why.objective == 1.5
    assert selection.why.status == "sorted"
    newcomer = "never seen: part of the lazy warm-up"
    assert selection.why.reasons == {0: "fast", 1: "fast", 3: newcomer, 4: newcomer}


def test_newcomers_in_delta_mode():
    session = Session(Fastest(mode="delta"), warmup="lazy", warmup_quota=1)
    session.join(range(4), delays=[1, 2, 3, 4])
    session.join(["x"])
    selection = session.select()
    assert selection.mode == "delta"
    np.testing.assert_allclose(selection.weights, [0.1, 0.1, 0.0])


def test_newcomers_differ_between_seeds_but_not_within_one():
    def first(seed):
        session = Session(Fastest(), warmup="lazy", warmup_quota=3, seed=seed)
        session.join(range(50))
        return session.select().clients

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize("warmup", ["full", "lazy"])
def test_clients_of_share_0_are_met_too(warmup):
    session = Session(Fastest(), shares="samples", warmup=warmup)
    session.join(["a", "b"], samples=[3, 1])
    play(session, lasting=lambda _: 1.0)
    session.join(["empty", "void"], samples=[0, 0])
    selection = session.select(available=["empty", "void"])
    assert set(selection.clients) == {"empty", "void"}
    np.testing.assert_allclose(selection.weights, 0.5)


def test_a_client_without_samples_rides_along_with_weight_0():
    session = Session(Fastest(k=1), shares="samples", warmup="lazy")
    session.join(["a"], samples=[3], delays=[1.0])
    session.join(["empty"], samples=[0])
    selection = session.select()
    assert selection.clients == ("a", "empty")
    assert selection.weights.tolist() == [1.0, 0.0]


def test_what_counts_as_known_depends_on_the_needs():
    @dataclass(frozen=True)
    class Picky(Fastest):
        needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY, Need.LOSS, Need.MOMENT, Need.UPDATE, Need.LABELS})

    session = Session(Picky())
    session.join(["a", "b"], labels=[[1, 2], [3, 4]])
    session.select()
    full = {"seconds": 1.0, "loss": 1.0, "moment": np.eye(2), "update": np.ones(2)}
    session.observe([Outcome("a", **full), Outcome("b", **(full | {"loss": math.nan}))])
    view = session.view()
    assert view.available.tolist() == [True, False], "the selector is shown only whom it can judge"
    selection = session.select()
    assert selection.clients[0] == "a"


def test_known_from_the_start_needs_no_warm_up():
    session = Session(Fastest())
    session.join(range(3), delays=[3.0, 1.0, 2.0])
    assert not warmup_due(session)
    assert session.select().clients == (1, 2)
