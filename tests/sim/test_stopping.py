"""When a run ends: targets that are held, and limits of rounds and seconds."""

from __future__ import annotations

import math

import pytest

from fedpace._base.errors import InputError
from fedpace.records.run import Round
from fedpace.sim.stopping import Stop, StopRule, run_until


def endless(metrics=(0.1, 0.5, 0.9, 0.95, 0.99)):
    for number, metric in enumerate(metrics):
        yield Round(number, clock=10.0 * number, seconds=10.0, overhead=0.0, metric=metric, loss=1.0)


@pytest.mark.parametrize(
    ("stop", "direction", "last"),
    [
        (Stop(), "up", 4),
        (Stop(target=0.9, hold=1), "up", 2),
        (Stop(target=0.91, hold=1), "up", 3),
        (Stop(target=0.1, hold=1), "up", 0),
        (Stop(target=0.5, hold=1), "down", 0),
        (Stop(target=0.05, hold=1), "down", 4),
        (Stop(target=0.5, hold=3), "up", 2),  # instants 10, 15 and 20
        (Stop(target=0.5, hold=4), "up", 3),
        (Stop(target=0.5, hold=2, hold_every=25.0), "up", 4),  # 35 is within round 4
        (Stop(target=0.5), "up", 4),  # 10 instants up to 55 s: not known by then
        (Stop(max_rounds=1), "up", 1),
        (Stop(max_seconds=20.0), "up", 2),
        (Stop(max_seconds=19.0), "up", 2),
        (Stop(target=0.99, max_rounds=3, max_seconds=15.0), "up", 2),
        (Stop(target=0.5, hold=4, max_rounds=2), "up", 3),  # it was met by then: 25 is within round 3
        (Stop(target=0.9, hold=9, max_rounds=1), "up", 1),  # it was not
        (Stop(target=0.5, hold=4, max_rounds=2, max_seconds=20.0), "up", 2),
    ],
)
def test_the_round_that_ends_the_run_is_the_last(stop, direction, last):
    stop_rule = StopRule(stop, direction, [5.0])
    assert [current.number for current in run_until(endless(), stop_rule)] == list(range(last + 1))


def test_no_round_is_begun_after_the_last():
    def rounds():
        yield from endless((0.1, 0.95))
        raise AssertionError

    assert len(list(run_until(rounds(), StopRule(Stop(target=0.9, hold=1), "up", [5.0])))) == 2


def test_progress():
    stop = Stop(max_rounds=4, max_seconds=100.0)
    assert [stop.progress(current) for current in endless()] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Stop(max_rounds=1000, max_seconds=20.0).progress(list(endless())[1]) == 0.5


def test_without_a_target_nothing_is_held():
    stop_rule = StopRule(Stop(), "up", [5.0])
    assert len(list(run_until(endless(), stop_rule))) == 5
    assert not stop_rule.held


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_rounds": 0}, "max_rounds of stop must be at least 1, but 0 came"),
        ({"max_seconds": 0.0}, "max_seconds of stop must be above 0"),
        ({"target": math.nan}, "target of stop must be a finite number, but nan came"),
        ({"target": math.inf}, "target of stop must be a finite number"),
        ({"hold": 0}, "hold of stop must be at least 1, but 0 came"),
        ({"hold_every": 0.0}, "hold_every of stop must be above 0"),
        ({"hold_every": math.inf}, "hold_every of stop must be a finite number"),
        ({"looks": "often"}, "looks of stop"),
    ],
)
def test_bad_limits(options, words):
    with pytest.raises(InputError, match=words):
        Stop(**options)
