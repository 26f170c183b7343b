"""FedCS: everybody drawn who can make the deadline, and the fastest where nobody can."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.selectors.fed_cs import FedCs

DELAY = np.array([10.0, 200, 30, 90, 181, 180])


def test_all_in_time_and_no_other(view):
    shown = view(6, delay=DELAY, share=np.arange(1, 7) / 21)
    cohort, _ = FedCs(k=6).select(None, shown, np.random.default_rng(0))
    assert cohort.clients.tolist() == [0, 2, 3, 5]
    np.testing.assert_allclose(cohort.weights, np.array([1, 3, 4, 6]) / 14)
    assert cohort.deadline == math.inf
    assert cohort.why.predicted_seconds == 180


def test_the_largest_set_that_fits_is_found(view):
    # With one delay a client and parallel uploads a set fits if each member does: brute force over the candidates.
    rng = np.random.default_rng(0)
    for seed in range(30):
        shown = view(8, delay=rng.uniform(0, 300, 8))
        cohort, _ = FedCs(k=5, deadline=150).select(None, shown, np.random.default_rng(seed))
        candidates = np.random.default_rng(seed).choice(8, 5, replace=False)
        best = max(
            (
                bin(s).count("1")
                for s in range(1, 32)
                if max(shown.delay[candidates[i]] for i in range(5) if s >> i & 1) <= 150
            ),
            default=1,
        )
        assert cohort.clients.size == best
        assert set(cohort.clients.tolist()) <= set(candidates.tolist())


def test_nobody_in_time(view):
    cohort, _ = FedCs(k=6, deadline=5.0, enforce=True).select(None, view(6, delay=DELAY), np.random.default_rng(0))
    assert cohort.clients.tolist() == [0]
    assert cohort.deadline == math.inf
    assert "nobody can make the deadline" in cohort.why.status


def test_an_enforced_deadline(view):
    cohort, _ = FedCs(k=6, enforce=True).select(None, view(6, delay=DELAY), np.random.default_rng(0))
    assert cohort.deadline == 180


def test_options_are_checked():
    with pytest.raises(InputError, match="deadline of fed-cs must be above 0"):
        FedCs(deadline=0.0)


def test_the_deadline_may_be_relative(view):
    delay = np.array([8.0, 1, 7, 2, 6, 3, 5, 4])
    rng = np.random.default_rng(0)
    for quantile, slowest in ((0.25, 2), (0.5, 4), (0.51, 5), (1.0, 8)):
        for factor in (1e-3, 1.0, 1e3):
            shown = view(8, delay=delay * factor)
            cohort, _ = FedCs(k=8, quantile=quantile, deadline=1.0).select(None, shown, rng)
            assert np.sort(delay[cohort.clients]).tolist() == list(range(1, slowest + 1))
    away = view(8, delay=delay, available=delay > 4)
    cohort, _ = FedCs(k=4, quantile=0.5, enforce=True).select(None, away, rng)
    assert (np.sort(delay[cohort.clients]).tolist(), cohort.deadline) == ([5, 6], 6.0)
    with pytest.raises(InputError, match="quantile of fed-cs"):
        FedCs(quantile=1.5)
