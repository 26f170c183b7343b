"""HACCS: clusters against the authors' own clustering, weights by hand, who is sent by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.core.session import Session
from fedpace.core.types import Need
from fedpace.selectors.haccs import Haccs, allotted, by_speed, cluster_weights, clusters


def same_partition(one, other):
    return all((one[i] == one[j]) == (other[i] == other[j]) for i, j in itertools.combinations(range(len(one)), 2))


def histograms(seed, clients, kinds):
    rng = np.random.default_rng(seed)
    mixes = rng.dirichlet(np.full(6, 0.4), kinds)
    return np.array([rng.multinomial(80, mixes[rng.integers(kinds)]) for _ in range(clients)], dtype=float)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 25), st.integers(1, 6))
def test_clusters_are_those_of_the_released_code(seed, clients, kinds):
    """OPTICS on the distances of the frequencies, at least two to a cluster, read out as DBSCAN; noise by itself."""
    cluster = pytest.importorskip("sklearn.cluster")
    labels = histograms(seed, clients, kinds)
    part = labels / labels.sum(axis=1, keepdims=True)
    apart = np.linalg.norm(part[:, None] - part[None], axis=2)
    theirs = cluster.OPTICS(min_samples=2, cluster_method="dbscan", eps=0.25, metric="precomputed").fit_predict(apart)
    theirs = np.where(theirs < 0, 1000 + np.arange(clients), theirs)
    assert same_partition(clusters(labels, "euclidean", 0.25), theirs)


def test_hellinger_by_hand():
    """Between (1, 0) and (1/2, 1/2): sqrt(1 - sqrt(1/2)) = 0.5412; between (1, 0) and (0, 1): 1."""
    labels = np.array([[8.0, 0], [3, 3], [0, 5]])
    assert len(set(clusters(labels, "hellinger", 0.541))) == 3
    assert len(set(clusters(labels, "hellinger", 0.542))) == 1, "the mixed client connects the other two"
    assert len(set(clusters(labels[[0, 2]], "hellinger", 0.999))) == 2
    assert len(set(clusters(labels[[0, 2]], "hellinger", 1.001))) == 1


def test_sizes_do_not_matter_and_no_data_is_a_kind_of_its_own():
    found = clusters(np.array([[1.0, 1], [400, 400], [0, 0], [0, 0]]), "euclidean", 0.1)
    assert same_partition(found, [0, 0, 1, 1])
    assert clusters(np.array([[3.0, 1]]), "euclidean", 0.1).tolist() == [0]


def test_weights_by_hand():
    # Speed 1 - (10, 30, 40) / 40 = 0.75, 0.25, 0; loss (1, 4, 5) / 10; half of each: 0.425, 0.325, 0.25, which is 1.
    got = cluster_weights(np.array([10.0, 30, 40]), np.array([1.0, 4, 5]), 0.5)
    np.testing.assert_allclose(got, [0.425, 0.325, 0.25])
    np.testing.assert_allclose(cluster_weights(np.array([10.0, 30, 40]), np.array([1.0, 4, 5]), 1.0), [0.75, 0.25, 0])
    np.testing.assert_allclose(cluster_weights(np.array([10.0, 30, 40]), np.array([1.0, 4, 5]), 0.0), [0.1, 0.4, 0.5])


def test_weights_where_there_is_nothing_to_tell_clusters_apart():
    np.testing.assert_allclose(cluster_weights(np.array([7.0]), np.array([0.0]), 1.0), [1.0])
    np.testing.assert_allclose(cluster_weights(np.zeros(2), np.zeros(2), 0.5), [0.5, 0.5])


def test_clusters_and_their_members_come_fastest_first():
    delay = np.array([9.0, 2, 5, 1, 7])
    found = by_speed(np.array([0, 1, 2, 4]), delay, np.array([5, 8, 5, 8, 8]))
    assert [rows.tolist() for rows in found] == [[1, 4], [2, 0]]


def test_places_are_shared_out_in_expectation_by_weight():
    rng = np.random.default_rng(0)
    weight = np.array([0.55, 0.3, 0.15])
    counts = np.array([allotted(weight, np.array([50, 50, 50]), 7, rng) for _ in range(4000)])
    assert (counts.sum(axis=1) == 7).all()
    # floor(3.85, 2.1, 1.05) = 3, 2, 1 are certain; the seventh goes by weight.
    assert (counts >= [3, 2, 1]).all()
    np.testing.assert_allclose((counts - [3, 2, 1]).mean(axis=0), weight, atol=0.04)


def test_a_cluster_sends_no_more_than_it_has():
    rng = np.random.default_rng(0)
    assert allotted(np.array([0.9, 0.1]), np.array([2, 9]), 8, rng).tolist() == [2, 6]
    assert allotted(np.array([1.0, 0.0]), np.array([2, 9]), 4, rng).tolist() == [2, 2], "even one without weight"


def test_every_kind_is_in_and_by_its_fastest(view):
    labels = np.repeat(np.eye(3) * 20, 5, axis=0)
    delay = np.tile([50.0, 40, 30, 20, 10], 3) + np.repeat([0, 1, 2], 5)
    shown = view(15, labels=labels, delay=delay, loss=np.ones(15))
    for seed in range(20):
        cohort, _ = Haccs(k=6).select(None, shown, np.random.default_rng(seed))
        kinds = cohort.clients // 5
        assert set(kinds) == {0, 1, 2}
        for kind in range(3):
            mine = np.sort(delay[cohort.clients[kinds == kind]])
            assert mine.tolist() == np.sort(delay[kind * 5 : kind * 5 + 5])[: mine.size].tolist()
    assert cohort.why.facts == {"clusters": 3, "clusters_in": 3, "largest_cluster": 5}


def test_the_newest_losses_of_a_cluster_count(view):
    """Two kinds of equal speed; the first kind's old loss of 9 was before its newest member reported 1."""
    labels = np.repeat(np.eye(2) * 20, 20, axis=0)
    loss, step = np.full(40, 3.0), np.full(40, 4)
    loss[:19], step[:19] = 9.0, 2
    loss[19] = 1.0
    shown = view(40, step=5, labels=labels, delay=np.ones(40), loss=loss, loss_step=step)
    cohort, _ = Haccs(k=10, rho=0.0).select(None, shown, np.random.default_rng(0))
    assert (cohort.clients < 20).sum() == 1, "1 / (1 + 9) of ten places"


def test_before_anybody_has_a_loss_speed_decides(view):
    labels = np.repeat(np.eye(2) * 20, 6, axis=0)
    delay = np.repeat([1.0, 3.0], 6)
    shown = view(12, labels=labels, delay=delay, loss=np.full(12, np.nan), loss_step=np.full(12, -1))
    # 0.5 (1 - 1/3) + 0.25 against 0.25: 0.7 and 0.3.
    cohort, _ = Haccs(k=10 - 2).select(None, shown, np.random.default_rng(1))
    assert 5 <= (cohort.clients < 6).sum() <= 6


def test_who_is_asked(view):
    shown = view(6)
    rng = np.random.default_rng(0)
    assert Haccs(k=2).probe(None, shown, rng) is None
    assert Haccs(k=2, losses="probed").probe(None, shown, rng).clients.tolist() == list(range(6))


def test_regression_is_refused():
    with pytest.raises(InputError, match="haccs needs label histograms"):
        Session(Haccs(k=2), offers={Need.DELAY})


@pytest.mark.parametrize("options", [{"k": 0}, {"rho": 1.5}, {"radius": 0.0}, {"distance": "l1"}, {"losses": "all"}])
def test_bad_options(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Haccs(**options)
