"""A scheme that is never told what it works with says so, once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedpace import make_selector
from fedpace._base.errors import FedpaceWarning
from fedpace.core.session import Session
from fedpace.core.types import Outcome

RNG = np.random.default_rng(0)


def play(scheme, rounds=6, **reported):
    session = Session(make_selector(scheme), warmup="lazy")
    session.join(range(12))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while session.step < rounds:
            if session.probe() is not None:
                session.answer({})
            selection = session.select()
            told = [Outcome(c, seconds=1.0 + c, **{n: f() for n, f in reported.items()}) for c in selection.clients]
            session.observe(told)
            assert not caught or session.step >= 3, "after the third round"
    assert all(issubclass(warning.category, FedpaceWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


def moment():
    return RNG.normal(size=(6, 3))


def update():
    return RNG.normal(size=4)


def test_what_is_needed_and_never_told():
    used, needed = play("pace")
    assert "pace was told no feature moments in 3 rounds, and it needs them to choose" in needed
    assert "factor_from_features" in needed
    assert "update sketches" in used
    assert "works worse without them" in used


def test_what_is_told_is_not_missed():
    assert play("pace", moment=moment, update=update) == []
    (only,) = play("pace", moment=moment)
    assert "update sketches" in only
    assert play("random") == []


@pytest.mark.parametrize(("scheme", "missing"), [("haccs", "label histograms"), ("adaptive-sampling", "losses")])
def test_every_kind_is_named(scheme, missing):
    assert any(missing in text for text in play(scheme))
