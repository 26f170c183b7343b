"""Each attack of the benchmark does what its definition says, in rounds and without them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from benchmark_path import benchmark

from fedpace._base.registry import selectors
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

attacks = benchmark("lib.attacks")
Attack, ATTACKS = attacks.Attack, attacks.ATTACKS
CLIENTS = 12
FEW = np.array([2, 5, 7])
OTHERS = [client for client in range(CLIENTS) if client not in FEW]
SCHEMES = {"pace": {}, "pace-async": {}, "random": {"k": 6}, "fedbuff": {"buffer": 4}}


def federation(how=None, scheme="random", arithmetic="numpy", seed=0):
    how = how or Attack()
    simulation = Simulation(
        Digits(clients=CLIENTS),
        Softmax(),
        LognormalDelays(),
        selectors[scheme](**SCHEMES[scheme]),
        training=Training(epochs=1, batch=32, lr=0.3, arithmetic=arithmetic),
        seed=seed,
    )
    attacks.attack(simulation, FEW, how)
    return simulation


def updates(simulation, model, step=3, clients=range(CLIENTS)):
    """What clients send, by client."""
    results = simulation.engine.train(model, list(clients), step)
    return {client: np.asarray(r.parameters - model) for client, r in zip(clients, results, strict=True)}


@pytest.fixture(scope="module")
def model():
    """A model that has learnt something: at the first one, all updates are alike."""
    return models(None, "random", 2)[-1]


@pytest.fixture(scope="module")
def honest(model):
    return updates(federation(), model)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "factor"), [("sign flip", -1.0), ("scaled", -10.0), ("zeros", 0.0)])
def test_updates_are_multiplied_and_those_of_others_are_not(model, honest, name, factor):
    found = updates(federation(ATTACKS[name]), model)
    for client in FEW:
        close(found[client], factor * honest[client])
    for client in OTHERS:
        np.testing.assert_array_equal(found[client], honest[client])


@pytest.mark.parametrize(("name", "known"), [("alie", FEW), ("alie, omniscient", OTHERS)])
def test_alie_is_the_mean_less_deviations_of_what_attackers_know(model, honest, name, known):
    table = np.array([honest[client] for client in known])
    found = updates(federation(ATTACKS[name]), model)
    for client in FEW:
        close(found[client], table.mean(0) - 1.5 * table.std(0))


@pytest.mark.parametrize(("name", "known"), [("ipm", FEW), ("ipm, omniscient", OTHERS)])
def test_ipm_is_the_mean_turned_round(model, honest, name, known):
    found = updates(federation(ATTACKS[name]), model)
    for client in FEW:
        close(found[client], -0.5 * np.mean([honest[other] for other in known], axis=0))


def test_attackers_know_the_update_of_the_model_that_each_was_given(model, honest):
    """Without rounds each has another model, and a turn of its own."""
    simulation, first = federation(ATTACKS["ipm"]), federation().parameters
    results = list(simulation.engine.train_from([model, first, first], [2, 5, 0], [3, 9, 9]))
    of_first = updates(federation(), first, 9)
    close(results[0].parameters - model, -0.5 * np.mean([honest[client] for client in FEW], axis=0))
    close(results[1].parameters - first, -0.5 * np.mean([of_first[client] for client in FEW], axis=0))
    close(results[2].parameters - first, of_first[0])


def test_a_constant_bias_is_one_direction_as_long_as_the_honest_updates_say(model, honest):
    simulation = federation(ATTACKS["constant bias"])
    found, later = updates(simulation, model), updates(simulation, federation().parameters, 8)
    direction = found[2] / np.linalg.norm(found[2])
    for sent in (found[5], later[2], later[7]):
        close(sent / np.linalg.norm(sent), direction)
    assert np.linalg.norm(found[2]) == pytest.approx(3 * np.linalg.norm(honest[2]), rel=1e-3)


def test_all_classes_are_flipped_of_attackers_alone():
    plain = federation().trainer.data
    changed = attacks.poisoned(plain, FEW, "labels")
    for client in range(CLIENTS):
        expected = 9 - plain.train[client].targets if client in FEW else plain.train[client].targets
        np.testing.assert_array_equal(changed.train[client].targets, expected)
        np.testing.assert_array_equal(changed.train[client].inputs, plain.train[client].inputs)
    np.testing.assert_array_equal(changed.test.targets, plain.test.targets)


def test_attackers_train_on_changed_data_and_the_validation_set_is_of_true_ones(model, honest):
    simulation = federation(ATTACKS["label flip"])
    found = updates(simulation, model)
    for client in range(CLIENTS):
        assert np.allclose(found[client], honest[client], atol=1e-6) == (client not in FEW), client
    plain = federation().trainer.data
    for client in range(CLIENTS):
        np.testing.assert_array_equal(simulation.trainer.data.train[client].targets, plain.train[client].targets)


def test_a_backdoor_is_planted_beside_what_attackers_hold():
    plain = federation().trainer.data
    changed = attacks.poisoned(plain, FEW, "backdoor")
    own, poisoned = plain.train[5], changed.train[5]
    count = len(own)
    assert len(poisoned) == 2 * count
    np.testing.assert_array_equal(poisoned.inputs[:count], own.inputs)
    np.testing.assert_array_equal(poisoned.targets[:count], own.targets)
    assert (poisoned.targets[count:] == attacks.TARGET).all()
    assert (poisoned.inputs[count:, attacks.PATCH] == 1).all()
    rest = np.setdiff1d(np.arange(64), attacks.PATCH)
    np.testing.assert_array_equal(poisoned.inputs[count:, rest], own.inputs[:, rest])
    np.testing.assert_array_equal(changed.train[0].inputs, plain.train[0].inputs)
    np.testing.assert_array_equal(changed.test.inputs, plain.test.inputs)


def test_success_is_the_share_of_triggered_images_that_are_taken_for_the_target():
    simulation = federation()
    always = simulation.trainer.initial.copy()
    always[-10 + attacks.TARGET] = 100.0  # the biases come last
    never = -always
    assert attacks.success(simulation, always) == 1.0
    assert attacks.success(simulation, never) == 0.0


def test_a_backdoor_succeeds_where_nothing_is_done_about_it():
    rates = []
    for how in (Attack(), ATTACKS["backdoor"]):
        simulation = federation(how)
        for current in simulation.rounds():
            if current.number == 15:
                break
        rates.append(attacks.success(simulation, simulation.parameters))
    assert rates[0] < 0.2
    assert rates[1] > 0.5


def models(how, scheme, steps):
    """The shared model after every step, the first one included."""
    simulation = federation(how, scheme)
    return [simulation.parameters.copy() for _ in islice(simulation.rounds(), steps + 1)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_turns_late_is_honest_before(scheme):
    plain, turned = models(None, scheme, 8), models(Attack("scale", -1.0, after=4), scheme, 8)
    for before, after in zip(plain[:5], turned[:5], strict=True):
        np.testing.assert_array_equal(before, after)
    assert not np.array_equal(plain[8], turned[8])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("honest", "late turn")])
def test_every_attack_reaches_the_model_of_every_scheme(scheme, name):
    plain, attacked = models(None, scheme, 6), models(ATTACKS[name], scheme, 6)
    assert np.isfinite(attacked[-1]).all()
    assert not np.array_equal(plain[-1], attacked[-1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_is_not_there_is_never_asked(scheme):
    simulation = federation(ATTACKS["not there"], scheme)
    asked = set()
    for current in simulation.rounds():
        asked |= {*current.clients, *current.warmed, *current.heard}
        if current.number == 8:
            break
    assert asked
    assert not asked & set(FEW.tolist())


def test_who_is_honest_changes_nothing():
    for before, after in zip(models(None, "pace", 4), models(ATTACKS["honest"], "pace", 4), strict=True):
        np.testing.assert_array_equal(before, after)


def test_attacks_are_the_same_with_torch(model):
    torch = pytest.importorskip("torch")
    for name in ("alie", "ipm", "constant bias", "scaled"):
        found = federation(ATTACKS[name], arithmetic="torch").engine.train(torch.from_numpy(model.copy()), [2, 3], 3)
        expected = federation(ATTACKS[name]).engine.train(model, [2, 3], 3)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(one.parameters), other.parameters, atol=2e-4)


def test_who_attacks():
    delays = np.array([5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 10.0])
    assert attacks.attackers("20% fastest", delays, 0).tolist() == [1, 3]
    assert attacks.attackers("1 fastest", delays, 0).tolist() == [1]
    drawn = attacks.attackers("20% random", delays, 0)
    np.testing.assert_array_equal(drawn, attacks.attackers("20% random", delays[::-1], 0))
    assert set(attacks.attackers("10% random", delays, 0).tolist()) < set(drawn.tolist())
    assert any(attacks.attackers("20% random", delays, seed).tolist() != drawn.tolist() for seed in range(1, 5))
    with pytest.raises(ValueError, match="slowest"):
        attacks.attackers("20% slowest", delays, 0)
