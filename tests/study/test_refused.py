"""What is refused of data and a model of one's own, and with which sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.study.material import CLIENTS, TEST, Net, compare
from torch import nn
from torch.utils.data import TensorDataset

from fedpace._base.errors import InputError
from fedpace.study import arguments


@pytest.mark.parametrize(
    ("clients", "test", "model", "sentence"),
    [
        ([], TEST, Net, "it is empty"),
        (3, TEST, Net, "a int came"),
        ([CLIENTS[0][0]], TEST, Net, r"client 0 must be a pair \(X, y\)"),
        ([(np.zeros((3, 4)), np.zeros(2, int))], TEST, Net, r"as many rows.*\(3, 4\) and \(2,\)"),
        ([(np.zeros((0, 4)), np.zeros(0, int))], TEST, Net, "client 0 holds no samples"),
        ([(np.full((3, 4), np.nan), np.zeros(3, int))], TEST, Net, "client 0: the inputs must be finite"),
        (
            [(np.full((3, 4), -1e300), np.zeros(3, int))],
            TEST,
            Net,
            "client 0 holds numbers up to 1e.300, and",
        ),
        ([(np.zeros((3, 4)), np.eye(3)[[0, 1, 2]].astype(int))], TEST, Net, r"y\.argmax\(1\)"),
        ([(np.zeros((3, 4)), np.array([1, 2, 3]))], TEST, Net, "numbered\\s+from 0"),
        ([*CLIENTS, (np.zeros((3, 5)), np.zeros(3, int))], TEST, Net, r"client 6 has \(5,\)"),
        ([(np.zeros((3, 2, 2)), np.zeros(3, int))], TEST, Net, r"Net does not take inputs of shape \(n, 2, 2\)"),
        (CLIENTS, None, Net, "test is missing"),
        (CLIENTS, CLIENTS[:2], Net, "2 pairs came for 6 clients"),
        (CLIENTS, TEST, None, "model is missing"),
        (CLIENTS, TEST, 3, "must be a torch.nn.Module"),
        ([X for X, _ in CLIENTS], TEST, Net, r"of two lists make one with zip\(X, y\)"),
        ([TensorDataset(torch.zeros(2, 4), torch.zeros(2))], TEST, Net, "a TensorDataset of 2 came: stack it"),
        (CLIENTS, TEST, nn.Linear, r"cannot be called without arguments.*lambda: Linear"),
        (CLIENTS, TEST, "mpl", "Did you mean 'mlp'"),
        (CLIENTS, TEST, lambda: Net(outputs=1), "one output per class"),
        (CLIENTS, TEST, nn.LSTM(4, 3), "must return one row of outputs per sample"),
        (CLIENTS, TEST, nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()), "uses no nn.Linear"),
        (CLIENTS, TEST, Net().requires_grad_(False), "nothing to train"),
        ([(X, X) for X, _ in CLIENTS], TEST, nn.Linear(4, 1), "one target per row"),
        ([(X, X[:, 0]) for X, _ in CLIENTS], TEST, Net, "regression needs"),
    ],
)
def test_refused_with_a_sentence(clients, test, model, sentence):
    with pytest.raises(InputError, match=sentence):
        arguments.ground(clients, test, None, model)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": 92}, "92 % is 0.92"),
        ({"schemes": ["randon"]}, "Did you mean 'random'"),
        ({"schemes": ["random(q=3)"]}, "no key 'q'"),
        ({"schemes": ["random", "random"]}, "two schemes are called 'random'"),
        ({"schemes": []}, "names none"),
        ({"schemes": ["random(k=30)"]}, "only 6"),
        ({"delays": [1.0, 2.0]}, "delays came for 2 clients"),
        ({"delays": [0.0] * 6}, "positive seconds"),
        ({"delays": "nycmash"}, "Did you mean 'nycmesh'"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": 2.5}, "seeds must be"),
        ({"seeds": [0.5]}, "seeds must be"),
        ({"stop": {"target": 0.9}}, r"stop must be a fedpace\.sim\.stopping\.Stop\(...\)"),
        ({"availability": "night"}, "availability must be a"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"head": "lost"}, "no layer 'lost'; it has inner, norm, last"),
        ({"data": "digits"}, "either clients"),
        ({"model": lambda: Net(), "engine": "processes"}, "cannot be sent to other processes"),
    ],
)
def test_options_refused_with_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        compare(**options)


@pytest.mark.parametrize(
    ("targets", "test", "model", "sentence"),
    [
        (["a", "b", 3.0], ["a"], Net, "holds names and 3.0"),
        (["a", "b", "c", "d"], ["a"], Net, "4 names, but the model has 3 outputs"),
        (["a", "b"], [0], Net, "y of the test data holds numbers"),
        (["a", "b"], ["a"], lambda: Net(outputs=1), "one output per class"),
    ],
)
def test_names_that_do_not_fit_are_refused(targets, test, model, sentence):
    client = (np.zeros((len(targets), 4)), np.array(targets, dtype=object))
    with pytest.raises(InputError, match=sentence):
        arguments.ground([client], (np.zeros((1, 4)), test), None, model)


def test_a_batch_norm_and_a_client_with_one_sample():
    single = [*CLIENTS, (np.zeros((1, 4)), [0])]
    with pytest.raises(InputError, match="client 6 holds one sample, but the model has a batch norm"):
        compare(single)
    with pytest.raises(InputError, match="batches of one sample"):
        compare(batch=1)
    image = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 3))
    assert compare(single, model=image).records, "a picture has many values per channel"
