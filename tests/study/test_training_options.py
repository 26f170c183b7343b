"""How clients of one's own train: by three options or by all of them, never by both."""

import numpy as np
import pytest

import fedpace
from fedpace._base.errors import InputError
from fedpace.sim.training import Training
from fedpace.study import arguments


def test_options_replace_what_is_usual():
    assert arguments.training(None, epochs=None, batch=None, lr=None) == Training(epochs=5, batch=32, lr=0.05)
    assert arguments.training(None, epochs=1, batch=None, lr=0.5) == Training(epochs=1, batch=32, lr=0.5)


def test_all_options_at_once():
    given = Training(epochs=2, lr=0.3, momentum=0.9)
    assert arguments.training(given, epochs=None, batch=None, lr=None) is given


def test_both_are_refused():
    """Before, lr= was left out without a word where training= came too."""
    X, y = np.eye(4), np.arange(4) % 2
    with pytest.raises(InputError, match=r"both training= and lr=0\.3 came"):
        fedpace.compare([(X, y)] * 3, test=(X, y), model="softmax", lr=0.3, training=Training())
