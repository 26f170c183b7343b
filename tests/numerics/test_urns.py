"""The urns of clustered sampling: marginals exactly K x share, also where a share exceeds 1/K."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from fedpace._base.errors import InputError
from fedpace.numerics.urns import draw_from, urns_by_cluster, urns_by_size


def build(how, share, k, seed=0):
    rng = np.random.default_rng(seed)
    if how == "size":
        return urns_by_size(share, k)
    return urns_by_cluster(share, k, pdist(rng.standard_normal((share.size, 3))), rng)


@pytest.mark.parametrize("how", ["size", "cluster"])
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.05, 0.3, 1.0, 50.0]))
def test_marginals_are_exactly_k_times_the_share(how, seed, n, k, spread):
    rng = np.random.default_rng(seed)
    share = rng.gamma(spread, size=n) + 1e-12
    share[rng.random(n) < 0.2] = 0
    share = share / share.sum() if share.any() else np.full(n, 1 / n)
    urns = build(how, share, k, seed)
    assert urns.shape == (k, n)
    assert (urns >= 0).all()
    np.testing.assert_allclose(urns.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(urns.sum(axis=0), k * share, atol=1e-10)


@pytest.mark.parametrize("how", ["size", "cluster"])
def test_a_client_beyond_one_kth_has_urns_of_its_own(how):
    urns = build(how, np.array([0.1, 0.6, 0.1, 0.2]), 5)
    assert (urns[:, 1] == 1).sum() == 3
    np.testing.assert_allclose(urns.sum(axis=0), [0.5, 3, 0.5, 1])


def test_similar_clients_share_an_urn():
    x = np.array([[0.0], [10], [0.1], [10.1], [0.2], [10.2]])
    urns = urns_by_cluster(np.full(6, 1 / 6), 2, pdist(x), np.random.default_rng(0))
    assert sorted(np.flatnonzero(urn).tolist() for urn in urns) == [[0, 2, 4], [1, 3, 5]]


def test_near_clients_stay_together_where_gaps_are_filled():
    x = np.array([[0.0], [4.0], [5.0], [9.5]])
    urns = urns_by_cluster(np.array([0.3, 0.2, 0.2, 0.3]), 2, pdist(x), np.random.default_rng(0))
    together = [set(np.flatnonzero(urn).tolist()) for urn in urns]
    assert {1, 2} <= together[0] or {1, 2} <= together[1]
    np.testing.assert_allclose(urns.sum(axis=0), [0.6, 0.4, 0.4, 0.6])


def test_the_variance_is_at_most_that_of_draws_by_share():
    # Var of the k-draw mean of any statistic y: sum over urns of Var under the urn, against k times Var under share.
    rng = np.random.default_rng(5)
    for how in ("size", "cluster"):
        share = rng.dirichlet(np.ones(20))
        y = rng.standard_normal((50, 20))
        urns = build(how, share, 6)
        ours = sum((y**2 @ urn) - (y @ urn) ** 2 for urn in urns)
        plain = 6 * ((y**2 @ share) - (y @ share) ** 2)
        assert (ours <= plain + 1e-12).all()


def test_drawing_follows_the_urns_and_never_takes_the_impossible():
    urns = np.array([[0.0, 0.25, 0.75, 0.0], [1.0, 0, 0, 0]])
    rng = np.random.default_rng(0)
    draws = np.array([draw_from(urns, rng) for _ in range(4000)])
    assert set(draws[:, 0].tolist()) == {1, 2}
    assert set(draws[:, 1].tolist()) == {0}
    assert abs((draws[:, 0] == 1).mean() - 0.25) < 0.03


def test_shares_that_do_not_sum_to_one_are_refused():
    with pytest.raises(InputError, match="sum to 1"):
        urns_by_size(np.array([0.5, 0.1]), 2)
