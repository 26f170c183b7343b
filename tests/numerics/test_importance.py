"""best_sampling against a multistart general solver, its limits, and its floor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpace._base.errors import InputError
from fedpace.numerics.sampling import best_sampling, sampling_cost


def instance(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 25))
    a = np.square(rng.dirichlet(np.ones(n)) * rng.lognormal(0, 1, n))
    return rng, a, rng.lognormal(4, rng.choice([0.3, 1.5]), n), float(a.sum() * n * rng.choice([0, 0.1, 1, 10, 1000]))


def multistart(rng, a, t, c, floor=0.0, starts=8):
    """Return the best value of L-BFGS on q = floor + (1 - n floor) softmax(x) from several starts."""
    n = a.size

    def value(x):
        e = np.exp(np.maximum(x - x.max(), -40))
        p = e / e.sum()
        q = floor + (1 - n * floor) * p
        time, spread = q @ t, (a / q).sum() + c
        slope = (1 - n * floor) * (t * spread - time * a / q**2)
        scale = 1 / (t.mean() * (a.sum() * n + c))
        return time * spread * scale, p * (slope - p @ slope) * scale

    found = []
    for start in range(starts):
        x0 = np.log(np.sqrt(a / t)) if start == 0 else rng.standard_normal(n) * start
        x = minimize(value, x0, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
        e = np.exp(np.maximum(x - x.max(), -40))
        found.append(float(sampling_cost(floor + (1 - n * floor) * e / e.sum(), a, t, c)))
    return min(found)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("part", [0.0, 0.1, 0.9])
def test_never_worse_than_multistart_lbfgs(seed, part):
    rng, a, t, c = instance(seed)
    floor = part / a.size
    q = best_sampling(a, t, c=c, floor=floor)
    assert q.min() >= floor * (1 - 1e-9)
    np.testing.assert_allclose(q.sum(), 1)
    assert sampling_cost(q, a, t, c) <= multistart(rng, a, t, c, floor) * (1 + 1e-6)


@given(st.integers(0, 10**6))
def test_its_limits(seed):
    _, a, t, _ = instance(seed)
    closed = np.sqrt(a / t)
    np.testing.assert_allclose(best_sampling(a, t, c=0.0), closed / closed.sum(), rtol=2e-2)
    assert np.argmax(best_sampling(a, t, c=float(a.sum()) * 1e9)) == np.argmin(t)
    np.testing.assert_allclose(best_sampling(a, np.ones(a.size), c=3.0), np.sqrt(a) / np.sqrt(a).sum(), rtol=1e-6)


@given(st.integers(0, 10**6))
def test_units_do_not_matter(seed):
    _, a, t, c = instance(seed)
    q = best_sampling(a, t, c=c, floor=0.01)
    np.testing.assert_allclose(best_sampling(a * 1e-8, t * 1e5, c=c * 1e-8, floor=0.01), q, rtol=1e-4, atol=1e-9)


def test_zeros():
    q = best_sampling([1.0, 0, 1], [1, 1, 1], c=0.0, floor=[0.1, 0, 0.1])
    np.testing.assert_allclose(q, [0.5, 0, 0.5])
    np.testing.assert_allclose(best_sampling([1.0, 4], [0, 0], c=1.0), [1 / 3, 2 / 3])
    np.testing.assert_allclose(best_sampling([1.0], [5], c=1.0), [1])
    np.testing.assert_allclose(best_sampling([1.0, 9], [5, 1], c=1.0, floor=0.5), [0.5, 0.5])


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="not all 0"):
        best_sampling([0.0, 0], [1, 1], c=1.0)
    with pytest.raises(InputError, match="sum to at most 1"):
        best_sampling([1.0, 1], [1, 1], c=1.0, floor=0.6)
