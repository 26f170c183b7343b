"""ApproxOptSampling and adaptive sampling: distribution, weights, pilots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.core.types import Report
from fedpace.numerics.sampling import best_sampling
from fedpace.selectors._importance import gradient_norms
from fedpace.selectors.adaptive_sampling import AdaptiveSampling, Pilots, estimate_c
from fedpace.selectors.approx_opt_sampling import ApproxOptSampling

SHARE = np.array([0.1, 0.2, 0.3, 0.4])


def expected_q(shown, c, floor):
    norms = np.linalg.norm(shown.updates, axis=1)
    norms = norms / np.sqrt(SHARE @ norms**2)
    return best_sampling((SHARE * norms) ** 2, shown.delay, c=c, floor=floor / 4)


def test_draws_and_weights_follow_the_distribution(view):
    shown = view(4, share=SHARE)
    q = expected_q(shown, 2.0, 0.1)
    rng = np.random.default_rng(0)
    times = np.zeros(4)
    for _ in range(800):
        cohort, _ = ApproxOptSampling(k=3, c=2.0).select(None, shown, rng)
        count = cohort.weights * 3 * q[cohort.clients] / SHARE[cohort.clients]
        np.testing.assert_allclose(count, count.round(), atol=1e-6)
        assert count.sum() == pytest.approx(3)
        times[cohort.clients] += count.round()
    assert cohort.mode == "delta"
    np.testing.assert_allclose(times / 2400, q, atol=0.04)


def test_trust_constr_comes_near_but_not_below(view):
    shown = view(12)
    exact, _ = ApproxOptSampling(k=2).select(None, shown, np.random.default_rng(0))
    paper, _ = ApproxOptSampling(k=2, solver="trust-constr").select(None, shown, np.random.default_rng(0))
    assert exact.why.objective <= paper.why.objective * (1 + 1e-9)
    assert paper.why.objective < 1.05 * exact.why.objective


def test_the_floor_bounds_the_weights_and_the_clip_cuts_them(view):
    shown = view(20, delay=np.geomspace(1, 1e4, 20))
    rng = np.random.default_rng(0)
    largest = max(ApproxOptSampling(k=1, c=1e4).select(None, shown, rng)[0].weights.max() for _ in range(300))
    assert largest == pytest.approx(10)  # share / (k q) at q = 0.1 / 20
    for _ in range(50):
        cohort, _ = ApproxOptSampling(k=1, c=1e4, clip=3.0).select(None, shown, rng)
        assert cohort.weights.max() <= 3


def test_unknown_gradients_count_as_the_median(view):
    updates = np.array([[3.0, 4], [np.nan, np.nan], [0, 1], [0, 3]])
    norms = gradient_norms(view(4, updates=updates), np.arange(4), np.full(4, 0.25))
    np.testing.assert_allclose(norms, np.array([5, 3, 1, 3]) / np.sqrt(44 / 4))
    np.testing.assert_allclose(gradient_norms(view(4, updates=None), np.arange(4), SHARE), 1)


def report(loss, weights=(1.0, 1.0)):
    n = len(weights)
    return Report(0, 0.0, np.arange(n), np.ones(n, bool), np.ones(n), np.full(n, loss), np.ones(n), np.array(weights))


def test_pilots_recover_c():
    # excess = A_q / (R + R_0), A_q = 0.7 (M_q + c), the second pilot going on where the first ended.
    c, spread = 3.0, (4.0, 1.5)
    first = 0.7 * (spread[0] + c) / (np.arange(10) + 5)
    second = 1 / (1 / first[-1] + (np.arange(10) + 1) / (0.7 * (spread[1] + c)))
    assert estimate_c(first, second, *spread) == pytest.approx(c)
    # The authors' formula, by rounds to the same loss: R ~ A.
    weighted, uniform, m, n = 0.7 * (1.5 + c), 0.7 * (4.0 + c), 1.5, 4.0
    assert (weighted * n - uniform * m) / (uniform - weighted) == pytest.approx(c)


@pytest.mark.parametrize(
    ("first", "second"),
    [([3.0, 2, 1], [1.0, 2, 3]), ([1.0, 0, -1], [1.0, 1, 1]), ([3.0, 2.0, 1.5], [3.0, 2.0, 1.5])],
)
def test_pilots_that_tell_nothing(first, second):
    assert estimate_c(np.array(first), np.array(second), 4.0, 1.5) is None


def test_the_phases(view):
    scheme = AdaptiveSampling(k=2, pilot=3)
    state = scheme.init()
    rng = np.random.default_rng(0)
    seen = []
    for step in range(8):
        shown = view(4, step=step, share=SHARE)
        cohort, state = scheme.select(state, shown, rng)
        seen.append(cohort.why.status)
        state = scheme.observe(state, report(10 / (step + 3)))
    assert seen[:6] == ["first pilot: uniform"] * 3 + ["second pilot"] * 3
    assert len(state.losses) == 6
    # Equal slopes in both pilots say nothing about c.
    assert seen[6:] == ["the pilots gave no estimate of c"] * 2
    assert cohort.why.facts["c"] == scheme.c
    estimated = Pilots(losses=state.losses, c=0.25)
    cohort, _ = scheme.select(estimated, view(4, step=8, share=SHARE), rng)
    assert cohort.why.facts["c"] == 0.25
    assert "estimated" in cohort.why.status


def test_the_loss_is_estimated_with_the_weights():
    state = AdaptiveSampling(pilot=3).observe(Pilots(), replace(report(0.0, (3.0, 1.0)), loss=np.array([1.0, 5.0])))
    assert state.losses == (2.0,)


def test_the_second_pilot_differs_from_the_first_for_equal_shares(view):
    scheme = AdaptiveSampling(k=2, pilot=2)
    shown = view(5)
    share = np.full(5, 0.2)
    assert np.ptp(scheme._second(shown, np.arange(5), share)) > 0.01
    uneven = np.array([0.1, 0.15, 0.2, 0.25, 0.3])
    np.testing.assert_allclose(scheme._second(shown, np.arange(5), uneven), uneven)


def test_options_are_checked():
    with pytest.raises(InputError, match="floor"):
        ApproxOptSampling(floor=0.0)
    with pytest.raises(InputError, match=r"floor of .* must lie in"):
        AdaptiveSampling(floor=1.5)
