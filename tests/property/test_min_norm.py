"""On truly submodular functions (cut + modular) the minimum-norm point finds what brute force finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.numerics import min_norm_minimiser


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.integers(0, 100_000), st.sampled_from([1e-4, 1.0, 1e5]), st.booleans())
def test_min_norm_is_brute_force(count, seed, scale, whole):
    rng = np.random.Generator(np.random.PCG64(seed))
    graph = rng.integers(0, 4, (count, count)) * (rng.random((count, count)) < 0.6)
    weights = rng.normal(size=count) * 4
    weights = weights.round() if whole else weights

    def f(mask):
        return scale * (5 + graph[np.ix_(mask, ~mask)].sum() + weights[mask].sum())

    masks = [np.array([bool(code >> i & 1) for i in range(count)]) for code in range(2**count)]
    values = np.array([f(mask) for mask in masks])
    for allow_empty, expected in ((True, values.min()), (False, values[1:].min())):
        found = min_norm_minimiser(f, count, allow_empty=allow_empty)
        if allow_empty:
            np.testing.assert_allclose(found.value, expected, atol=1e-7 * scale)
            assert abs(found.gap) <= 1e-5 * scale
        else:
            assert found.members.size
            assert found.value >= expected - 1e-7 * scale
        mask = np.zeros(count, dtype=bool)
        mask[found.members] = True
        np.testing.assert_allclose(found.value, f(mask), rtol=1e-9, atol=1e-9 * scale)
        assert found.converged
