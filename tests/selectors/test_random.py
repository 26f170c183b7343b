"""Random selection: each variant by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace import View
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.selectors.random import Random

SHARE = np.array([0.05, 0.1, 0.15, 0.3, 0.4])


def make_view(share=SHARE, available=None):
    count = len(share)
    nothing = np.full(count, np.nan)
    return View(
        step=0,
        now=0.0,
        available=np.ones(count, bool) if available is None else available,
        share=share,
        delay=nothing,
        loss=nothing,
        loss_step=np.full(count, -1),
        participations=np.zeros(count, int),
    )


def draws(selector, view, count=4000):
    """Cohorts of many seeds, and the weight that each gave every client (0 = not in)."""
    cohorts = [selector.select(None, view, stream(seed, "random"))[0] for seed in range(count)]
    weights = np.zeros((count, view.clients))
    for row, cohort in enumerate(cohorts):
        weights[row, cohort.clients] = cohort.weights
    return cohorts, weights


def close(mean, expected, count, spread=0.5):
    """Within five standard errors."""
    np.testing.assert_allclose(mean, expected, atol=5 * spread / count**0.5)


def test_uniform_wor_is_uniform_and_weighs_by_share_within_the_cohort():
    cohorts, weights = draws(Random(k=2), make_view())
    assert all(cohort.mode == "average" and cohort.clients.size == 2 for cohort in cohorts)
    close((weights > 0).mean(axis=0), 0.4, 4000)
    for cohort in cohorts[:50]:
        expected = SHARE[cohort.clients] / SHARE[cohort.clients].sum()
        np.testing.assert_allclose(cohort.weights, expected)
    pairs = {tuple(cohort.clients) for cohort in cohorts}
    assert len(pairs) == 10, "every pair comes up"


def test_uniform_wor_is_biased_where_shares_differ():
    """The common default, and why there are two others: small clients count for more than their share."""
    _, weights = draws(Random(k=2), make_view())
    assert weights.mean(axis=0)[0] > SHARE[0] + 0.02


def test_md_draws_by_share_and_is_unbiased():
    cohorts, weights = draws(Random(k=3, variant="md"), make_view())
    close(weights.mean(axis=0), SHARE, 4000)
    for cohort in cohorts[:50]:
        np.testing.assert_allclose(cohort.weights.sum(), 1.0)
        multiplicity = cohort.weights * 3
        np.testing.assert_allclose(multiplicity, multiplicity.round())
        assert (multiplicity >= 1).all()
    assert {cohort.clients.size for cohort in cohorts} == {1, 2, 3}
    close((weights > 0).mean(axis=0), 1 - (1 - SHARE) ** 3, 4000)


def test_uniform_unbiased_is_unbiased_in_delta_mode():
    cohorts, weights = draws(Random(k=2, variant="uniform-unbiased"), make_view())
    assert all(cohort.mode == "delta" and cohort.clients.size == 2 for cohort in cohorts)
    close((weights > 0).mean(axis=0), 0.4, 4000)
    close(weights.mean(axis=0), SHARE, 4000)
    for cohort in cohorts[:50]:
        np.testing.assert_allclose(cohort.weights, SHARE[cohort.clients] * 5 / 2)


@pytest.mark.parametrize("variant", ["uniform-wor", "md", "uniform-unbiased"])
def test_all_clients_of_equal_share(variant):
    cohort, _ = Random(k=4, variant=variant).select(None, make_view(np.full(4, 0.25)), stream(0))
    if variant != "md":
        assert cohort.clients.tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(cohort.weights, 0.25)


@pytest.mark.parametrize("variant", ["uniform-wor", "md", "uniform-unbiased"])
def test_only_the_available_are_drawn(variant):
    view = make_view(available=np.array([True, False, True, False, True]))
    cohorts, weights = draws(Random(k=2, variant=variant), view, 500)
    assert {client for cohort in cohorts for client in cohort.clients.tolist()} == {0, 2, 4}
    among = SHARE[[0, 2, 4]] / SHARE[[0, 2, 4]].sum()
    if variant == "md":
        close(weights.mean(axis=0)[[0, 2, 4]], among, 500)
    elif variant == "uniform-unbiased":
        np.testing.assert_allclose(cohorts[0].weights, SHARE[cohorts[0].clients] * 3 / 2)


@pytest.mark.parametrize("variant", ["uniform-wor", "uniform-unbiased"])
def test_fewer_than_k_are_reachable(variant):
    view = make_view(available=np.array([True, False, False, False, True]))
    cohort, _ = Random(k=4, variant=variant).select(None, view, stream(0))
    assert cohort.clients.tolist() == [0, 4]
    expected = SHARE[[0, 4]] if variant == "uniform-unbiased" else SHARE[[0, 4]] / 0.45
    np.testing.assert_allclose(cohort.weights, expected)


def test_md_may_draw_more_often_than_there_are_clients_to_reach():
    view = make_view(available=np.array([True, False, False, False, True]))
    cohort, _ = Random(k=5, variant="md").select(None, view, stream(0))
    np.testing.assert_allclose(cohort.weights * 5, (cohort.weights * 5).round())


def test_a_cohort_of_clients_that_do_not_count_is_averaged_evenly():
    view = make_view(np.array([0.0, 0.0, 1.0]), np.array([True, True, False]))
    cohort, _ = Random(k=2).select(None, view, stream(0))
    assert cohort.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("variant", ["uniform-wor", "md", "uniform-unbiased"])
def test_k_beyond_the_roster(variant):
    with pytest.raises(InputError, match="random is asked for k = 6 clients, but there are only 5: lower k or add"):
        Random(k=6, variant=variant).select(None, make_view(), stream(0))


def test_bad_options():
    with pytest.raises(InputError, match="k of random must be at least 1, or 0 to take all clients"):
        Random(k=-1)
    with pytest.raises(InputError, match="variant of random must be one of 'uniform-wor', 'md', 'uniform-unbiased'"):
        Random(variant="wor")


# -- over-selection ------------------------------------------------------------------------------------------


def test_more_are_asked_than_are_wanted():
    share = np.full(40, 1 / 40)
    cohort, _ = Random(k=10, overcommit=1.3).select(None, make_view(share), stream(0))
    assert (cohort.clients.size, cohort.quorum) == (13, 10)
    cohort, _ = Random(k=10, overcommit=2.0).select(None, make_view(share), stream(0))
    assert (cohort.clients.size, cohort.quorum) == (20, 10)
    np.testing.assert_allclose(cohort.weights, 1 / 20)


def test_all_are_asked_where_there_are_no_more():
    cohort, _ = Random(k=4, overcommit=2.0).select(None, make_view(), stream(0))
    assert (cohort.clients.size, cohort.quorum) == (5, 4)
    cohort, _ = Random(k=5, overcommit=2.0).select(None, make_view(), stream(0))
    assert (cohort.clients.size, cohort.quorum) == (5, 0)


@pytest.mark.parametrize("variant", ["uniform-wor", "md", "uniform-unbiased"])
def test_no_number_means_everybody(variant):
    cohorts, weights = draws(Random(k=0, variant=variant), make_view())
    if variant == "md":
        close((weights > 0).mean(axis=0), 1 - (1 - SHARE) ** 5, 4000)
    else:
        assert all(cohort.clients.tolist() == [0, 1, 2, 3, 4] for cohort in cohorts)
        np.testing.assert_allclose(weights, np.tile(SHARE, (4000, 1)))


def test_delays_matter_only_where_the_first_are_taken():
    assert Random().ignores_delays
    assert not Random(overcommit=1.3).ignores_delays


def test_only_a_plain_average_goes_with_over_selection():
    for variant in ("md", "uniform-unbiased"):
        with pytest.raises(InputError, match="set overcommit = 1, or variant = 'uniform-wor'"):
            Random(overcommit=1.3, variant=variant)
    with pytest.raises(InputError, match="overcommit of random must be at least 1"):
        Random(overcommit=0.9)
