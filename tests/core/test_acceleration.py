"""Momentum: its sequence and restarts, against Nesterov's method by hand, in the simulator and across checkpoints."""

from __future__ import annotations

import dataclasses
from itertools import islice

import numpy as np
import pytest
import torch

from fedpace import Session, make_selector
from fedpace.core.acceleration import Momentum
from fedpace.core.errors import InputError
from fedpace.core.extrapolation import extrapolation
from fedpace.core.types import Cohort, Stateless
from fedpace.data.quadratic import Quadratic
from fedpace.delays.uniform import UniformDelays
from fedpace.hosting.steps import Steps
from fedpace.models.linear import Linear
from fedpace.sim.aggregation import Aggregate, Lead
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training


def test_the_part_that_is_carried_on_grows_with_the_rounds():
    momentum = Momentum()
    assert [momentum.carried(1.0) for _ in range(4)] == [0.0, 1 / 4, 2 / 5, 3 / 6]


def test_a_round_that_turns_back_starts_anew():
    momentum = Momentum(age=7)
    assert momentum.carried(-1e-9) == 0.0
    assert momentum.carried(1.0) == 1 / 4


def test_momentum_counts_as_part_of_the_lengthening():
    assert extrapolation(8.0, 1.0, 1.0) == 4.0
    assert extrapolation(8.0, 1.0, 1.0, carried=0.25) == pytest.approx(3.0)
    assert extrapolation(8.0, 1.0, 1.0, carried=0.9) == 1.0, "never shorter than the average"


def nesterov(slope, start, rounds):
    """Nesterov's method as textbooks have it: x_k = y_k - slope(y_k), y_(k+1) = x_k + k / (k + 3) (x_k - x_(k-1))."""
    y, x, path, age = start.copy(), start.copy(), [], 0
    for _ in range(rounds):
        step = -slope(y)
        moved = y + step - x
        if step @ moved < 0:
            age = 0
        x, y, age = y + step, y + step + age / (age + 3) * moved, age + 1
        path.append(y)
    return path


@pytest.mark.parametrize("rounds", [12, 60])
def test_it_is_nesterovs_method_with_restarts(rounds):
    """One client that takes one step of gradient descent on an ill-conditioned quadratic: long enough to restart."""
    curvature = torch.tensor([1.0, 0.3, 0.01], dtype=torch.float64)
    start = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    expected = nesterov(lambda y: 0.9 * curvature.numpy() * y, start.numpy(), rounds)
    model, lead, ages = start.clone(), Lead(start), []
    for wanted in expected:
        combined = Aggregate(model, "average", lead=lead)
        combined.add(model - 0.9 * curvature * model, 1.0)
        model = combined.result()
        ages.append(lead.momentum.age)
        np.testing.assert_allclose(model.numpy(), wanted, rtol=1e-12, atol=1e-15)
    assert (1 in ages[1:]) == (rounds == 60), "only the longer one restarts"


def test_hosts_with_named_arrays_move_as_the_simulator_does():
    rng = np.random.default_rng(0)
    weights = [0.5, 0.3, 0.2]
    model, lead, steps = torch.from_numpy(rng.normal(size=6)), Lead(torch.zeros(6)), Steps()
    count = np.array(3, dtype=np.int64)
    selection = type("Selection", (), {"momentum": True, "extrapolate": 1.0})()
    for _ in range(5):
        clients = [model + torch.from_numpy(rng.normal(size=6)) for _ in weights]
        combined = Aggregate(model, "average", extrapolate=1.0, lead=lead)
        for client, weight in zip(clients, weights, strict=True):
            combined.add(client, weight)
        current = {"a": model[:4].numpy().reshape(2, 2), "b": model[4:].numpy(), "count": count}
        named = [
            (2 * weight, {"a": client[:4].numpy().reshape(2, 2), "b": client[4:].numpy(), "count": count})
            for client, weight in zip(clients, weights, strict=True)
        ]
        factor = steps.factor(current, named, selection)
        averaged = {
            key: current[key]
            + factor * sum(w * (m[key] - current[key]) for w, m in zip(weights, _arrays(named), strict=True))
            for key in ("a", "b")
        }
        after = steps.carry_on(current, averaged | {"count": count})
        model = combined.result()
        assert factor == pytest.approx(combined.stretch)
        np.testing.assert_allclose(np.concatenate([after["a"].ravel(), after["b"]]), model.numpy(), rtol=1e-12)
        assert after["count"] is count, "counters are left alone"
    assert combined.carried == 4 / 7


def test_a_server_of_ones_own_moves_as_the_simulator_does():
    """With all that `pace` asks for, over rounds; and in delta mode."""
    rng = np.random.default_rng(1)
    weights = np.array([0.6, 0.4])
    session = Session(make_selector("random", k=2, momentum=True, extrapolate=1.0))
    session.join(["a", "b"])
    selection = session.select()
    model, lead, steps = torch.from_numpy(rng.normal(size=3)), Lead(torch.zeros(3)), Steps()
    for _ in range(4):
        clients = [model + torch.from_numpy(rng.normal(size=3)) for _ in weights]
        combined = Aggregate(model, "average", extrapolate=1.0, lead=lead)
        for client, weight in zip(clients, weights, strict=True):
            combined.add(client, weight)
        answers = [(weight, {"w": client.numpy()}) for weight, client in zip(weights, clients, strict=True)]
        after = steps.next_model({"w": model.numpy()}, answers, selection)["w"]
        model = combined.result()
        np.testing.assert_allclose(after, model.numpy(), rtol=1e-12)
    delta = dataclasses.replace(selection, mode="delta", momentum=False, extrapolate=0.0)
    after = steps.next_model({"w": np.zeros(1)}, [(2.0, {"w": np.ones(1)}), (-0.5, {"w": np.full(1, 3.0)})], delta)
    assert after["w"] == pytest.approx(0.5)
    assert steps.next_model({"w": np.ones(1)}, [], delta)["w"] == 1.0


def _arrays(named):
    return [model for _, model in named]


def simulation(**options):
    return Simulation(
        Quadratic(clients=8, samples=12, test_samples=10, dimension=5),
        Linear(),
        UniformDelays(),
        make_selector("random", k=4, **options),
        training=Training(epochs=1, batch=0, lr=0.05),
        seed=1,
    )


def test_rounds_record_what_they_carry_on():
    rounds = list(islice(simulation(momentum=True).rounds(), 4))
    assert [one.carried for one in rounds] == [0.0, 0.0, 1 / 4, 2 / 5]
    assert all(one.carried == 0.0 for one in islice(simulation().rounds(), 4))


def test_a_run_with_momentum_resumes_bit_for_bit(tmp_path):
    whole = simulation(momentum=True, extrapolate=1.0)
    expected = list(islice(whole.rounds(), 9))
    cut = simulation(momentum=True, extrapolate=1.0)
    list(islice(cut.rounds(), 5))
    Checkpoints(tmp_path).save(cut, wall_seconds=1.0)
    resumed = simulation(momentum=True, extrapolate=1.0)
    Checkpoints(tmp_path).restore(resumed)
    assert list(islice(resumed.rounds(), 4)) == expected[5:]
    assert torch.equal(resumed.parameters, whole.parameters)


def test_a_round_without_momentum_forgets_it():
    one = simulation(momentum=True)
    list(islice(one.rounds(), 4))
    assert one.lead.ahead.any()
    one.session.selector = make_selector("random", k=4)
    next(one.rounds())
    assert not one.lead.ahead.any()
    assert one.lead.momentum.age == 0


class Confused(Stateless):
    """Carries on what is no average."""

    name = "confused"
    needs = frozenset()

    def select(self, state, view, rng):
        return Cohort(np.array([0]), np.array([2.0]), mode="delta", momentum=True), None


def test_only_an_average_can_be_carried_on():
    session = Session(Confused())
    session.join(["a"])
    with pytest.raises(InputError, match="only an average can be carried on"):
        session.select()
    with pytest.raises(InputError, match="uniform-unbiased"):
        make_selector("random", variant="uniform-unbiased", momentum=True)
