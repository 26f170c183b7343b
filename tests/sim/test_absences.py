"""Clients that are away, crash, are late, or are slow because of what they hold."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InfeasibleError
from fedpace.core.types import Cohort, Stateless
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.correlation import outlying, rarity
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.trace import TraceDelays
from fedpace.models.builtin import Linear
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.torch_trainer import Training

SMALL = Quadratic(clients=12, samples=6, test_samples=6, dimension=4)


def simulate(selector, rounds, *, data=SMALL, **options):
    sim = Simulation(
        data, Linear(), LognormalDelays(), selector, training=Training(epochs=1, lr=0.01), seed=2, **options
    )
    iterator = sim.rounds()
    return sim, [next(iterator) for _ in range(rounds + 1)]


def test_only_clients_that_are_there_are_chosen():
    churn = Availability(on=2, off=2, late=0.5, join_by=6)
    sim, rounds = simulate(Random(k=4), 12, availability=churn)
    model = churn.build(12, seed=2)
    assert sim.time.skipped == 0
    for current in rounds[1:]:
        here = set(np.flatnonzero(model.available(current.number)).tolist())
        assert set(current.clients) <= here


def test_the_fleet_waits_while_nobody_is_there():
    late = Availability(late=1.0, join_by=400)
    first = int(np.flatnonzero([late.build(12, seed=2).available(step).any() for step in range(400)])[0])
    assert first > 1
    sim, rounds = simulate(Random(k=4), 1, availability=late)
    assert sim.time.skipped == first - 1
    assert rounds[1].overhead == pytest.approx((first - 1) * np.median(sim.expected_delays))


def test_nobody_ever_is_an_error():
    with pytest.raises(InfeasibleError, match="no client was available"):
        simulate(Random(k=4), 1, availability=Availability(late=1.0, join_by=10**9))


def test_crashed_clients_are_failed_and_leave_their_weight_to_others():
    _, rounds = simulate(Random(k=6), 15, availability=Availability(crash=0.5))
    assert any(current.failed for current in rounds)
    assert all(np.isfinite(current.metric) for current in rounds)
    assert rounds[-1].metric < rounds[0].metric


def test_a_round_in_which_everybody_crashes_leaves_the_model():
    _, rounds = simulate(Random(k=6), 3, availability=Availability(crash=1.0))
    assert [current.metric for current in rounds] == [rounds[0].metric] * 4
    assert rounds[-1].clock > 0


def test_the_clocks_deadline_bounds_every_round():
    _, free = simulate(Random(k=6), 8)
    _, bound = simulate(Random(k=6), 8, clock=Clock(deadline=150.0))
    assert max(current.seconds for current in free) > 150
    assert max(current.seconds for current in bound) == 150
    assert any(current.failed for current in bound)


class OverCommitted(Stateless):
    name = "over-committed"
    needs = frozenset()

    def select(self, state, view, rng):
        return Cohort(np.arange(6), np.full(6, 1 / 6), quorum=4), None


def test_over_commitment_ends_the_round_early():
    sim, rounds = simulate(OverCommitted(), 3)
    for current in rounds[1:]:
        drawn = sim.time.delays.draw(current.number)[:6]
        assert current.seconds == np.sort(drawn)[3]
        assert len(current.failed) == 2


def test_observed_delays_are_learnt_and_expected_ones_are_given():
    given, _ = simulate(DelayhetSubmodular(), 3)
    np.testing.assert_array_equal(given.coordinator.view().delay, given.expected_delays)
    learnt, _ = simulate(DelayhetSubmodular(), 3, fleet=Fleet(delays="observed"), clock=Clock(charge_warmup=False))
    estimate = learnt.coordinator.view().delay
    assert np.isfinite(estimate).all()
    assert not np.allclose(estimate, learnt.expected_delays)
    assert np.corrcoef(np.log(estimate), np.log(learnt.expected_delays))[0, 1] > 0.9


def test_slow_clients_hold_the_rare_classes_when_asked():
    data = Digits(clients=20, alpha=0.3)
    linked, _ = simulate(Random(k=4), 0, data=data, fleet=Fleet(slow_rare=1.0))
    free, _ = simulate(Random(k=4), 0, data=data)
    scores = rarity(linked.trainer.data.label_histograms())
    np.testing.assert_array_equal(np.argsort(linked.expected_delays), np.argsort(scores, kind="stable"))
    np.testing.assert_allclose(np.sort(linked.expected_delays), np.sort(free.expected_delays))


def test_slow_clients_hold_the_outlying_features_where_classes_say_nothing():
    """Equal label mixes, turned by an angle a client: the slow ones are those at one end of the angles."""
    data = Digits(clients=20, alpha=1000.0, max_rotation=60.0)
    linked, _ = simulate(Random(k=4), 0, data=data, fleet=Fleet(slow_rare=1.0, rare="features"))
    order = np.argsort(np.argsort(linked.expected_delays))
    angle = np.argsort(np.argsort(data.angles(linked.trainer.seed)))
    assert abs(np.corrcoef(order, angle)[0, 1]) > 0.7
    regression, _ = simulate(Random(k=4), 0, fleet=Fleet(slow_rare=1.0))
    scores = outlying([client.inputs for client in regression.trainer.data.train])
    np.testing.assert_array_equal(np.argsort(regression.expected_delays), np.argsort(scores))


def test_a_trace_says_who_is_there(tmp_path):
    """Clients 0 to 5 are away in odd rounds of the trace, and client 7 always takes 50 seconds."""
    lines = ["client,step,seconds,available"]
    for step in range(6):
        for client in range(12):
            away = client < 6 and step % 2 == 1
            lines.append(f"{client},{step},{50 if client == 7 else 10},{0 if away else 1}")
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    sim = Simulation(
        SMALL, Linear(), TraceDelays(file=str(tmp_path / "trace.csv")), Random(k=6), training=Training(lr=0.01), seed=2
    )
    iterator = sim.rounds()
    rounds = [next(iterator) for _ in range(6)]
    for current in rounds[1:]:
        if current.number % 2 == 1:
            assert set(current.clients) == set(range(6, 12))
            assert current.seconds == 50
    assert any(set(current.clients) & set(range(6)) for current in rounds if current.number % 2 == 0)
