"""From when on a target is held: against the definition, spelt out."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.records.holding import Holding, held_from


def by_definition(rounds, target, direction, hold, every):
    """Read word by word: the first evaluation that meets the target, and whose instants do on average."""

    def good(value):
        return value >= target if direction == "up" else value <= target

    crossed = None
    for position, (clock, metric) in enumerate(rounds):
        if metric is None or not good(metric):
            continue
        crossed = position if crossed is None else crossed
        if rounds[-1][0] < clock + (hold - 1) * every:
            return crossed, None  # neither this one nor any later one is known
        values = []
        for number in range(hold):
            current, instant = metric, clock + number * every
            for later, value in rounds[position + 1 :]:
                if later > instant or instant == clock:
                    break
                current = current if value is None else value
                if later == instant:
                    break
            values.append(Fraction(current))
        if good(sum(values) / hold):
            return crossed, position
    return crossed, None


# Halves and quarters are exact, so that ties of clocks and of means really happen.
METRICS = st.one_of(st.none(), st.integers(0, 8).map(lambda n: n / 8))
STEPS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0])
RUNS = st.lists(st.tuples(STEPS, METRICS), max_size=25).map(
    lambda steps: [(sum(step for step, _ in steps[: i + 1]), metric) for i, (_, metric) in enumerate(steps)]
)


@given(
    rounds=RUNS,
    target=st.integers(0, 8).map(lambda n: n / 8),
    direction=st.sampled_from(["up", "down"]),
    hold=st.integers(1, 6),
    every=st.sampled_from([0.0, 0.5, 0.75, 1.0, 3.0]),
)
def test_it_is_what_the_definition_says(rounds, target, direction, hold, every):
    expected = by_definition(rounds, target, direction, hold, every) if rounds else (None, None)
    assert held_from(rounds, target, direction, hold=hold, every=every) == expected


def on_a_grid(rounds, target, hold, every):
    """Read word by word: the first instant of the grid whose metric and those of the next ones meet the target."""

    def at(instant):
        """Return which evaluation stands at an instant, and its metric; of rounds that end at it the first counts."""
        ended = [position for position, (clock, _) in enumerate(rounds) if clock < instant]
        ended += [position for position, (clock, _) in enumerate(rounds) if clock == instant][:1]
        known = [position for position in ended if rounds[position][1] is not None]
        return (known[-1], rounds[known[-1]][1]) if known else (None, None)

    number = 0
    while number * every <= rounds[-1][0]:
        instant = number * every
        position, metric = at(instant)
        if metric is not None and metric >= target:
            if rounds[-1][0] < instant + (hold - 1) * every:
                return None
            if sum(Fraction(at(instant + n * every)[1]) for n in range(hold)) / hold >= target:
                told = [p for p, (_, metric) in enumerate(rounds) if metric is not None and p <= position]
                while len(told) > 1 and rounds[told[-2]][0] > instant - every and rounds[told[-2]][1] >= target:
                    told.pop()
                return told[-1]
        number += 1
    return None


@given(
    rounds=RUNS,
    target=st.integers(0, 8).map(lambda n: n / 8),
    hold=st.integers(1, 6),
    every=st.sampled_from([0.5, 0.75, 1.0, 3.0]),
)
def test_on_a_grid_it_is_what_the_definition_says(rounds, target, hold, every):
    expected = on_a_grid(rounds, target, hold, every) if rounds else None
    assert held_from(rounds, target, "up", hold=hold, every=every, looks="grid")[1] == expected


def test_a_peak_between_two_instants_is_seen_by_rounds_and_not_by_the_grid():
    """Steps of a second under a target that is held over three instants, 10 s apart: luck starts the clock early."""
    steps = [(float(second), 0.85 if second == 11 else 0.7 if second < 15 else 0.9) for second in range(60)]
    assert held_from(steps, 0.8, "up", hold=3, every=10.0)[1] == 11
    assert held_from(steps, 0.8, "up", hold=3, every=10.0, looks="grid")[1] == 15
    # A round that is current at the next instant counts from its own end.
    assert held_from([(0, 0.1), (17, 0.9), (34, 0.9), (60, 0.9)], 0.8, "up", hold=3, every=10.0, looks="grid")[1] == 1


@given(
    rounds=RUNS,
    hold=st.integers(1, 6),
    every=st.sampled_from([0.5, 1.0, 3.0]),
    looks=st.sampled_from(["rounds", "grid"]),
)
def test_what_is_known_stays_known_and_no_round_is_played_in_vain(rounds, hold, every, looks):
    watched = Holding(0.5, "up", hold=hold, every=every, looks=looks)
    known = None
    for count, (clock, metric) in enumerate(rounds, start=1):
        watched.add(clock, metric)
        if known is not None:
            assert watched.held == known
        known = watched.held
        expected = held_from(rounds[:count], 0.5, "up", hold=hold, every=every, looks=looks)
        assert (watched.crossed, watched.held) == expected
        if watched.held is None:
            last = len(rounds[:count]) - 1
            later = held_from(rounds, 0.5, "up", hold=hold, every=every, looks=looks)[1]
            if later is not None and later <= last and rounds[later][1] is not None:
                assert watched.undecided(last), "it goes on until it is known"
                assert watched.earliest <= rounds[last][0]


@given(rounds=RUNS, every=st.sampled_from([0.0, 1.0]))
def test_one_instant_is_the_first_crossing(rounds, every):
    crossed, held = held_from(rounds, 0.5, "down", hold=1, every=every)
    assert crossed == held
    met = [i for i, (_, metric) in enumerate(rounds) if metric is not None and metric <= 0.5]
    assert crossed == (met[0] if met else None)


@pytest.mark.parametrize(
    ("rounds", "held"),
    [
        # A peak does not count; the level that follows does, from its first evaluation on.
        ([(0, 0.1), (10, 0.9), (20, 0.2), (30, 0.9), (40, 0.9), (50, 0.9)], 3),
        # It counts although one of the instants is below: the mean is not.
        ([(0, 0.1), (10, 1.0), (20, 0.7), (30, 1.0), (40, 0.9)], 1),
        # The instants are seconds: one long round outlasts them all, but only the next one says how long it was.
        ([(0, 0.1), (100, 0.9)], None),
        ([(0, 0.1), (100, 0.9), (200, 0.1)], 1),
        # Where nobody looks, the last evaluation stands.
        ([(0, 0.1), (10, 0.9), (20, None), (30, None)], 1),
        ([(0, 0.1), (10, None), (20, None), (30, 0.9), (40, None), (49, None)], None),
    ],
)
def test_examples(rounds, held):
    assert held_from(rounds, 0.8, "up", hold=3, every=10.0)[1] == held


def test_a_metric_that_equals_the_target_holds_it_however_sums_are_rounded():
    for hold in range(1, 60):
        target = 1 / 49
        assert held_from([(0.0, target), (math.inf, target)], target, "up", hold=hold, every=1.0) == (0, 0)


def test_the_evaluation_itself_is_the_first_of_the_instants():
    """The mean is over 1.0, 0.625 and 0.625. Without the first of them it is below the target; a later one is too."""
    rounds = [(0.0, 0.0), (10.0, 1.0), (20.0, 0.625), (30.0, 0.625), (40.0, 0.0), (90.0, 0.0)]
    for looks in ("rounds", "grid"):
        assert held_from(rounds, 0.75, "up", hold=3, every=10.0, looks=looks) == (1, 1)


def test_of_two_rounds_that_end_together_the_first_is_held_though_the_second_is_worse():
    """The metric at an instant is that of the first round that ends then: the one that met the target."""
    rounds = [(0.0, 0.0), (10.0, 0.9), (10.0, 0.1), (20.0, 0.1)]
    assert held_from(rounds, 0.8, "up", hold=1, every=10.0) == (1, 1)
    assert held_from(rounds, 0.45, "up", hold=2, every=10.0) == (1, 1), "the mean of 0.9 and 0.1 is above 0.45"
