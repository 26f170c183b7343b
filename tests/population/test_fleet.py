from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import FedpaceError
from fedpace.population import Admission, Fleet, Group, Limits, Steering, make_admission
from fedpace.population.fleet import MINUTES, habits


def devices_in(fleet: Fleet) -> int:
    return int(fleet.dormant.sum() + fleet._far.sum() + fleet._this_hour.sum() + fleet._near.sum())


def play(fleet, admission, ticks):
    """Check-ins per tick; every admitted device ends its task within the tick."""
    seen = []
    for _ in range(ticks):
        visits = fleet.check_ins()
        seen.append(visits.sum())
        told = admission.admit_counts(visits, fleet.now)
        for row in np.flatnonzero(admission.book.in_flight):
            admission.book.end(int(row), int(admission.book.in_flight[row]))
        fleet.settle(told, admission.rest())
    return np.array(seen)


@pytest.mark.parametrize("day", [1.0, 2.0, 4.0, 8.0])
def test_the_ratio_of_day_and_night_is_the_one_asked_for(day):
    table = habits(day, 1.0)
    assert table.eligible.max() / table.eligible.min() == pytest.approx(day, rel=1e-3)
    assert ((table.eligible > 0) & (table.eligible < 1)).all()
    assert table.starts.shape == table.stops.shape == (MINUTES,)


@settings(max_examples=10, deadline=None)
@given(
    devices=st.integers(1, 10**8),
    rollout=st.sampled_from([0.0, 3600.0, 86_400.0]),
    steered=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_device_is_lost(devices, rollout, steered, seed):
    groups = [Group("a", devices), Group("b", 7, zone=9, presence=0.2)]
    fleet = Fleet(groups, tick=300.0, seed=seed, rollout=rollout)
    steering = Steering(10.0) if steered else None
    admission = Admission(make_admission("paced"), Limits(concurrency=50), shares=fleet.shares, steering=steering)
    assert devices_in(fleet) == devices + 7
    play(fleet, admission, 100)
    assert devices_in(fleet) == devices + 7
    assert (admission.book.known <= [devices, 7]).all()


def test_every_device_introduces_itself_once():
    fleet = Fleet([Group("a", 5000)], tick=600.0, seed=3)
    admission = Admission(make_admission("first-come"), Limits(concurrency=10), shares=fleet.shares)
    play(fleet, admission, 3 * 144)
    assert admission.book.known[0] == pytest.approx(5000, rel=0.02)
    assert admission.book.known[0] <= 5000


def test_a_device_trains_at_most_once_a_day():
    fleet = Fleet([Group("a", 100, day=1.0, presence=20.0)], tick=600.0, seed=0, rollout=3600.0)
    admission = Admission(make_admission("first-come"), Limits(concurrency=1000), shares=fleet.shares)
    play(fleet, admission, 10 * 144)
    assert 100 * 7 <= admission.book.admitted[0] <= 100 * 10


def test_the_same_seed_gives_the_same_check_ins():
    def seen(seed):
        fleet = Fleet([Group("a", 10**6)], seed=seed)
        return play(fleet, Admission(make_admission("paced"), shares=fleet.shares), 60).tolist()

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


def test_steering_evens_out_the_load_of_a_day():
    def load(steering):
        fleet = Fleet([Group("a", 10**6)], tick=300.0, seed=0)
        admission = Admission(
            make_admission("first-come"), Limits(concurrency=1), shares=fleet.shares, steering=steering
        )
        seen = play(fleet, admission, 6 * 288)[4 * 288 :].reshape(-1, 2).sum(1)
        return seen.max() / seen.mean(), seen.mean() / 600

    unsteered, _ = load(None)
    steered, rate = load(Steering(20.0))
    assert unsteered > 1.7
    assert steered < 1.3
    assert 15 < rate < 21


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Fleet([]), "at least one group"),
        (lambda: Fleet([Group("a", 1), Group("a", 2)]), "different name"),
        (lambda: Group("", 1), "not empty"),
        (lambda: Group("a", 0), "devices of a"),
        (lambda: Group("a", 1, dropout=1.0), "dropout of a"),
        (lambda: Group("a", 1, seconds=float("nan")), "seconds of a"),
        (lambda: Fleet([Group("a", 1)], tick=0), "tick"),
    ],
)
def test_mistakes_are_refused(wrong, sentence):
    with pytest.raises(FedpaceError, match=sentence):
        wrong()
