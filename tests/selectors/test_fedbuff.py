"""FedBuff against its definition: whole runs against a loop that knows nothing of fedpace's own."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from buffered import by_definition, check_it_is_fedavg, quadratic_run
from resuming import check_resumes

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import InFlight
from fedpace.delays.availability import Availability
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.records.holding import held_from
from fedpace.selectors.fedbuff import Fedbuff
from fedpace.sim.stopping import Stop, StopRule, run_until

CLIENTS = 8


def simulation(policy, delays=None, **options):
    return quadratic_run(policy, delays, clients=CLIENTS, **options)


class ByFedbuff:
    """x <- x + lr / K sum (1 + lag)^-staleness u_i."""

    def __init__(self, buffer, staleness, lr):
        self.buffer, self.staleness, self.lr = buffer, staleness, lr

    def step(self, model, held):
        return model + self.lr / self.buffer * sum((1 + lag) ** -self.staleness * (t - s) for _, lag, s, t in held)


@pytest.mark.parametrize(("buffer", "staleness", "lr"), [(3, 0.5, 1.0), (5, 0.0, 0.7), (12, 1.0, 1.0), (1, 0.5, 0.3)])
def test_whole_runs_follow_the_definition(buffer, staleness, lr):
    one = simulation(make_selector("fedbuff", buffer=buffer, staleness=staleness, lr=lr))
    rounds = one.rounds()
    next(rounds)
    total = 0
    for clock, held, model in by_definition(ByFedbuff(buffer, staleness, lr), 15, clients=CLIENTS):
        current = next(rounds)
        assert current.clock == pytest.approx(clock)
        lags = [lag for _, lag, *_ in held]
        expected = sorted((client, (1 + lag) ** -staleness / buffer) for client, lag, *_ in held)
        for got, wanted in zip(sorted(zip(current.clients, current.weights, strict=True)), expected, strict=True):
            assert got == pytest.approx(wanted)
        torch.testing.assert_close(one.parameters, model, rtol=1e-5, atol=1e-6)
        assert current.facts["mean lag"] == pytest.approx(np.mean(lags))
        total += sum(lags)
    assert total > 5, "otherwise nothing was tested"


@pytest.mark.parametrize("shares", ["uniform", "samples"])
def test_a_buffer_of_all_is_fedavg_where_all_take_equally_long(shares):
    for one, other in check_it_is_fedavg(make_selector("fedbuff", buffer=CLIENTS), clients=CLIENTS, shares=shares):
        assert one.weights == pytest.approx(other.weights)


def test_answers_that_come_together_make_as_many_steps_as_they_fill_buffers():
    played = list(islice(simulation(make_selector("fedbuff", buffer=3), ConstantDelays()).rounds(), 6))[1:]
    seconds = played[0].clock
    assert [round(current.clock / seconds) for current in played] == [1, 1, 2, 2, 2]
    assert all(len(current.clients) == 3 for current in played), "2 are left in hand, and count later"


@pytest.mark.parametrize("cap", [1, 3])
def test_no_more_than_asked_are_at_work_and_never_fewer(cap):
    one = simulation(make_selector("fedbuff", buffer=4, in_flight=cap))
    seen = set()
    for current in islice(one.rounds(), 31):
        flying = [task.client for task in one.coordinator.tasks]
        assert len(flying) == len(set(flying)) == (cap if current.number else 0)
        seen.update(current.clients)
    assert seen == set(range(CLIENTS)), "places are filled at random"


def test_it_goes_on_with_crashes_and_absences():
    one = simulation(make_selector("fedbuff", buffer=3), availability=Availability(on=3.0, off=2.0, crash=0.3))
    played = list(islice(one.rounds(), 40))
    assert sum(len(current.failed) for current in played) > 5
    assert played[-1].metric < 0.5 * played[0].metric


@pytest.mark.parametrize("delays", [LognormalDelays(jitter=0.3), ConstantDelays()], ids=["apart", "together"])
@pytest.mark.parametrize("cut", [1, 6])
def test_it_resumes_bit_for_bit(tmp_path, cut, delays):
    make = lambda: simulation(make_selector("fedbuff", buffer=3, momentum=0.5), delays)  # noqa: E731
    check_resumes(tmp_path, make, cut + 1)


@pytest.mark.parametrize("evaluate_every", [1, 7])
def test_targets_are_held_over_seconds_however_short_the_steps(evaluate_every):
    everything = list(islice(simulation(make_selector("fedbuff", buffer=1, lr=0.5)).rounds(), 600))
    target = 1.5 * min(current.metric for current in everything)
    one = simulation(make_selector("fedbuff", buffer=1, lr=0.5))
    every = np.median(one.expected_delays)
    seen = [current for current in everything if current.number % evaluate_every == 0]

    def metric_at(instant):
        return [current.metric for current in seen if current.clock <= instant][-1]

    held = next(
        current
        for current in seen
        if current.metric <= target
        and np.mean([metric_at(current.clock + number * every) for number in range(10)]) <= target
    )
    # Steps are so short that the limit comes before it can be known: the run goes on until it is.
    stop = Stop(target, max_rounds=held.number + evaluate_every, evaluate_every=evaluate_every, hold=10)
    stop_rule = StopRule(stop, "down", one.expected_delays)
    played = list(run_until(one.rounds(stop.evaluates), stop_rule))
    assert stop_rule.held
    position = held_from([(c.clock, c.metric) for c in played], target, "down", hold=10, every=every)[1]
    assert played[position].number == held.number
    assert played[-1].number > stop.max_rounds
    assert played[-2].clock < held.clock + 9 * every <= played[-1].clock, "and no further"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"buffer": 0}, "buffer of fedbuff"),
        ({"in_flight": -1}, "in_flight of fedbuff"),
        ({"staleness": -0.1}, "staleness of fedbuff"),
        ({"lr": 0.0}, "lr of fedbuff"),
        ({"lr": math.inf}, "lr of fedbuff"),
        ({"momentum": 1.0}, "momentum of fedbuff"),
    ],
)
def test_senseless_options_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        Fedbuff(**options)


def test_only_answers_in_the_buffer_count_in_a_step(view):
    """Four answers are in hand and three make a step: the fourth, which is the stalest, is no part of it."""
    hand = InFlight(np.arange(4), np.arange(4), np.zeros(4), np.array([5, 4, 2, 0]), np.zeros(4))
    seen = view(6, step=6, in_hand=hand, available=np.zeros(6, dtype=np.bool_))
    move, _ = Fedbuff(buffer=3, staleness=1).decide(None, seen, np.random.default_rng(0))
    assert move.apply.weights == pytest.approx(np.array([1 / 2, 1 / 3, 1 / 5]) / 3), "one weight per lag of 1, 2 and 4"
    assert move.apply.ids.tolist() == [0, 1, 2]
    assert move.why.facts == {"mean lag": pytest.approx(7 / 3), "largest lag": 4}
    assert move.wait.answers == 2, "one answer is left in hand"
