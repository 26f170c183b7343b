"""Clients trained with NumPy, against the same with torch: the draws are the same, and numbers differ by rounding."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks import COUNTS, MODELS, federation, trainings

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.digits import Digits
from fedpace.data.federated import Samples
from fedpace.data.quadratic import Quadratic
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Conv2, Linear, Mlp, Softmax
from fedpace.server.fedadam import Fedadam
from fedpace.sim.checkpoint import Checkpoints, save_model
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.numpy_trainer import NumpyTrainer
from fedpace.sim.rounds import Simulation, SpeedGroups
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import DivergedError, Training

NUMPY = "numpy"
TRAININGS = trainings(moment_samples=st.sampled_from([7, 100]))


def both(data, model, training, seed=2):
    return TorchTrainer(data, model, training, seed=seed), NumpyTrainer(
        data, model, replace(training, arithmetic=NUMPY), seed=seed
    )


def close(one, other, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance, atol=1e-5)


# The same examples each time: now and then two ways of rounding fall on different sides of a ReLU's bend.
@settings(max_examples=80, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS, training=TRAININGS, corrected=st.booleans(), data=st.data())
def test_clients_end_where_torch_takes_them(counts, kind, training, corrected, data):
    model, classes = kind
    theirs, ours = both(federation(counts, classes=classes, tested=40), model, training)
    clients = data.draw(st.permutations(range(len(counts))))
    rng = stream(1, "parameters")
    starts = rng.normal(size=(len(clients), ours.trainable)).astype(np.float32) * np.float32(0.3)
    added = rng.normal(size=starts.shape).astype(np.float32) * np.float32(0.1) if corrected else None
    for start, turns in ((starts, list(range(len(clients)))), (starts[0], 4)):  # a model each, and one for all
        tensors = None if added is None else torch.from_numpy(added)
        expected = theirs.train_many(torch.from_numpy(start), clients, turns, tensors)
        found = ours.train_many(start, clients, turns, added)
        for one, other in zip(expected, found, strict=True):
            close(one.parameters, other.parameters)
            assert other.parameters.dtype == np.float32
            assert other.loss == pytest.approx(one.loss, rel=1e-4, abs=1e-6)
            assert (other.steps, other.checked) == (one.steps, True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS, training=TRAININGS, samples=st.sampled_from([0, 1, 5]), targets=st.booleans())
def test_clients_measure_what_torch_measures(counts, kind, training, samples, targets):
    model, classes = kind
    theirs, ours = both(federation(counts, classes=classes, tested=40), model, training)
    clients = list(range(len(counts)))
    start = stream(1, "parameters").normal(size=ours.trainable).astype(np.float32) * np.float32(0.3)
    tensor = torch.from_numpy(start)
    for one, other in zip(theirs.gradients(tensor, clients), ours.gradients(start, clients), strict=True):
        close(one, other)
    close(
        theirs.local_losses(tensor, clients, samples=samples, step=3),
        ours.local_losses(start, clients, samples=samples, step=3),
    )
    for client in clients:
        one, other = (trainer.moment(at, client, targets=targets) for trainer, at in ((theirs, tensor), (ours, start)))
        close(one.T @ one, other.T @ other)  # not their factors: rounding decides whether an eigenvalue is 0
    close(theirs.evaluate(tensor), ours.evaluate(start))
    close(
        SpeedGroups(theirs, np.array(counts)).evaluate(tensor),
        SpeedGroups(ours, np.array(counts)).evaluate(start),
    )


@pytest.mark.parametrize("model", [Softmax(), Mlp(hidden=6, layers=2)])
def test_whom_a_client_is_stacked_with_does_not_show(model):
    trainer = NumpyTrainer(
        federation([30, 5, 90, 1, 64], classes=3, tested=40), model, Training(arithmetic=NUMPY), seed=2
    )
    together = trainer.train_many(trainer.initial, [3, 0, 4, 2, 1], 7)
    for client, result in zip([3, 0, 4, 2, 1], together, strict=True):
        assert np.array_equal(trainer.train(trainer.initial, client, 7).parameters, result.parameters)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("random", {}),
        ("pace", {}),
        ("pace-async", {}),
        ("fedbuff", {}),
        ("divfl", {"training": Training(epochs=1, lr=0.1, momentum=0.5, weight_decay=0.01)}),
        ("power-of-choice", {"server": Fedadam()}),
        ("random", {"training": Training(epochs=1, lr=0.1, algorithm="scaffold")}),
    ],
)
def test_whole_runs_are_those_of_torch_but_for_rounding(scheme, options):
    def rounds(arithmetic):
        training = replace(options.get("training", Training(epochs=1, lr=0.1)), arithmetic=arithmetic)
        selector = make_selector(scheme)
        data, delays = Digits(clients=12, alpha=0.5), LognormalDelays()
        run = Simulation(data, Softmax(), delays, selector, seed=3, **{**options, "training": training})
        return list(islice(run.rounds(), 6)), run

    theirs, _ = rounds(None)
    ours, run = rounds(NUMPY)
    assert isinstance(run.parameters, np.ndarray)
    for one, other in zip(theirs, ours, strict=True):
        assert (one.clients, one.clock) == (other.clients, other.clock)
        assert other.metric == pytest.approx(one.metric, abs=0.01)
        assert other.loss == pytest.approx(one.loss, rel=1e-3)


def test_without_an_algorithm_of_torch_variates_and_regression_work_too():
    training = Training(lr=0.01, epochs=1, algorithm="scaffold", arithmetic=NUMPY)
    data = Quadratic(clients=8, samples=20, test_samples=10, dimension=8)
    run = Simulation(data, Linear(), LognormalDelays(), make_selector("random", k=3), training=training, seed=0)
    played = list(islice(run.rounds(), 8))
    assert played[-1].loss < played[0].loss
    assert run.trainer.message_bytes == 2 * 4 * 8


@pytest.mark.parametrize("scheme", ["random", "pace-async"])
def test_a_run_that_is_restored_goes_on_to_the_bit(tmp_path, scheme):
    def simulation():
        training = Training(epochs=1, lr=0.1, arithmetic=NUMPY)
        return Simulation(Digits(clients=12), Softmax(), LognormalDelays(), make_selector(scheme), training=training)

    whole = list(islice(simulation().rounds(), 9))
    first = simulation()
    played = list(islice(first.rounds(), 5))
    Checkpoints(tmp_path).save(first, wall_seconds=0.0)
    second = simulation()
    assert Checkpoints(tmp_path).restore(second).round == 4
    assert [*played, *islice(second.rounds(), 4)] == whole


def test_the_model_is_kept_under_torchs_names(tmp_path):
    from safetensors.torch import load_file

    training = Training(epochs=1, lr=0.1, arithmetic=NUMPY)
    for model in (Softmax(), Mlp(hidden=3, layers=2)):
        run = Simulation(Digits(clients=12), model, LognormalDelays(), make_selector("random", k=3), training=training)
        list(islice(run.rounds(), 3))
        save_model(run, tmp_path / "model.safetensors")
        module = model.build((64,), 10, generator=torch.Generator())
        module.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
        test = run.trainer.data.test
        right = (module(torch.from_numpy(test.inputs)).argmax(1).numpy() == test.targets).mean()
        assert run.trainer.evaluate(run.parameters)[0] == pytest.approx(right, abs=0.003)


def test_divergence_is_told_and_not_warned_of():
    data = Quadratic(clients=3, samples=20, test_samples=10, dimension=8).build(seed=0)
    trainer = NumpyTrainer(data, Linear(), Training(lr=1e6, epochs=50, arithmetic=NUMPY), seed=0)
    with pytest.raises(DivergedError, match="client 0 diverged in round 5"):
        trainer.train(trainer.initial, 0, 4)


def test_models_that_are_not_linear_layers_are_refused():
    with pytest.raises(InputError, match=r"arithmetic numpy trains .* \(linear, mlp, softmax\), but conv2 came"):
        NumpyTrainer(federation([5], classes=3, tested=40), Conv2(), Training(arithmetic=NUMPY), seed=0)


def test_whole_numbers_are_refused():
    data = federation([5], classes=3, tested=40)
    coded = replace(data, test=Samples(data.test.inputs.astype(np.int64), data.test.targets))
    with pytest.raises(InputError, match="softmax takes numbers in single precision, but int64 came"):
        NumpyTrainer(coded, Softmax(), Training(arithmetic=NUMPY), seed=0)


@pytest.mark.parametrize("name", ["processes", "ray"])
def test_engines_elsewhere_are_refused(name):
    trainer = NumpyTrainer(federation([5], classes=3, tested=40), Softmax(), Training(arithmetic=NUMPY), seed=0)
    with pytest.raises(InputError, match=rf"but engine {name} came: leave the engine out"):
        EngineOptions(name).choose(trainer)
    assert EngineOptions().choose(trainer).name == "inline"


def test_another_arithmetic_is_refused():
    with pytest.raises(InputError, match="arithmetic of training"):
        Training(arithmetic="fortran")
