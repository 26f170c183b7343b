"""pairwise_heterogeneity on shapes, ranks and scales that nobody chose by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.moments import MomentBank
from fedpace.numerics import pairwise_heterogeneity

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(1, 35), st.integers(0, 10_000))


def draw(shape):
    count, rank, width, seed = shape
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng, [rng.normal(size=(rng.integers(1, rank + 1), width)) * rng.uniform(0.2, 2, width) for _ in range(count)]


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from([0.01, 0.3]))
def test_every_pair_matches_numpy(shape, ridge):
    rng, factors = draw(shape)
    shares = rng.dirichlet(np.ones(len(factors)))
    moments = [factor.T @ factor for factor in factors]
    mean = np.average(moments, axis=0, weights=shares)
    inverse = np.linalg.inv(mean + ridge * np.trace(mean) / len(mean) * np.eye(len(mean)))
    expected = np.array([[np.linalg.norm((a - b) @ inverse, 2) for b in moments] for a in moments])
    got = pairwise_heterogeneity(factors, shares=shares, ridge=ridge)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-9)
    np.testing.assert_array_equal(got, got.T)


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.data())
def test_relabelling_clients_relabels_the_matrix(shape, data):
    _, factors = draw(shape)
    order = np.array(data.draw(st.permutations(range(len(factors)))))
    plain = pairwise_heterogeneity(factors, ridge=0.1, tol=1e-6)
    moved = pairwise_heterogeneity([factors[row] for row in order], ridge=0.1, tol=1e-6)
    np.testing.assert_allclose(moved, plain[np.ix_(order, order)], rtol=1e-5, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(SHAPES, st.lists(st.tuples(st.sampled_from(["put", "append", "remove"]), st.integers(0, 99)), max_size=8))
def test_a_frozen_bank_is_what_it_would_be_from_scratch(shape, changes):
    rng, factors = draw(shape)
    bank = MomentBank(len(factors), reference="frozen", tol=1e-5)
    mirror: list[np.ndarray | None] = list(factors)
    for row, factor in enumerate(factors):
        bank.put(row, factor)
    bank.heterogeneity(ridge=0.1)
    reference = np.mean([factor.T @ factor for factor in factors], axis=0)
    for kind, number in changes:
        if kind == "append":
            bank.append(1)
            mirror.append(None)
        elif mirror:
            row = number % len(mirror)
            if kind == "remove":
                bank.remove(np.array([row]))
                del mirror[row]
            else:
                mirror[row] = rng.normal(size=(3, shape[2]))
                bank.put(row, mirror[row])
        if number % 2:
            bank.heterogeneity(ridge=0.1)
    known = [row for row, factor in enumerate(mirror) if factor is not None]
    got = bank.heterogeneity(ridge=0.1)
    assert got.shape == (len(mirror), len(mirror))
    if known:
        fresh = pairwise_heterogeneity([mirror[row] for row in known], reference=reference, ridge=0.1, tol=1e-5)
        np.testing.assert_allclose(got[np.ix_(known, known)], fresh, rtol=1e-4, atol=1e-9)
    unknown = [row for row, factor in enumerate(mirror) if factor is None]
    assert np.isnan(got[unknown]).all()
