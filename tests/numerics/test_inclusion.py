"""The closed form of optimal client sampling against a numerical optimiser, and AOCS against the closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, minimize

from fedpace._base.errors import InputError
from fedpace.numerics.sampling import aggregated_inclusion, optimal_inclusion


def variance(u, p):
    return float((u**2 * (1 - p) / p).sum())


@pytest.mark.parametrize("seed", range(25))
def test_a_numerical_optimiser_finds_the_same(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 12))
    k = int(rng.integers(1, n))
    u = rng.lognormal(0, rng.choice([0.3, 1.5]), n)
    u /= u.sum()
    best = minimize(
        lambda p: variance(u, p),
        np.full(n, k / n),
        jac=lambda p: -((u / p) ** 2),
        method="SLSQP",
        bounds=Bounds(1e-4, 1),
        constraints=LinearConstraint(np.ones((1, n)), 0, k),
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    p = optimal_inclusion(u, k)
    assert variance(u, p) <= best.fun * (1 + 1e-6)
    np.testing.assert_allclose(p, best.x, atol=5e-3)


@given(st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=30), st.integers(1, 40))
def test_it_is_a_threshold_rule_that_uses_the_whole_budget(u, k):
    u = np.array(u)
    p = optimal_inclusion(u, k)
    assert ((p >= 0) & (p <= 1)).all()
    if not u.any():
        np.testing.assert_allclose(p, min(1, k / u.size))
        return
    np.testing.assert_allclose(p.sum(), min(k, np.count_nonzero(u)), rtol=1e-9)
    assert (p[u == 0] == 0).all()
    open_ = (p < 1) & (u > 0)
    if open_.any():
        ratio = p[open_] / u[open_]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
        assert (u[p >= 1] * ratio[0] >= 1 - 1e-9).all()


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.integers(1, 40))
def test_aocs_converges_to_the_closed_form(u, k):
    np.testing.assert_allclose(aggregated_inclusion(u, k, 500), optimal_inclusion(u, k), atol=1e-9)


def test_aocs_with_few_exchanges_is_off_for_long_tails():
    u = 10.0 ** -np.arange(8)
    exact, rough = optimal_inclusion(u, 6), aggregated_inclusion(u, 6, 4)
    assert np.abs(exact - rough).max() > 0.1
    assert rough.sum() < 6
    np.testing.assert_allclose(aggregated_inclusion([1.0, 1, 2], 2, 0), [0.5, 0.5, 1])


def test_a_worked_example():
    # 9 is certain; the other draw is shared by 1, 2 and 3.
    np.testing.assert_allclose(optimal_inclusion([1.0, 9, 2, 3], 2), [1 / 6, 1, 2 / 6, 3 / 6])


def test_all_zero_and_bad_norms():
    np.testing.assert_allclose(aggregated_inclusion(np.zeros(4), 2, 4), 0.5)
    with pytest.raises(InputError, match="norms of at least 0"):
        optimal_inclusion([-1.0], 1)
    with pytest.raises(InputError, match="k must be above 0"):
        optimal_inclusion([1.0], 0)
