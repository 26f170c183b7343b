"""facility_location against a plain greedy written here, brute force, and apricot."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.numerics.facility import facility_location, nearest


def points(seed, n, d=3):
    x = np.random.default_rng(seed).standard_normal((n, d))
    return np.linalg.norm(x[:, None] - x[None], axis=2)


def cost(distance, picks, weights=None):
    return np.average(distance[list(picks)].min(axis=0), weights=weights)


def naive(distance, k, weights):
    """Greedy, from the definition: the row whose addition gives the least cost."""
    picks = []
    for _ in range(k):
        rest = [row for row in range(len(distance)) if row not in picks]
        picks.append(min(rest, key=lambda row: cost(distance, [*picks, row], weights)))
    return picks


@given(st.integers(0, 10**6), st.integers(2, 40), st.data())
def test_lazy_and_plain_equal_the_naive_greedy(seed, n, data):
    k = data.draw(st.integers(1, n))
    rng = np.random.default_rng(seed)
    distance = np.abs(rng.standard_normal((n, n + 3)))  # not symmetric: no exact ties
    weights = rng.random(n + 3)
    expected = naive(distance, k, weights)
    for method in ("lazy", "plain"):
        picks = facility_location(distance, k, method=method, weights=weights)
        np.testing.assert_allclose(cost(distance, picks, weights), cost(distance, expected, weights))
        # Once every column is at its best, further picks save nothing and the tie rule decides.
        useful = [
            p
            for i, p in enumerate(expected)
            if i == 0 or cost(distance, expected[:i], weights) > cost(distance, expected[: i + 1], weights) + 1e-9
        ]
        assert picks[: len(useful)] == useful


@given(st.integers(0, 10**6), st.integers(1, 60), st.data())
def test_lazy_equals_plain_also_where_neighbours_tie(seed, n, data):
    k = data.draw(st.integers(1, n))
    distance = points(seed, n, d=1).round(1)  # many exact ties
    assert facility_location(distance, k, method="lazy") == facility_location(distance, k, method="plain")


@given(st.integers(0, 10**6), st.integers(2, 30))
def test_relabelling_the_rows_relabels_the_answer(seed, n):
    k = max(1, n // 3)
    distance = points(seed, n)
    rng = np.random.default_rng(seed)
    order, weights = rng.permutation(n), rng.random(n) + 0.1  # unequal: mutual nearest neighbours do not tie
    moved = facility_location(distance[np.ix_(order, order)], k, weights=weights[order])
    assert order[moved].tolist() == facility_location(distance, k, weights=weights)


@pytest.mark.parametrize("seed", range(20))
def test_the_greedy_guarantee_against_brute_force(seed):
    distance = points(seed, 9)
    best = min(cost(distance, s) for s in itertools.combinations(range(9), 3))
    none = distance.max(axis=0).mean()
    for method in ("lazy", "plain"):
        got = cost(distance, facility_location(distance, 3, method=method))
        assert best - 1e-12 <= got
        assert none - got >= (1 - 1 / np.e) * (none - best)


def test_two_clusters_need_one_each():
    x = np.array([0.0, 0.1, 0.2, 9.0, 9.1, 9.2])
    distance = np.abs(x[:, None] - x)
    # Greedy: 2 and 3 lie in the middle and tie, the lower row is taken; then the middle of the other cluster.
    assert facility_location(distance, 2) == [2, 4]
    member, far = nearest(distance, [1, 4])
    assert member.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(far, [0.1, 0, 0.1, 0.1, 0, 0.1], atol=1e-12)


def test_everybody_can_be_picked_and_duplicates_do_no_harm():
    assert sorted(facility_location(np.zeros((5, 5)), 5)) == list(range(5))
    assert facility_location([[0.0]], 1) == [0]


def test_stochastic_is_nearly_as_good_and_follows_its_generator():
    distance = points(3, 200)
    runs = [facility_location(distance, 10, method="stochastic", rng=np.random.default_rng(s)) for s in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert len(set(runs[0])) == 10
    exact = cost(distance, facility_location(distance, 10))
    assert cost(distance, runs[0]) < 1.25 * exact


def test_stochastic_looks_at_a_part_only():
    # With a part of 1 it is the plain search; with a small one it must sometimes miss the best first pick.
    distance = points(4, 100)
    best = facility_location(distance, 1)
    rng = np.random.default_rng(0)
    firsts = [facility_location(distance, 1, method="stochastic", rng=rng) for _ in range(200)]
    assert 2 <= sum(first == best for first in firsts) <= 50  # a tenth of the rows: 20 expected
    assert facility_location(distance, 5, method="stochastic", sample=1.0, rng=rng) == facility_location(distance, 5)


@pytest.fixture(scope="module")
def apricot():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("numba").config, "DISABLE_JIT", True)  # it would compile for every fit
        yield importlib.import_module("apricot")


@pytest.mark.parametrize("seed", range(10))
def test_against_apricot(seed, apricot):
    distance = points(seed, 60)
    similarity = distance.max() - distance
    theirs = apricot.FacilityLocationSelection(8, metric="precomputed", optimizer="naive").fit(similarity)
    assert facility_location(distance, 8) == theirs.ranking.tolist()


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="k must lie between 1 and the 2 rows"):
        facility_location(np.zeros((2, 2)), 3)
    with pytest.raises(InputError, match="give it an rng"):
        facility_location(np.zeros((2, 2)), 1, method="stochastic")
    with pytest.raises(InputError, match="at least 0"):
        facility_location([[-1.0]], 1)
