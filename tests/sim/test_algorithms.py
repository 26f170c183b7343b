"""FedProx and SCAFFOLD, and the sketches of updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.types import Cohort, Need, Stateless
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.models.builtin import Linear, Softmax
from fedpace.numerics.count_sketch import CountSketch
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random
from fedpace.sim.clients import ControlVariates
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.torch_trainer import TorchTrainer, Training

SMALL = Quadratic(clients=6, samples=8, test_samples=8, dimension=5)


def simulation(selector, *, data=SMALL, model=None, **training):
    training = {"epochs": 2, "batch": 4, "lr": 0.01, **training}
    clock = Clock(charge_warmup=False)  # rounds begin with what the warm-up measured
    return Simulation(
        data, model or Linear(), ConstantDelays(), selector, training=Training(**training), clock=clock, seed=1
    )


def play(sim, rounds):
    stream_of_rounds = sim.rounds()
    return [next(stream_of_rounds) for _ in range(rounds + 1)]


def test_fedprox_step_is_pulled_towards_the_received_model():
    """Two full-batch steps by hand: the second gradient gains mu (v - x)."""
    mu, lr = 0.7, 0.02
    trainer = TorchTrainer(
        SMALL.build(seed=0), Linear(), Training(epochs=2, batch=0, lr=lr, algorithm="fedprox", mu=mu), seed=0
    )
    start = torch.linspace(-1, 1, 5)
    X, y = (trainer.data.train[2].inputs.astype(np.float64), trainer.data.train[2].targets.astype(np.float64))
    x = start.numpy().astype(np.float64)
    v = x.copy()
    for _ in range(2):
        v = v - lr * (X.T @ (X @ v - y) / len(y) + mu * (v - x))
    np.testing.assert_allclose(trainer.train(start, 2, 0).parameters.numpy(), v, rtol=1e-5)


def test_fedprox_without_pull_is_fedavg():
    plain, prox = (play(simulation(Random(k=3), **o), 4) for o in ({}, {"algorithm": "fedprox", "mu": 0.0}))
    assert [r.metric for r in plain] == [r.metric for r in prox]
    pulled = play(simulation(Random(k=3), algorithm="fedprox", mu=5.0), 4)
    assert pulled[-1].metric != plain[-1].metric


@pytest.mark.parametrize(
    "selector", [Random(k=2), Random(k=3, variant="uniform-unbiased"), DelayhetSubmodular(target_heterogeneity=0.5)]
)
@pytest.mark.parametrize("shares", ["uniform", "samples"])
def test_scaffold_keeps_the_server_variate_at_the_shared_mean(selector, shares):
    """The invariant c = sum share_i c_i, under uniform and non-uniform selection alike."""
    sim = Simulation(
        Digits(clients=9),
        Softmax(),
        SyntheticDelays(),
        selector,
        training=Training(epochs=1, lr=0.1, algorithm="scaffold"),
        fleet=Fleet(shares=shares),
        seed=3,
    )
    play(sim, 5)
    share = sim.coordinator.view().share
    mean = sum(share[client] * sim.variates.of(client).double() for client in range(9))
    np.testing.assert_allclose(sim.variates.server.numpy(), mean.numpy(), atol=1e-6)
    assert sim.variates.server.abs().max() > 0


def test_scaffold_warm_up_initialises_everybodys_variate():
    sim = simulation(DelayhetSubmodular(target_heterogeneity=0.5, max_clients=1), algorithm="scaffold")
    first = play(sim, 1)[-1]
    idle = set(range(6)) - set(first.clients)
    assert idle
    for client in idle:
        expected = sim.trainer.gradient(sim.trainer.initial, client)
        np.testing.assert_allclose(sim.variates.of(client).numpy(), expected.numpy(), rtol=1e-6)


def test_scaffold_variate_follows_option_two():
    variates = ControlVariates(torch.zeros(2), np.array([0.25, 0.75]))
    variates.replace(1, torch.tensor([4.0, 0.0]))
    np.testing.assert_allclose(variates.server.numpy(), [3.0, 0.0])
    seen = variates.round()
    np.testing.assert_allclose(seen.correction(0).numpy(), [3.0, 0.0])
    seen.learn(0, torch.tensor([1.0, 2.0]))  # c_0 <- 0 - (3, 0) + (1, 2)
    np.testing.assert_allclose(variates.of(0).numpy(), [-2.0, 2.0])
    np.testing.assert_allclose(variates.server.numpy(), [2.5, 0.5])
    np.testing.assert_allclose(seen.correction(1).numpy(), [-1.0, 0.0])  # the cohort still sees the old c


def test_scaffold_removes_the_bias_of_a_fixed_cohort_average():
    """Full participation with many local steps: FedAvg stops at a biased point, SCAFFOLD goes on to the optimum."""
    data = Quadratic(clients=4, samples=6, test_samples=4, dimension=12)
    options = {"data": data, "epochs": 20, "batch": 0, "lr": 0.02}
    rounds = 60
    sims = {name: simulation(Random(k=4), algorithm=name, **options) for name in ("fedavg", "scaffold")}
    norms = {}
    for name, sim in sims.items():
        play(sim, rounds)
        mean = sum(sim.trainer.gradient(sim.parameters, client) for client in range(4)) / 4
        norms[name] = float(mean.norm())
    assert norms["scaffold"] < 0.2 * norms["fedavg"]


def test_scaffold_doubles_the_message_on_the_clock():
    single, double = (simulation(Random(k=2), algorithm=a).trainer.message_bytes for a in ("fedavg", "scaffold"))
    assert (single, double) == (5 * 4, 2 * 5 * 4)
    link = SyntheticDelays(compute=(1.0, 1.0))
    slow, slower = (link.build(50, model_bytes=size * 10**6, seed=0).expected() - 1 for size in (single, double))
    np.testing.assert_allclose(slower, 2 * slow)


def test_scaffold_with_momentum_is_refused():
    with pytest.raises(InputError, match="momentum"):
        Training(algorithm="scaffold", momentum=0.9)


def test_sketch_preserves_inner_products_on_average():
    rng = stream(0, "test sketch")
    a, b = (torch.from_numpy(rng.normal(size=40)) for _ in range(2))
    estimates = [CountSketch(40, 16, seed=seed)(a) @ CountSketch(40, 16, seed=seed)(b) for seed in range(4000)]
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - float(a @ b)) < 4 * error
    assert CountSketch(40, 16, seed=0)(a).shape == (16,)


@pytest.mark.parametrize("width", [0, 40, 100])
def test_sketch_that_is_wide_enough_is_the_vector(width):
    vector = torch.arange(40.0)
    np.testing.assert_array_equal(CountSketch(40, width, seed=0)(vector), vector.numpy())


class Watching(Stateless):
    """Chooses everybody and keeps what it was shown; for tests only."""

    name = "watching"
    needs = frozenset({Need.UPDATE})

    def __init__(self, kind=None):
        self.kind, self.views, self.reports = kind, [], []

    def probe(self, state, view, rng):
        from fedpace.core.types import Probe

        return None if self.kind is None else Probe(view.candidates, self.kind)

    def select(self, state, view, rng):
        self.views.append(view)
        return Cohort(view.candidates, np.full(view.candidates.size, 1 / view.candidates.size)), None

    def observe(self, state, report):
        self.reports.append(report)


def test_updates_that_schemes_see_are_the_updates():
    """With one full-batch step and whole updates, a client's update is minus lr times its gradient."""
    selector = Watching()
    sim = simulation(selector, epochs=1, batch=0, lr=0.01, sketch=0)
    before = sim.parameters
    play(sim, 1)
    for client in range(6):
        step = -0.01 * sim.trainer.gradient(before, client).numpy()
        np.testing.assert_allclose(selector.views[0].updates[client], step, rtol=1e-4, atol=1e-6)  # from the warm-up
        np.testing.assert_allclose(selector.reports[0].updates[client], step, rtol=1e-4, atol=1e-6)


def test_gradient_probes_are_fresh_at_the_current_model():
    selector = Watching(kind="gradient")
    sim = simulation(selector, epochs=3, batch=0, lr=0.01, sketch=0)
    play(sim, 1)
    moved = sim.parameters
    play_on = sim.rounds()
    next(play_on), next(play_on)
    step = -0.01 * sim.trainer.gradient(moved, 4).numpy()
    np.testing.assert_allclose(selector.views[1].updates[4], step, rtol=1e-4, atol=1e-6)
