"""Server steps: each against its definition by hand, on torch and NumPy vectors alike, saved and restored."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from steps import apply_answers

from fedpace._base import registry
from fedpace._base.errors import FedpaceError, InputError
from fedpace.core.server_rule import Gather, ServerRule, Source, join_state, split_state
from fedpace.hosting.shared_model import SharedModel
from fedpace.server.average import Average
from fedpace.server.calibrated import Calibrated
from fedpace.server.client_means import ClientMeans
from fedpace.server.fadas import Fadas
from fedpace.server.fedadam import Fedadam
from fedpace.server.fedavgm import Fedavgm
from fedpace.server.fedexp import Fedexp
from fedpace.server.fednova import Fednova
from fedpace.server.fedyogi import Fedyogi
from fedpace.server.last_updates import LastUpdates
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.mixing import Mixing
from fedpace.server.momentum_approximation import MomentumApproximation
from fedpace.server.nesterov import Nesterov

RULES = [
    Average(),
    Calibrated(0.7),
    Fedexp(),
    Nesterov(),
    MemoryCorrected(),
    Fedavgm(),
    Fedadam(),
    Fedyogi(),
    Mixing(),
    LastUpdates(0.7, max_age=3),
    ClientMeans(0.7),
    Fadas(),
    MomentumApproximation(0.7, history=3),
    Fednova(),
]
WEIGHTS = (0.5, 0.3, 0.2)


def trained(model, number):
    """What three clients make of `model` in step `number`: always the same."""
    rng = np.random.default_rng(number)
    return [model + 0.3 * (np.full(5, target) - model) + 0.1 * rng.normal(size=5) for target in (1.0, 2.0, -1.0)]


def played(rule, steps=6, weights=WEIGHTS, *, mean=True):
    """The models of some steps, in NumPy."""
    model, state = np.linspace(-1, 1, 5), rule.init(np.zeros(5))
    for number in range(steps):
        gather = Gather(rule, np.zeros(5), mean=mean)
        for answer, weight in zip(trained(model, number), weights, strict=True):
            gather.add(answer, model, weight)
        model, state = rule.apply(state, model, gather.answers())
        yield model


def test_every_registered_rule_is_here():
    assert {rule.name for rule in RULES} == set(registry.servers.names())


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_torch_and_numpy_step_alike(rule):
    assert isinstance(rule, ServerRule)
    model = torch.linspace(-1, 1, 5, dtype=torch.float64)
    state = rule.init(torch.zeros(5, dtype=torch.float64))
    for number, expected in enumerate(played(rule)):
        gather = Gather(rule, torch.zeros(5, dtype=torch.float64))
        for answer, weight in zip(trained(model.numpy(), number), WEIGHTS, strict=True):
            gather.add(torch.from_numpy(answer), model, weight)
        model, state = rule.apply(state, model, gather.answers())
        assert model.dtype == torch.float64
        np.testing.assert_allclose(model.numpy(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rule", [rule for rule in RULES if "rows" not in rule.takes], ids=repr)
def test_named_arrays_step_as_one_vector(rule):
    start = np.linspace(-1, 1, 5)
    shared = SharedModel({"a": start[:4].reshape(2, 2), "steps": np.array(7), "b": start[4:]}, rule)
    for number, expected in enumerate(played(rule)):
        flat = np.concatenate([shared.arrays["a"].ravel(), shared.arrays["b"]])
        answers = [
            (2 * weight, {"a": vector[:4].reshape(2, 2), "b": vector[4:], "steps": np.array(7)})
            for vector, weight in zip(trained(flat, number), WEIGHTS, strict=True)
        ]
        after = apply_answers(shared, answers)
        np.testing.assert_allclose(np.concatenate([after["a"].ravel(), after["b"]]), expected, rtol=1e-12, atol=1e-15)
        assert after["steps"] == 7


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_state_is_saved_as_scalars_and_vectors(rule):
    *_, expected = played(rule, 4)
    model, state = np.linspace(-1, 1, 5), rule.init(np.zeros(5))
    for number in range(4):
        gather = Gather(rule, np.zeros(5))
        for answer, weight in zip(trained(model, number), WEIGHTS, strict=True):
            gather.add(answer, model, weight)
        model, state = rule.apply(state, model, gather.answers())
        scalars, vectors = split_state(state)
        assert json.loads(json.dumps(scalars)).keys() == scalars.keys(), "they are saved as JSON"
        state = join_state(rule.init(np.zeros(5)), scalars, vectors)
    assert np.array_equal(model, expected)


def updates(model, number):
    return [answer - model for answer in trained(model, number)]


def test_the_average_and_delta_weights_that_sum_to_nothing():
    start = np.linspace(-1, 1, 5)
    first = next(played(Average()))
    np.testing.assert_allclose(first, sum(w * x for w, x in zip(WEIGHTS, trained(start, 0), strict=True)))
    weights = (1.0, -0.75, -0.25)
    moved = next(played(Average(), weights=weights, mean=False))
    np.testing.assert_allclose(moved, start + sum(w * u for w, u in zip(weights, updates(start, 0), strict=True)))
    assert not np.allclose(moved, start)


def test_fedavgm_by_hand():
    model, velocity = np.linspace(-1, 1, 5), np.zeros(5)
    for number, found in enumerate(played(Fedavgm(momentum=0.5, lr=0.7))):
        step = sum(w * u for w, u in zip(WEIGHTS, updates(model, number), strict=True))
        velocity = 0.5 * velocity + step
        model = model + 0.7 * velocity
        np.testing.assert_allclose(found, model)


@pytest.mark.parametrize("weights", [(0.2, 0.1, 0.3), WEIGHTS, (0.9, 0.8, -0.1)])
def test_mixing_goes_to_the_models_however_old_they_are(weights):
    model, old = np.linspace(-1, 1, 5), np.full(5, 3.0)
    gather = Gather(Mixing(), np.zeros(5), mean=False)
    for answer, weight in zip(trained(old, 0), weights, strict=True):
        gather.add(answer, old, weight)
    moved, _ = Mixing().apply(None, model, gather.answers())
    mixed = sum(w * x for w, x in zip(weights, trained(old, 0), strict=True))
    np.testing.assert_allclose(moved, (1 - sum(weights)) * model + mixed, rtol=1e-12)


def test_calibrated_forgets_who_has_left():
    """Otherwise its last update moves the model in every step, for ever."""
    rule, model = Calibrated(), np.zeros(5)
    gather = Gather(rule, np.zeros(5), mean=False)
    gather.add(model + 1, model, 0.5, Source("a", 0, 0.5))
    gather.add(model - 8, model, 0.5, Source("b", 0, 0.5))
    model, state = rule.apply(rule.init(np.zeros(5)), model, gather.answers(0))
    gather = Gather(rule, np.zeros(5), mean=False)
    gather.add(model + 1, model, 1.0, Source("a", 1, 1.0))
    after, state = rule.apply(state, model, gather.answers(1, share_of={"a": 1.0}.get))
    np.testing.assert_allclose(after - model, 1.0)
    assert state.cached_clients == ("a",)


def test_calibrated_by_hand():
    """Six clients, three of which answer in each step, on models of different ages; shares differ."""
    rule, share = Calibrated(lr=0.7), np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    state, model, last = rule.init(np.zeros(5)), np.linspace(-1, 1, 5), np.zeros((6, 5))
    models = [model]
    rng = np.random.default_rng(7)
    for version in range(12):
        gather, weights, updates = Gather(rule, np.zeros(5), mean=False), rng.random(3), rng.normal(size=(3, 5))
        clients = rng.integers(6, size=3) if version % 4 == 3 else rng.permutation(6)[:3]  # one may answer twice
        for client, weight, update in zip(clients, weights, updates, strict=True):
            given = int(rng.integers(version + 1))
            source = Source(int(client), given, share[client])
            gather.add(models[given] + update, models[given], weight, source)
        model, state = rule.apply(state, model, gather.answers(version))
        models.append(model)
        step = share @ last + sum(w * (u - last[c]) for c, w, u in zip(clients, weights, updates, strict=True))
        np.testing.assert_allclose(model, models[version] + 0.7 * step, rtol=1e-9, atol=1e-12)
        for client, update in zip(clients, updates, strict=True):
            last[client] = update
        scalars, vectors = split_state(state)
        state = join_state(rule.init(np.zeros(5)), scalars, vectors)


def test_a_full_cache_forgets_those_that_were_heard_longest_ago(monkeypatch):
    monkeypatch.setattr("fedpace.server.calibrated.ROOM", 3 * 8 * 5)
    rule, state, model = Calibrated(), Calibrated().init(np.zeros(5)), np.zeros(5)
    for client in (0, 1, 2, 0, 3):
        gather = Gather(rule, np.zeros(5), mean=False)
        gather.add(model + 1.0, model, 0.5, Source(client, 0, 0.25))
        model, state = rule.apply(state, model, gather.answers(0))
    assert state.cached_clients == (2, 0, 3)
    assert state.cached.shape == (3, 5)


@pytest.mark.parametrize("rule", [Fedadam(lr=0.2), Fedyogi(lr=0.2)], ids=repr)
def test_adaptive_rules_by_hand(rule):
    model, mean, variance = np.linspace(-1, 1, 5), np.zeros(5), np.full(5, 1e-6)
    for number, found in enumerate(played(rule)):
        step = sum(w * u for w, u in zip(WEIGHTS, updates(model, number), strict=True))
        mean = 0.9 * mean + 0.1 * step
        if rule.name == "fedadam":
            variance = 0.99 * variance + 0.01 * step**2
        else:
            variance = variance - 0.01 * step**2 * np.sign(variance - step**2)
        model = model + 0.2 * mean / (np.sqrt(variance) + 1e-3)
        np.testing.assert_allclose(found, model)


def test_counters_are_averaged_and_stay_whole():
    shared = SharedModel({"w": np.zeros(1, np.float32), "count": np.array([4])}, Nesterov())
    after = apply_answers(shared, [(0.5, {"w": np.ones(1), "count": np.array([6])}), (0.5, {"w": np.ones(1)})])
    assert after["count"].tolist() == [5]
    assert after["count"].dtype == np.int64
    assert after["w"].dtype == np.float32


@pytest.mark.parametrize("name", ["bn.running_var", "bn.running_mean", "bn/moving_variance"])
def test_running_statistics_are_averaged_and_never_extrapolated(name):
    """With a momentum of 0.9, a variance that was stepped along would be below 0 in the third step."""
    shared = SharedModel({"w": np.zeros(2), name: np.full(2, 1.0, np.float32)}, Fedavgm(0.9))
    for variance in (0.5, 0.1, 0.01):
        answers = [(0.75, {"w": np.ones(2), name: np.full(2, variance)}), (0.25, {"w": np.zeros(2), name: np.ones(2)})]
        after = apply_answers(shared, answers, "delta" if variance == 0.1 else "average")
        np.testing.assert_allclose(after[name], 0.75 * variance + 0.25, rtol=1e-6)
        assert after[name].dtype == np.float32
        np.testing.assert_allclose(
            shared.apply_to_average({**after, name: np.full(2, 0.2, np.float32)}, answers)[name], 0.2
        )
    apply_answers(
        shared, [(-1.0, {"w": np.ones(2), name: np.full(2, 5.0)}), (2.0, {"w": np.ones(2), name: np.ones(2)})], "delta"
    )
    np.testing.assert_allclose(shared.arrays[name], 1.0, err_msg="a negative weight could make a variance negative")


@pytest.mark.parametrize("answers", [[], [(0.0, {"w": np.ones(1)})]], ids=["nobody", "nobody that counts"])
def test_nobody_moves_nothing(answers):
    shared = SharedModel({"w": np.full(1, 3.0)}, Nesterov())
    assert apply_answers(shared, answers)["w"] == 3.0
    assert shared.saved_state()[0]["state"]["age"] == 0


def test_an_average_that_others_made_is_carried_on_alike():
    mine, theirs = (SharedModel({"w": np.zeros(5)}, Nesterov()) for _ in range(2))
    for number in range(4):
        answers = [(w, {"w": x}) for w, x in zip(WEIGHTS, trained(mine.arrays["w"], number), strict=True)]
        averaged = {"w": sum(weight * arrays["w"] for weight, arrays in answers)}
        np.testing.assert_allclose(
            theirs.apply_to_average(averaged, answers)["w"], apply_answers(mine, answers)["w"], rtol=1e-12
        )


def test_a_restarted_server_goes_on_and_another_rule_starts_anew():
    whole, first = (SharedModel({"w": np.zeros(5)}, Nesterov()) for _ in range(2))
    second = SharedModel({"w": np.zeros(5)}, Nesterov())
    for number in range(6):
        at = first if number < 3 else second
        answers = [(w, {"w": x}) for w, x in zip(WEIGHTS, trained(whole.arrays["w"], number), strict=True)]
        apply_answers(whole, answers)
        apply_answers(at, answers)
        if number == 2:
            second.arrays = first.arrays
            second.load_state(*first.saved_state())
    assert np.array_equal(whole.arrays["w"], second.arrays["w"])
    other = SharedModel({"w": np.zeros(5)}, Fedavgm())
    other.load_state(*whole.saved_state())
    assert not other.saved_state()[1]["server:velocity"].any()
    with pytest.raises(InputError, match="another model"):
        SharedModel({"w": np.zeros(3)}, Nesterov()).load_state(*whole.saved_state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fedexp(power=2.0), "power of fedexp"),
        (lambda: Nesterov(power=-1.0), "power of nesterov"),
        (lambda: Fedavgm(momentum=1.0), "momentum of fedavgm"),
        (lambda: Calibrated(lr=0.0), "lr of calibrated"),
        (lambda: Fedadam(tau=0.0), "tau of fedadam"),
        (lambda: Fedyogi(beta_2=1.0), "beta_2 of fedyogi"),
        (lambda: registry.servers.make("fedadm"), "Did you mean 'fedadam'"),
    ],
)
def test_senseless_options_are_refused(make, words):
    with pytest.raises(FedpaceError, match=words):
        make()
