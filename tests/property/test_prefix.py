"""The prefix scan is the brute force over all subsets; the paper's claims about g are not (ERRATA A1, A2, A4)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InfeasibleError
from fedpace.numerics import best_prefix, expected_max

LINE = np.abs(np.subtract.outer([0.8, 1.0, 1.2], [0.8, 1.0, 1.2]))


def g(B, delay, members, shares=None):
    members = list(members)
    h = np.average(B[members].min(axis=0), weights=shares)
    margin = 1 - 2 * h * h
    return delay[members].max() / margin if margin > 0 else np.inf


def subsets(rows):
    return [members for size in range(1, len(rows) + 1) for members in combinations(rows, size)]


@st.composite
def instances(draw):
    """Pseudo-metrics from points, with duplicates, ties in delay, unequal and zero shares, and infeasible sets."""
    count = draw(st.integers(1, 8))
    points = np.array(draw(st.lists(st.integers(0, 6), min_size=2 * count, max_size=2 * count))).reshape(count, 2)
    B = np.linalg.norm(points[:, None] - points[None], axis=2) * draw(st.sampled_from([0.05, 0.15, 0.4]))
    delay = np.array(draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))) / 2
    shares = np.array(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)), dtype=float)
    assume(shares.sum() > 0)
    candidates = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    return B, delay, shares, sorted(candidates)


@settings(max_examples=250, deadline=None)
@given(instances())
def test_the_scan_is_brute_force(instance):
    B, delay, shares, candidates = instance
    values = {members: g(B, delay, members, shares) for members in subsets(candidates)}
    best = min(values.values())
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError):
            best_prefix(B, delay, shares=shares, candidates=candidates)
        return
    found = best_prefix(B, delay, shares=shares, candidates=candidates)
    np.testing.assert_allclose(found.objective, best, rtol=1e-12)
    np.testing.assert_allclose(values[tuple(sorted(found.clients))], best, rtol=1e-12)
    np.testing.assert_allclose(found.weights.sum(), 1.0)
    assert (found.weights > 0).all()
    np.testing.assert_allclose(found.bound, 2 * found.heterogeneity**2)
    if (shares > 0).all() and len(candidates) == len(delay):
        smallest = min(len(members) for members, value in values.items() if value <= best * (1 + 1e-12))
        assert len(found.clients) == smallest


@settings(max_examples=100, deadline=None)
@given(instances())
def test_weights_put_every_client_on_its_nearest_member(instance):
    B, delay, shares, _ = instance
    found = best_prefix(B, delay, shares=shares)
    expected = dict.fromkeys(found.clients.tolist(), 0.0)
    for j, share in enumerate(shares / shares.sum()):
        nearest = min(found.clients.tolist(), key=lambda i, j=j: (B[i, j], delay[i], i))
        expected[nearest] += share
    np.testing.assert_allclose(found.weights, list(expected.values()), atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10_000), st.booleans(), st.data())
def test_relabelling_clients_relabels_the_answer(count, seed, tied, data):
    rng = np.random.Generator(np.random.PCG64(seed))
    points = rng.normal(size=(count, 2))
    B = np.linalg.norm(points[:, None] - points[None], axis=2) * 0.2
    delay = rng.integers(1, 4, count).astype(float) if tied else rng.uniform(1, 9, count)
    shares = rng.dirichlet(np.ones(count))
    order = np.array(data.draw(st.permutations(range(count))))
    cap = data.draw(st.sampled_from([None, 1, 2]))
    try:
        plain = best_prefix(B, delay, shares=shares, max_clients=cap)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            best_prefix(B[np.ix_(order, order)], delay[order], shares=shares[order], max_clients=cap)
        return
    moved = best_prefix(B[np.ix_(order, order)], delay[order], shares=shares[order], max_clients=cap)
    assert dict(zip(order[moved.clients], moved.weights.round(12), strict=True)) == dict(
        zip(plain.clients, plain.weights.round(12), strict=True)
    )


def test_g_is_not_submodular():
    """ERRATA A1: adding client 3 gains more where less is there, and the paper needs the opposite."""
    equal = np.ones(3)
    small = g(LINE, equal, [0, 2]) - g(LINE, equal, [0])
    large = g(LINE, equal, [0, 1, 2]) - g(LINE, equal, [0, 1])
    np.testing.assert_allclose([small, large], [-0.07799, -0.00897], atol=5e-6)
    assert small < large
    delay = np.array([1.0, 1.1, 1.05])
    small = g(LINE, delay, [0, 1]) - g(LINE, delay, [1])
    large = g(LINE, delay, [0, 1, 2]) - g(LINE, delay, [1, 2])
    np.testing.assert_allclose([small, large], [-0.03069, -0.00987], atol=5e-6)
    assert small < large


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.integers(1, 12), st.integers(0, 10_000))
def test_the_sampling_objective_is_minimised_by_a_point_mass(count, k, seed):
    """ERRATA A4: E[max delay] / (1 - 2 (p.r + p'B~p / K)) is never below its least value at a vertex."""
    rng = np.random.Generator(np.random.PCG64(seed))
    moments = rng.uniform(0.7, 1.3, count)
    squared = (np.subtract.outer(moments, moments) / moments.mean()) ** 2
    delay, reach = rng.uniform(1, 50, count), squared.mean(axis=1)
    assume((2 * reach < 1).any())
    vertices = np.where(2 * reach < 1, delay / np.maximum(1 - 2 * reach, 1e-300), np.inf)
    for concentration in (0.1, 1.0, 10.0):
        p = rng.dirichlet(np.full(count, concentration))
        margin = 1 - 2 * (p @ reach + p @ squared @ p / k)
        if margin > 0:
            assert expected_max(p, delay, k).value / margin >= vertices.min() * (1 - 1e-9)
