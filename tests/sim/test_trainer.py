"""What a client computes, against NumPy by hand and against torch's own SGD."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from steps import aggregate
from torch.nn import functional

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.data.quadratic import Quadratic
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.flat import FlatModel
from fedpace.sim.torch_trainer import DivergedError, TorchTrainer, Training

REGRESSION = Quadratic(clients=3, samples=10, test_samples=5, dimension=4).build(seed=0)


def classification(seed=0, counts=(12, 7), held_out=9):
    rng = stream(seed, "toy classes")

    def draw(count):
        return Samples(rng.normal(size=(count, 5)).astype(np.float32), rng.integers(0, 3, count))

    return FederatedData("toy", tuple(draw(count) for count in counts), draw(held_out), classes=3, metric="accuracy")


def trainer(data=REGRESSION, model=None, *, seed=0, **options):
    options = {"epochs": 1, "batch": 0, "lr": 0.01} | options
    return TorchTrainer(data, model or Linear(), Training(**options), seed=seed)


# -- the flat model ----------------------------------------------------------------------------------------


def test_the_flat_vectors_are_the_model():
    module = Mlp(hidden=3).build((2,), 2, generator=torch.Generator().manual_seed(0))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    flat = FlatModel(module, classification=True)
    assert torch.equal(flat.parameters, torch.cat([parameter.reshape(-1) for parameter in before]))
    assert flat.bytes == 4 * (3 * 2 + 3 + 2 * 3 + 2)
    flat.parameters.zero_()
    assert all(not parameter.any() for parameter in module.parameters()), "writing the vector writes the model"
    flat.loss(torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).backward()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    assert gradient.any()
    assert torch.equal(flat.gradients, gradient), "the gradients land in the vector"


def test_losses():
    module = Linear().build((2,), 1, generator=torch.Generator())
    flat = FlatModel(module, classification=False)
    outputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])
    assert flat.criterion(outputs, targets).item() == pytest.approx(0.5 * (1 + 4) / 2), "half the squared error"
    logits = torch.tensor([[1.0, 2.0]])
    classes = FlatModel(module, classification=True).criterion(logits, torch.tensor([0]))
    assert classes.item() == pytest.approx(math.log(1 + math.e))


# -- training ----------------------------------------------------------------------------------------------


def test_one_full_batch_step_is_one_gradient_step():
    coach = trainer(lr=0.1)
    samples = REGRESSION.train[1]
    X, y = samples.inputs.astype(np.float64), samples.targets.astype(np.float64)
    start = np.array([0.5, -1.0, 0.25, 2.0])
    expected = start - 0.1 * X.T @ (X @ start - y) / len(y)
    result = coach.train(torch.tensor(start, dtype=torch.float32), 1, 0)
    np.testing.assert_allclose(result.parameters.numpy(), expected, rtol=1e-4)
    assert result.loss == pytest.approx(0.5 * np.mean((X @ start - y) ** 2), rel=1e-5)
    assert result.steps == 1


def test_several_epochs_are_several_steps():
    coach = trainer(lr=0.05, epochs=3)
    samples = REGRESSION.train[0]
    X, y = samples.inputs.astype(np.float64), samples.targets.astype(np.float64)
    w = np.zeros(4)
    for _ in range(3):
        w -= 0.05 * X.T @ (X @ w - y) / len(y)
    np.testing.assert_allclose(coach.train(coach.initial, 0, 0).parameters.numpy(), w, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.2}]
)
@pytest.mark.parametrize("batch", [0, 4])
def test_it_is_torchs_sgd(options, batch):
    data = classification()
    coach = trainer(data, Mlp(hidden=4), seed=3, epochs=3, batch=batch, lr=0.2, **options)
    result = coach.train(coach.initial, 0, 5)

    module = Mlp(hidden=4).build((5,), 3, generator=torch.Generator())
    torch.nn.utils.vector_to_parameters(coach.initial, module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, **options)
    inputs, targets = torch.from_numpy(data.train[0].inputs), torch.from_numpy(data.train[0].targets)
    rng, first = stream(3, "train", 5, 0), 0.0
    for epoch in range(3):
        order = torch.from_numpy(rng.permutation(12)) if batch else torch.arange(12)
        for part in order.split(batch or 12):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(inputs[part]), targets[part])
            loss.backward()
            optimizer.step()
            first += loss.item() * len(part) / 12 * (epoch == 0)
    expected = torch.nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(result.parameters, expected, rtol=1e-5, atol=1e-6)
    assert result.loss == pytest.approx(first, rel=1e-5)
    assert result.steps == (9 if batch else 3)


def test_a_last_small_batch_is_used_too():
    data = classification(counts=(5, 5))
    assert trainer(data, Softmax(), batch=4).train(torch.zeros(18), 0, 0).steps == 2


def test_training_leaves_no_trace():
    """The order in which a cohort is worked through must not matter, nor what was measured in between."""
    data = classification()
    coach = trainer(data, Mlp(hidden=4), batch=4, epochs=2, momentum=0.9)
    alone = coach.train(coach.initial, 0, 2)
    coach.train(coach.initial, 1, 2)
    coach.evaluate(torch.ones_like(coach.initial))
    coach.moment(coach.initial, 1)
    again = coach.train(coach.initial, 0, 2)
    assert torch.equal(alone.parameters, again.parameters)
    assert alone.loss == again.loss
    assert not torch.equal(alone.parameters, coach.train(coach.initial, 0, 3).parameters), "another step, another order"
    assert torch.equal(coach.initial, trainer(data, Mlp(hidden=4)).initial), "what was given is not written to"


def test_the_initial_model_depends_on_the_seed_alone():
    one, two, other = (
        trainer(classification(s), Mlp(hidden=4), seed=seed).initial for s, seed in ((0, 1), (5, 1), (0, 2))
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("lr", [1e6, 1e30])
def test_divergence_is_an_error_that_names_client_and_round(lr):
    coach = trainer(lr=lr, epochs=50)
    with pytest.raises(DivergedError, match=r"client 2 diverged in round 5 \(training loss .*\): lower lr = "):
        coach.train(coach.initial, 2, 4)


# -- measuring ---------------------------------------------------------------------------------------------


def test_evaluation_of_a_regression_is_the_scaled_loss():
    coach = trainer()
    w = np.array([1.0, 0.0, -1.0, 0.5])
    X, y = REGRESSION.test.inputs, REGRESSION.test.targets
    metric, loss = coach.evaluate(torch.tensor(w, dtype=torch.float32))
    assert metric == loss == pytest.approx(0.5 * np.mean((X @ w - y) ** 2) / math.sqrt(4), rel=1e-5)


@pytest.mark.parametrize("held_out", [9, 5000], ids=["at once", "in parts"])
def test_evaluation_of_a_classifier_is_the_accuracy(held_out):
    data = classification(held_out=held_out)
    coach = trainer(data, Softmax())
    parameters = torch.randn(18, generator=torch.Generator().manual_seed(1))
    logits = torch.from_numpy(data.test.inputs) @ parameters[:15].view(3, 5).T + parameters[15:]
    targets = torch.from_numpy(data.test.targets)
    expected = (logits.argmax(1) == targets).float().mean().item()
    metric, loss = coach.evaluate(parameters)
    assert metric == pytest.approx(expected)
    assert loss == pytest.approx(functional.cross_entropy(logits, targets).item(), rel=1e-5)


def test_the_local_loss_is_on_the_clients_own_data():
    coach = trainer()
    for client, samples in enumerate(REGRESSION.train):
        assert coach.local_losses(coach.initial, [client])[0] == pytest.approx(
            0.5 * np.mean(samples.targets**2), rel=1e-5
        )


def test_moments_are_of_the_features():
    coach = trainer()
    factor = coach.moment(coach.initial, 0)
    X = REGRESSION.train[0].inputs.astype(np.float64)
    np.testing.assert_allclose(factor.T @ factor, X.T @ X / len(X), rtol=1e-6, atol=1e-9)


def test_a_bias_is_a_feature_of_ones():
    data = classification()
    factor = trainer(data, Softmax()).moment(torch.zeros(18), 0)
    X = np.hstack([data.train[0].inputs.astype(np.float64), np.ones((12, 1))])
    np.testing.assert_allclose(factor.T @ factor, X.T @ X / 12, rtol=1e-6, atol=1e-9)


def test_moments_of_a_batch_are_of_the_same_batch_each_time():
    coach = trainer(moment_samples=3)
    one = coach.moment(coach.initial, 0)
    np.testing.assert_array_equal(one, coach.moment(coach.initial + 1, 0))
    assert len(one) <= 3
    assert trainer().moving_features is False
    deep = trainer(classification(), Mlp(hidden=4))
    assert deep.moving_features
    assert not np.allclose(deep.moment(deep.initial, 0), deep.moment(deep.initial * 2, 0))


def test_moments_can_be_cut_and_made_private():
    exact = trainer().moment(trainer().initial, 0)
    assert len(trainer(moment_rank=2).moment(trainer().initial, 0)) == 2 < len(exact)
    coach = trainer(moment_epsilon=2.0, moment_clip=1.0)
    one = coach.moment(coach.initial, 0)
    np.testing.assert_array_equal(one, coach.moment(coach.initial, 0), err_msg="the same release, told twice")
    again = coach.moment(coach.initial + 1, 0)
    assert again.shape != one.shape or not np.allclose(again, one), "another model is another release"
    assert np.abs(one.T @ one - exact.T @ exact).max() > 0.1
    nearly = trainer(moment_epsilon=1e12, moment_clip=50.0).moment(coach.initial, 0)
    np.testing.assert_allclose(nearly.T @ nearly, exact.T @ exact, atol=1e-2)


# -- aggregation -------------------------------------------------------------------------------------------


def test_aggregation_by_average_and_by_delta():
    current = torch.tensor([1.0, 2.0])
    results = [torch.tensor([3.0, 2.0]), torch.tensor([1.0, 6.0])]
    averaged = aggregate(current, results, [0.25, 0.75], "average")
    assert averaged.tolist() == [1.5, 5.0]
    assert aggregate(current, results, [0.25, 0.75], "delta").tolist() == [1.5, 5.0], "equal where weights sum to 1"
    assert aggregate(current, results, [0.5, 1.0], "delta").tolist() == [2.0, 6.0]
    assert aggregate(current, results, [0.0, 0.0], "delta").tolist() == [1.0, 2.0]
    assert averaged.dtype == torch.float32


def test_aggregation_is_in_double_precision():
    current = torch.full((1,), 1e8)
    results = [current + 8.0] * 3
    assert aggregate(current, results, [1 / 3] * 3, "delta").item() == 1e8 + 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs of training must be at least 1, but 0 came"),
        ({"batch": -1}, "batch of training must be at least 0"),
        ({"lr": 0.0}, "lr of training must be above 0"),
        ({"lr": math.nan}, "lr of training"),
        ({"momentum": 1.0}, r"momentum of training must lie in \[0, 1\), but 1.0 came"),
        ({"weight_decay": -0.1}, "weight_decay of training must be at least 0"),
        ({"moment_samples": 0}, "moment_samples of training must be at least 1"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        Training(**options)
