from __future__ import annotations

import json

import numpy as np
import pytest

from fedpace import FedpaceError, make_server
from fedpace.population import Group, Learning, Limits, Steering, make_admission, scenario, simulate
from fedpace.population.admission import averaged
from fedpace.population.learning import Trainer
from fedpace.server.average import Average

LIMITS = Limits(concurrency=60)


def run(policy="paced", options=None, *, name="rare", seconds=1500.0, seed=0, **others):
    groups, learning = scenario(name, 20_000, seed=seed)
    return simulate(
        groups,
        make_admission(policy, **(options or {})),
        limits=LIMITS,
        learning=learning,
        seconds=seconds,
        start_hour=22,
        rollout=1200,
        seed=seed,
        **others,
    )


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("paced", {}),
        ("first-come", {"buffer": 10, "lr": 2.0}),
        ("random", {"buffer": 10, "lr": 2.0}),
        ("over-selection", {"goal": 20, "lr": 4.0}),
    ],
)
def test_a_real_model_learns(policy, options):
    result = run(policy, options)
    assert result.evaluations[0].accuracy < 0.2
    assert result.evaluations[-1].accuracy > 0.4
    assert result.admitted.sum() >= (result.answered + result.lost).sum() > 0
    assert result.steps == len(result.step_sizes) >= 3
    assert result.weight.sum() == pytest.approx(1)
    json.dumps(result.summary())


def test_the_same_seed_gives_the_same_model_and_another_does_not():
    one, two, other = run(seconds=400.0), run(seconds=400.0), run(seconds=400.0, seed=1)
    assert np.array_equal(one.model, two.model)
    assert one.load.tolist() == two.load.tolist()
    assert not np.array_equal(one.model, other.model)


def test_a_target_ends_the_simulation():
    result = run(target=0.5, hold=3, evaluate_every=30.0)
    assert result.held is not None
    assert result.seconds < 1500
    late = [evaluation.accuracy for evaluation in result.evaluations if evaluation.clock >= result.held]
    assert np.mean(late[:3]) >= 0.5


def test_over_selection_makes_the_average_of_its_round():
    """One round against the definition: the model moves by the mean of the updates of the first answers."""
    groups = [Group("a", 10**6, seconds=10.0, dropout=0.0, day=1.0)]
    learning = Learning({"a": [1.0] * 10})
    sizes, means = [], []

    class Watching(Average):
        def apply(self, state, model, answers):
            sizes.append(answers.weights.size)
            means.append(np.asarray(answers.step))
            moved, state = super().apply(state, model, answers)
            assert moved == pytest.approx(model + answers.step, abs=1e-6)
            return moved, state

    result = simulate(
        groups,
        make_admission("over-selection", goal=10),
        learning=learning,
        server=Watching(),
        seconds=60.0,
        rollout=0.0,
    )
    assert set(sizes) == {10}
    assert result.abandoned > 0
    assert all(np.isfinite(mean).all() for mean in means)


def test_first_come_with_equal_delays_and_a_full_buffer_is_federated_averaging():
    """The degenerate case of FedBuff: every device takes equally long, and the buffer holds all devices in flight."""
    groups = [Group("a", 10**6, seconds=30.0, spread=0.0, dropout=0.0, day=1.0)]
    learning = Learning({"a": [1.0] * 10})
    limits = Limits(concurrency=20)
    common = {
        "limits": limits,
        "learning": learning,
        "seconds": 300.0,
        "rollout": 0.0,
        "server": make_server("average"),
    }
    buffered = simulate(groups, make_admission("first-come", buffer=20, over_selection=1.0), **common)
    rounds = simulate(groups, make_admission("over-selection", goal=20, factor=1.0), **common)
    assert buffered.steps == rounds.steps > 3
    assert max(buffered.mean_lags) == 0
    assert buffered.model == pytest.approx(rounds.model, abs=1e-6)


def test_an_outage_loses_tasks_and_brings_a_herd():
    groups, _ = scenario("alike", 100_000)
    quiet = simulate(groups, make_admission("first-come"), limits=LIMITS, seconds=6 * 3600.0)
    outage = simulate(groups, make_admission("first-come"), limits=LIMITS, seconds=6 * 3600.0, outages=[(7200, 9000)])
    assert outage.lost.sum() > quiet.lost.sum()
    assert outage.steps < quiet.steps


def test_load_without_learning_needs_no_model():
    groups, _ = scenario("rare-shy", 10**8)
    result = simulate(
        groups, make_admission("paced"), limits=Limits(concurrency=10_000), steering=Steering(500.0), seconds=1800.0
    )
    assert result.model is None
    assert result.check_ins > 10**5
    assert result.steps > 0


def test_devices_draw_their_data_from_their_group():
    groups, learning = scenario("rare", 1000)
    trainer = Trainer(learning, [group.name for group in groups])
    rng = np.random.default_rng(0)
    labels, rows = trainer._samples(np.full(400, 0), rng)  # a fast group
    assert set(np.unique(labels)) == set(range(8))
    slow, _ = trainer._samples(np.full(400, 2), rng)
    assert np.isin(slow, (8, 9)).mean() == pytest.approx(0.75, abs=0.05)
    inside = np.searchsorted(np.cumsum(trainer._counts), rows, side="right")
    assert (inside == labels).all()


def test_training_is_gradient_descent_on_the_cross_entropy():
    """One local step on all samples against the gradient by finite differences."""
    learning = Learning({"a": [1.0] * 10}, samples=4, batch=4, lr=1e-2)
    trainer = Trainer(learning, ["a"])
    model = np.random.default_rng(1).normal(0, 0.1, trainer.initial.size).astype(np.float32)
    update = trainer.updates(model, np.zeros(1, dtype=np.int64), np.random.default_rng(7))[0]
    labels, rows = trainer._samples(np.zeros(1, dtype=np.int64), np.random.default_rng(7))
    inputs = trainer._inputs[rows[0]].astype(np.float64)

    def loss(flat):
        weight, bias = flat[:640].reshape(10, 64), flat[640:]
        outputs = inputs @ weight.T + bias
        outputs -= outputs.max(1, keepdims=True)
        return float(np.mean(np.log(np.exp(outputs).sum(1)) - outputs[np.arange(4), labels[0]]))

    at = model.astype(np.float64)
    for place in (0, 77, 333, 639, 640, 649):
        nudge = np.zeros(at.size)
        nudge[place] = 1e-5
        slope = (loss(at + nudge) - loss(at - nudge)) / 2e-5
        assert update[place] == pytest.approx(-1e-2 * slope, abs=2e-6)


def test_the_model_to_use_is_the_mean_over_the_last_steps():
    models = np.random.default_rng(0).normal(size=(40, 3))
    used = models[0]
    for steps, model in enumerate(models[1:], 1):
        used = averaged(used, model, steps, 1.0)
    assert used == pytest.approx(models[1:].mean(0))
    assert averaged(models[0], models[1], 9, 0.0) == pytest.approx(models[1])
    last, mean = (run(options={"average": part}, seconds=600.0) for part in (0.0, 1.0))
    assert last.steps == mean.steps  # devices train from the last model either way
    assert not np.array_equal(last.model, mean.model)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: scenario("other"), "scenario must be one of"),
        (lambda: scenario("rare", 3), "devices"),
        (lambda: simulate([Group("a", 9)], make_admission("paced"), seconds=0), "seconds"),
        (lambda: simulate([Group("a", 9)], make_admission("paced"), outages=[(5, 1)]), "outage"),
        (lambda: Trainer(Learning({"a": [1.0] * 10}), ["b"]), "'b' is missing"),
        (lambda: Trainer(Learning({"a": [1.0] * 3}), ["a"]), "10 weights"),
        (lambda: Trainer(Learning({"a": [1.0] * 10}, model="resnet18"), ["a"]), "linear layers"),
        (lambda: Learning({}, samples=0), "samples"),
    ],
)
def test_mistakes_are_refused(wrong, sentence):
    with pytest.raises(FedpaceError, match=sentence):
        wrong()
