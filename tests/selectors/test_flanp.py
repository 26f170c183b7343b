"""FLANP: the fastest prefix, and the four rules by which it grows."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.core.types import Report
from fedpace.selectors.flanp import Flanp

RNG = np.random.default_rng(0)


def play(scheme, view, rounds, *, norm=None, loss=None, n=16):
    """Return the cohort sizes over the rounds; `norm` and `loss` give the update's length and the loss by step."""
    state = scheme.init()
    sizes = []
    for step in range(rounds):
        cohort, state = scheme.select(state, view(n, step=step), RNG)
        k = cohort.clients.size
        sizes.append(k)
        updates = None if norm is None else np.tile([np.sqrt(norm(step)), 0.0], (k, 1))
        losses = np.full(k, np.nan if loss is None else loss(step))
        report = Report(
            step, 0.0, cohort.clients, np.ones(k, bool), np.ones(k), losses, np.ones(k), cohort.weights, updates
        )
        state = scheme.observe(state, report)
    return sizes


def test_the_fastest_with_equal_weights(view):
    shown = view(6, delay=[5, 1, 4, 2, 3, 9], available=[1, 1, 1, 0, 1, 1], share=np.arange(1, 7) / 21)
    cohort, _ = Flanp(k=3).select(Flanp(k=3).init(), shown, RNG)
    assert cohort.clients.tolist() == [1, 4, 2]
    np.testing.assert_allclose(cohort.weights, 1 / 3)
    assert cohort.why.predicted_seconds == 4


def test_by_period(view):
    scheme = Flanp(k=1, stop="period", period=3)
    assert play(scheme, view, 16, n=10) == [1] * 3 + [2] * 3 + [4] * 3 + [8] * 3 + [10] * 4


def test_as_released(view):
    # Stage 1 lasts T0 = 4 rounds whatever happens; the norm at its end is 100, so thresholds are 50, 25, 12.5.
    norms = [1.0, 1, 1, 100, 60, 60, 49, 49, 24, 99, 99, 99, 99, 99]
    scheme = Flanp(k=1, period=4)
    # Round 7 (norm 49 < 50) ends stage 2, round 9 (24 < 25) stage 3, four rounds stage 4.
    assert play(scheme, view, 14, norm=lambda s: norms[s]) == [1] * 4 + [2] * 3 + [4] * 2 + [8] * 4 + [16]


def test_as_released_without_sketches_is_by_period(view):
    assert play(Flanp(k=1, period=3), view, 7) == [1] * 3 + [2] * 3 + [4]


def test_by_statistical_accuracy(view):
    # First norm 8, accuracy 1/4: stages of 2, 4, 8 clients end at 2, 1, 1/2.
    norms = [8, 3, 2, 1.5, 0.9, 0.6, 0.5, 0.1]
    scheme = Flanp(k=2, stop="statistical", accuracy=0.25)
    assert play(scheme, view, 8, norm=lambda s: norms[s]) == [2, 2, 2, 4, 4, 8, 8, 16]


def test_by_plateau(view):
    losses = [4.0, 3.0, 2.0, 1.99, 1.98, 1.0, 0.5, 0.499, 0.499]
    scheme = Flanp(k=2, stop="plateau", window=2, tolerance=0.1)
    # 2.0 -> 1.98 in two rounds is a plateau; then the window starts anew with 1.0.
    assert play(scheme, view, 9, loss=lambda s: losses[s]) == [2, 2, 2, 2, 2, 4, 4, 4, 4]
    losses[6:] = [0.99, 0.98, 0.9]
    assert play(scheme, view, 9, loss=lambda s: losses[s]) == [2, 2, 2, 2, 2, 4, 4, 4, 8]


def test_it_never_shrinks_and_failures_do_not_stop_it(view):
    scheme = Flanp(k=4, stop="period", period=1)
    state = scheme.init()
    _, state = scheme.select(state, view(8), RNG)
    failed = Report(
        0,
        0.0,
        np.arange(4),
        np.zeros(4, bool),
        np.ones(4),
        np.full(4, np.nan),
        np.ones(4),
        np.ones(4) / 4,
        np.full((4, 2), np.nan),
    )
    state = scheme.observe(state, failed)
    cohort, state = scheme.select(state, view(8), RNG)
    assert cohort.clients.size == 8
    cohort, state = scheme.select(scheme.observe(state, failed), view(8, available=np.arange(8) < 3), RNG)
    assert cohort.clients.size == 3
    assert state.size == 8


def test_the_norm_is_that_of_the_weighted_mean_of_those_who_finished():
    report = Report(
        0,
        0.0,
        np.arange(3),
        np.array([True, True, False]),
        np.ones(3),
        np.ones(3),
        np.ones(3),
        np.array([0.25, 0.5, 0.25]),
        np.array([[3.0, 0], [0, 3], [99, 99]]),
    )
    state = Flanp().observe(Flanp().init(), report)
    assert state.norm == pytest.approx(1 + 4)


def test_options_are_checked():
    with pytest.raises(InputError, match="growth of flanp must be above 1"):
        Flanp(growth=1.0)
    with pytest.raises(InputError, match="stop of flanp"):
        Flanp(stop="soon")
