"""The loop: the clock, warm-ups, probes, deadlines, and that runs under one seed are paired."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from steps import aggregate

from fedpace import Cohort, Need, Probe
from fedpace._base.errors import InputError
from fedpace.core.types import Stateless
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation, simulate
from fedpace.sim.torch_trainer import DivergedError, Training

DATA = Quadratic(clients=6, samples=8, test_samples=6, dimension=4)
DELAYS = LognormalDelays(median=10.0, sigma=1.0, jitter=0.2)
TRAINING = Training(epochs=2, batch=0, lr=0.02)


@dataclass(frozen=True)
class Fixed(Stateless):
    """Always the same clients with the same weights."""

    name: ClassVar[str] = "fixed"
    needs: ClassVar[frozenset[Need]] = frozenset()

    clients: tuple[int, ...] = (0, 1, 2)
    weights: tuple[float, ...] = (0.5, 0.25, 0.25)
    mode: Any = "average"
    deadline: float = math.inf

    def select(self, state, view, rng):
        return Cohort(self.clients, self.weights, mode=self.mode, deadline=self.deadline), None


@dataclass(frozen=True)
class NeedsDelay(Fixed):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})


@dataclass(frozen=True)
class Asking(Fixed):
    """Asks clients 3 and 4 for their loss, then takes the one with the larger."""

    name: ClassVar[str] = "asking"

    def probe(self, state, view, rng):
        return Probe([3, 4])

    def select(self, state, view, rng):
        return Cohort([int(np.nanargmax(view.loss))], [1.0]), None


def make(selector, *, data=DATA, model=None, seed=1, **options):
    options = {"training": TRAINING} | options
    return Simulation(data, model or Linear(), DELAYS, selector, seed=seed, **options)


def play(simulation, rounds):
    return list(islice(simulation.rounds(), rounds + 1))


def draw_initial_weights(tick, seed=1, clients=6):
    return DELAYS.build(clients, model_bytes=16, seed=seed).draw(tick)


# -- one round ---------------------------------------------------------------------------------------------


def test_round_0_is_the_initial_model():
    simulation = make(Fixed())
    first = next(simulation.rounds())
    assert (first.number, first.clock, first.seconds, first.overhead) == (0, 0.0, 0.0, 0.0)
    assert first.clients == first.weights == first.failed == ()
    assert first.train_loss is None
    assert first.metric == simulation.trainer.evaluate(simulation.trainer.initial)[0]


def test_a_round_lasts_as_long_as_its_slowest_client():
    rounds = play(make(Fixed()), 3)
    clock = 0.0
    for current in rounds[1:]:
        assert current.seconds == draw_initial_weights(current.number)[[0, 1, 2]].max()
        clock += current.seconds
        assert current.clock == pytest.approx(clock)
        assert current.overhead == 0.0
        assert current.clients == (0, 1, 2)
        assert current.weights == (0.5, 0.25, 0.25)


@pytest.mark.parametrize(("mode", "weights"), [("average", (0.5, 0.25, 0.25)), ("delta", (0.5, 1.0, -0.2))])
def test_a_round_trains_and_aggregates(mode, weights):
    simulation = make(Fixed(weights=weights, mode=mode))
    trainer = simulation.trainer
    results = [trainer.train(trainer.initial, client, 0) for client in (0, 1, 2)]
    expected = aggregate(trainer.initial, [r.parameters for r in results], weights, mode)
    (_, first) = play(simulation, 1)
    assert torch.equal(simulation.parameters, expected)
    assert first.metric == trainer.evaluate(expected)[0]
    assert first.train_loss == pytest.approx(np.mean([r.loss for r in results]))
    assert first.mode == mode


def test_training_helps():
    rounds = play(make(Random(k=3)), 15)
    assert rounds[-1].metric < 0.2 * rounds[0].metric
    accuracy = play(make(Random(k=5), data=Digits(clients=10), model=Softmax(), training=Training(lr=0.3)), 5)
    assert accuracy[0].metric < 0.3
    assert accuracy[-1].metric > 0.8


# -- deadlines ---------------------------------------------------------------------------------------------


def test_a_deadline_cuts_off_the_late_and_their_weight_goes_to_the_others():
    delays = draw_initial_weights(1)[[0, 1, 2]]
    deadline = float(np.sort(delays)[1]) + 0.01
    late = int(np.argmax(delays))
    simulation = make(Fixed(deadline=deadline), fleet=Fleet(delays="observed"))
    trainer = simulation.trainer
    weights = np.delete([0.5, 0.25, 0.25], late)
    results = [trainer.train(trainer.initial, client, 0).parameters for client in (0, 1, 2) if client != late]
    expected = aggregate(trainer.initial, results, weights / weights.sum(), "average")
    (_, first) = play(simulation, 1)
    assert first.seconds == deadline
    assert first.failed == (late,)
    assert first.clients == (0, 1, 2)
    assert torch.equal(simulation.parameters, expected)
    view = simulation.coordinator.view()
    assert view.participations[:3].tolist() == [int(client != late) for client in (0, 1, 2)]
    assert view.delay[late] >= deadline, "it takes at least that long"


def test_a_deadline_that_nobody_meets_waits_for_the_first():
    simulation = make(Fixed(deadline=1e-6))
    _, first = play(simulation, 1)
    fastest = int(np.argmin(draw_initial_weights(1)[[0, 1, 2]]))
    assert first.failed == tuple(client for client in (0, 1, 2) if client != fastest)
    assert first.seconds == draw_initial_weights(1)[fastest]
    assert not torch.equal(simulation.parameters, simulation.trainer.initial)


def test_a_deadline_in_delta_mode_drops_the_step_of_the_late():
    delays = draw_initial_weights(1)[[0, 1, 2]]
    late = int(np.argmax(delays))
    simulation = make(Fixed(mode="delta", deadline=float(np.sort(delays)[1]) + 0.01))
    trainer = simulation.trainer
    kept = [client for client in (0, 1, 2) if client != late]
    expected = aggregate(
        trainer.initial,
        [trainer.train(trainer.initial, client, 0).parameters for client in kept],
        np.delete([0.5, 0.25, 0.25], late).tolist(),
        "delta",
    )
    play(simulation, 1)
    assert torch.equal(simulation.parameters, expected)


# -- warm-up and probes ------------------------------------------------------------------------------------


FREE = Clock(charge_warmup=False)


def test_a_warm_up_can_be_free_and_leaves_the_model_alone_then():
    rounds = play(make(NeedsDelay(), fleet=Fleet(delays="observed"), clock=FREE), 1)
    plain = play(make(Fixed()), 1)
    assert rounds[0] == plain[0]
    assert rounds[1].overhead == 0.0
    assert rounds[1].clock == plain[1].clock
    assert rounds[1].metric == plain[1].metric, "the warm-up did not change the model"


def test_a_warm_up_is_charged_by_default():
    measuring = Fleet(delays="observed", warmup_trains=False, warmup_wait=1.0)
    rounds = play(make(NeedsDelay(), fleet=measuring), 2)
    assert rounds[1].overhead == pytest.approx(draw_initial_weights(0).max())
    assert rounds[1].clock == pytest.approx(rounds[1].overhead + rounds[1].seconds)
    assert rounds[2].overhead == 0.0
    assert rounds[2].clock == pytest.approx(rounds[1].clock + rounds[2].seconds)


def test_a_warm_up_that_is_charged_is_the_first_round():
    simulation = make(NeedsDelay(), fleet=Fleet(delays="observed", warmup_wait=1.0))
    rounds = play(simulation, 2)
    everybody = tuple(range(simulation.trainer.data.clients))
    assert rounds[1].clients == everybody
    assert rounds[1].weights == pytest.approx([1 / len(everybody)] * len(everybody))
    assert rounds[1].warmed == (), "nobody only measured"
    assert (rounds[1].overhead, rounds[1].clock) == (0.0, pytest.approx(draw_initial_weights(1).max()))
    assert rounds[1].metric != rounds[0].metric, "it moved the model"
    assert rounds[1].status.startswith("warm-up: fixed knows too little of")
    assert rounds[2].clients == play(make(Fixed()), 1)[1].clients
    assert rounds[2].overhead == 0.0


def test_lazy_needs_no_warm_up():
    simulation = make(DelayhetSubmodular(), fleet=Fleet(warmup="lazy", warmup_quota=2), clock=Clock(charge_warmup=True))
    rounds = play(simulation, 4)
    assert all(current.overhead == 0.0 for current in rounds)
    assert len(rounds[1].clients) == 2, "nobody is known: the newcomers are the round"
    assert [len(current.warmed) for current in rounds[2:]] == [2, 2, 0], "then they measure beside the cohorts"
    assert not any(set(current.warmed) & set(current.clients) for current in rounds)
    measured = {client for current in rounds for client in current.heard} | set(rounds[1].clients)
    assert set(np.flatnonzero(simulation.coordinator.view().moments.known)) == measured


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_probes_are_answered_and_charged(fraction):
    simulation = make(Asking(), clock=Clock(probe_fraction=fraction))
    trainer = simulation.trainer
    losses = [trainer.local_losses(trainer.initial, [client])[0] for client in (3, 4)]
    _, first = play(simulation, 1)
    assert first.clients == (3 + int(np.argmax(losses)),)
    assert first.overhead == pytest.approx(fraction * draw_initial_weights(1)[[3, 4]].max())
    assert first.clock == pytest.approx(first.overhead + first.seconds)


# -- pairing and repeating ---------------------------------------------------------------------------------


def test_one_seed_is_one_run():
    one, two, other = (play(make(Random(k=3), seed=seed), 4) for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_schemes_under_one_seed_meet_the_same_world():
    first, second = make(Random(k=2)), make(DelayhetSubmodular())
    np.testing.assert_array_equal(first.expected_delays, second.expected_delays)
    for tick in range(5):
        np.testing.assert_array_equal(first.time.delays.draw(tick), second.time.delays.draw(tick))
    one, two = play(first, 3), play(second, 3)
    assert one[0] == two[0]
    for a, b in zip(first.trainer.data.train, second.trainer.data.train, strict=True):
        np.testing.assert_array_equal(a.inputs, b.inputs)
    for rounds in (one, two):
        for current in rounds[1:]:
            assert current.seconds == draw_initial_weights(current.number)[list(current.clients)].max()


def test_a_cohort_in_another_order_is_the_same_round():
    one = play(make(Fixed((0, 1, 2), (0.5, 0.25, 0.25))), 3)
    other = play(make(Fixed((2, 0, 1), (0.25, 0.5, 0.25))), 3)
    for a, b in zip(one, other, strict=True):
        assert a.metric == pytest.approx(b.metric, rel=1e-6)
        assert a.clock == b.clock


def test_what_is_known_of_delays():
    expected = make(NeedsDelay())
    np.testing.assert_array_equal(expected.coordinator.view().delay, expected.expected_delays)
    play(expected, 3)
    np.testing.assert_array_equal(expected.coordinator.view().delay, expected.expected_delays)
    observed = make(NeedsDelay(), fleet=Fleet(delays="observed"), clock=FREE)
    assert np.isnan(observed.coordinator.view().delay).all()
    play(observed, 1)
    learnt = observed.coordinator.view().delay
    assert np.isfinite(learnt).all()
    np.testing.assert_allclose(learnt, draw_initial_weights(0), rtol=0.6)


def test_shares():
    uniform, samples = (
        make(Random(k=2), data=Digits(clients=7), model=Softmax(), fleet=Fleet(shares=rule))
        for rule in ("uniform", "samples")
    )
    np.testing.assert_allclose(uniform.coordinator.view().share, 1 / 7)
    counts = np.array([len(part) for part in samples.trainer.data.train])
    np.testing.assert_allclose(samples.coordinator.view().share, counts / counts.sum())
    np.testing.assert_array_equal(samples.coordinator.view().labels, samples.trainer.data.label_histograms())


# -- moments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "moving"), [(Linear(), False), (Mlp(hidden=3), True)])
def test_moments_are_measured_anew_only_where_features_move(model, moving, monkeypatch):
    simulation = make(DelayhetSubmodular(ridge=1.0), model=model, clock=FREE)
    measured = []
    moment = simulation.trainer.moment
    monkeypatch.setattr(
        simulation.trainer, "moment", lambda p, c, **options: measured.append(c) or moment(p, c, **options)
    )
    rounds = play(simulation, 3)
    assert measured[:6] == [0, 1, 2, 3, 4, 5]
    # In the first round the model is still that of the warm-up.
    assert len(measured[6:]) == (sum(len(r.clients) for r in rounds[2:]) if moving else 0)


def test_moments_are_not_measured_for_those_who_need_none(monkeypatch):
    simulation = make(Random(k=2))
    monkeypatch.setattr(simulation.trainer, "moment", None)
    play(simulation, 2)


# -- errors ------------------------------------------------------------------------------------------------


def test_divergence_is_an_error():
    simulation = make(Random(k=2), training=Training(epochs=5, batch=0, lr=1e4))
    with pytest.raises(DivergedError, match=r"diverged in round .*: lower lr = 10000"):
        play(simulation, 50)


def test_divergence_is_found_before_numbers_overflow():
    simulation = make(Random(k=2), training=Training(epochs=1, batch=0, lr=4.0))
    losses = []
    with pytest.raises(DivergedError, match=r"its test loss is .*, that of the initial model was .*: lower lr = 4"):
        losses.extend(current.loss for current in islice(simulation.rounds(), 2000))
    assert len(losses) > 1
    assert losses[0] < max(losses) <= 1000 * losses[0]


def test_mistakes_are_found_before_the_first_round():
    with pytest.raises(InputError, match="random is asked for k = 7 clients, but there are only 6"):
        simulate(DATA, Linear(), DELAYS, Random(k=7))
    with pytest.raises(InputError, match="a seed is a non-negative integer"):
        simulate(DATA, Linear(), DELAYS, Random(k=2), seed=-1)

    @dataclass(frozen=True)
    class Labelled(Fixed):
        needs: ClassVar[frozenset[Need]] = frozenset({Need.LABELS})

    with pytest.raises(InputError, match="fixed needs label histograms, which these data do not have"):
        simulate(DATA, Linear(), DELAYS, Labelled())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_delays_are_refused(bad):
    @dataclass(frozen=True)
    class Broken:
        name: ClassVar[str] = "broken"

        def build(self, clients, *, model_bytes, seed):
            return self

        def expected(self):
            return np.ones(6)

        def draw(self, step):
            return np.array([1.0, 1.0, bad, 1.0, 1.0, 1.0])

    rounds = simulate(DATA, Linear(), Broken(), Random(k=2), training=TRAINING)
    next(rounds)
    with pytest.raises(InputError, match="the delay of client 2 must be a finite number of seconds"):
        next(rounds)


def test_bad_options():
    with pytest.raises(InputError, match="delays of fleet must be one of 'expected', 'observed', but 'known' came"):
        Fleet(delays="known")
    with pytest.raises(InputError, match="probe_fraction of clock must be at least 0"):
        Clock(probe_fraction=-0.1)
