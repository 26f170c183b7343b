"""DelayHetSubmodular: the exact set by hand and by brute force, the paper's solver, and the errata."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from views import view_of_moments

from fedpace import Need
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.rng import stream
from fedpace.numerics import best_prefix
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular


def choose(view, **options):
    options = {"ridge": 0.0} | options
    return DelayhetSubmodular(**options).select(None, view, stream(0))[0]


def weights_of(cohort):
    return dict(zip(cohort.clients.tolist(), cohort.weights.round(9).tolist(), strict=True))


def brute_force(B, delay, share, rows):
    def g(members):
        h = B[list(members)].min(axis=0) @ share
        return max(delay[i] for i in members) / (1 - 2 * h * h) if 2 * h * h < 1 else math.inf

    sets = [s for size in range(1, len(rows) + 1) for s in combinations(rows, size)]
    return min(g(s) for s in sets), g


def random_view(seed, count=6, **options):
    rng = stream(seed, "submodular")
    factors = [rng.normal(size=(5, 3)) * rng.uniform(0.9, 1.1, 3) for _ in range(count)]
    base = rng.normal(size=(5, 3))
    factors = [base + 0.15 * factor for factor in factors]
    return view_of_moments(factors, rng.uniform(1, 50, count), rng.uniform(0.5, 2, count), **options)


def test_by_hand():
    """a = (0.8, 1.0, 1.2), B = |a_i - a_j|: client 1 alone costs 1 / (1 - 2 (0.4/3)^2), more are dearer."""
    cohort = choose(view_of_moments([0.8, 1.0, 1.2], [5.0, 1.0, 9.0]))
    assert cohort.clients.tolist() == [1]
    assert cohort.weights.tolist() == [1.0]
    h = 0.4 / 3
    assert cohort.why.objective == pytest.approx(1 / (1 - 2 * h * h), abs=1e-6)
    assert cohort.why.predicted_seconds == 1.0
    assert cohort.why.facts["B_S"] == pytest.approx(2 * h * h, abs=1e-6)
    assert cohort.why.facts["h"] == pytest.approx(h, abs=1e-6)
    assert cohort.mode == "average"
    assert cohort.why.status == "exact"


def test_members_stand_for_their_nearest():
    """Two groups far apart: one of each is needed, and each stands for its group."""
    view = view_of_moments([1.0, 1.01, 1.02, 9.0, 9.01], [1.0, 50.0, 60.0, 2.0, 70.0])
    cohort = choose(view)
    assert weights_of(cohort) == {0: 0.6, 3: 0.4}
    assert cohort.why.reasons == {0: "stands for 60.0% of the objective", 3: "stands for 40.0% of the objective"}


def test_shares_weigh():
    view = view_of_moments([1.0, 1.01, 1.02, 9.0, 9.01], [1.0, 50.0, 60.0, 2.0, 70.0], share=[1, 1, 2, 2, 4])
    assert weights_of(choose(view)) == {0: 0.4, 3: 0.6}


@pytest.mark.parametrize("seed", range(12))
def test_exact_is_best_prefix_and_brute_force(seed):
    view = random_view(seed)
    B = view.moments.heterogeneity(ridge=0.1, shares=view.share)
    cohort = choose(view, ridge=0.1)
    solution = best_prefix(B, view.delay, shares=view.share)
    assert cohort.clients.tolist() == solution.clients.tolist()
    np.testing.assert_allclose(cohort.weights, solution.weights)
    best, g = brute_force(B, view.delay, view.share, range(6))
    assert cohort.why.objective == pytest.approx(best)
    assert g(cohort.clients.tolist()) == pytest.approx(best)


def test_the_absent_are_represented_but_not_chosen():
    view = view_of_moments([1.0, 1.01, 9.0, 9.01], [1.0, 19.0, 2.0, 9.0], available=[True, True, False, True])
    assert weights_of(choose(view)) == {0: 0.5, 3: 0.5}


@pytest.mark.parametrize("seed", range(6))
def test_it_chooses_among_candidates_exactly(seed):
    view = random_view(seed, available=[True, False, True, True, False, True])
    B = view.moments.heterogeneity(ridge=0.1, shares=view.share)
    best, _ = brute_force(B, view.delay, view.share, [0, 2, 3, 5])
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            choose(view, ridge=0.1)
        return
    cohort = choose(view, ridge=0.1)
    assert set(cohort.clients.tolist()) <= {0, 2, 3, 5}
    assert cohort.why.objective == pytest.approx(best)


def test_errata_a1_min_norm_has_no_guarantee_but_exact_is_optimal():
    """g is not submodular on these three clients; the exact solver does not mind."""
    for delay in ([1.0, 1.0, 1.0], [1.0, 1.1, 1.05]):
        view = view_of_moments([0.8, 1.0, 1.2], delay)
        B = view.moments.heterogeneity(ridge=0.0, shares=view.share)
        best, g = brute_force(B, view.delay, view.share, range(3))
        assert choose(view).why.objective == pytest.approx(best)
        found = choose(view, solver="min-norm")
        assert found.why.objective == pytest.approx(g(found.clients.tolist()))
        assert found.why.objective >= best - 1e-12


def test_errata_a1_equal_delays_take_everybody():
    assert choose(view_of_moments([0.8, 1.0, 1.2], [1.0, 1.0, 1.0])).clients.tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_errata_a2_a_fast_client_is_never_skipped(seed):
    view = random_view(seed)
    cohort = choose(view, ridge=0.1)
    faster = np.flatnonzero(view.delay <= view.delay[cohort.clients].max())
    assert set(cohort.clients.tolist()) == set(faster.tolist())
    assert (cohort.weights >= view.share[cohort.clients] - 1e-12).all(), "everybody stands at least for itself"


def test_errata_a8_infeasible_sets_are_not_chosen():
    """a = (1,1,1,9): the raw minimiser is {4} alone, with B_S = 8 and a negative value."""
    view = view_of_moments([1.0, 1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 0.5])
    B = view.moments.heterogeneity(ridge=0.0, shares=view.share)
    h = B[3] @ view.share
    assert 2 * h * h == pytest.approx(8.0, rel=1e-4)
    assert 0.5 / (1 - 2 * h * h) == pytest.approx(-0.071, abs=1e-3)
    cohort = choose(view)
    assert weights_of(cohort) == {3: 0.25, 0: 0.75}
    assert cohort.why.facts["B_S"] < 1
    assert cohort.why.objective == pytest.approx(1.0, abs=1e-6)


def test_errata_c10_equal_features_take_the_fastest_alone():
    cohort = choose(view_of_moments([1.0, 1.0, 1.0], [3.0, 1.0, 2.0]))
    assert cohort.clients.tolist() == [1]


def test_scaling_down_makes_smaller_sets():
    view = view_of_moments([1.0, 1.01, 1.02, 9.0, 9.01], [1.0, 50.0, 60.0, 20.0, 70.0])
    plain, scaled = choose(view), choose(view, target_heterogeneity=0.1)
    assert plain.clients.tolist() == [0, 3]
    assert scaled.clients.tolist() == [0]
    assert plain.why.facts["scale"] == 1.0
    assert plain.why.facts["c"] == 0.0
    assert scaled.why.facts["c"] == 0.1
    assert scaled.why.facts["scale"] == pytest.approx(0.1 / scaled.why.facts["largest_mean_B"])
    assert scaled.why.facts["largest_mean_B"] == pytest.approx(plain.why.facts["largest_mean_B"])


def test_scaling_is_only_downwards():
    view = view_of_moments([0.8, 1.0, 1.2], [5.0, 1.0, 9.0])
    plain, scaled = choose(view), choose(view, target_heterogeneity=0.7)
    assert scaled.why.facts["scale"] == 1.0
    assert scaled.why.objective == plain.why.objective


def test_max_clients():
    view = view_of_moments([1.0, 1.5, 2.0, 2.5], [1.0, 1.0, 1.0, 1.0])
    assert choose(view).clients.size == 4
    assert choose(view, max_clients=2).clients.size == 2
    with pytest.raises(InfeasibleError, match="no set is feasible"):
        choose(view_of_moments([1.0, 1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 0.5]), max_clients=1)


@pytest.mark.parametrize("seed", range(6))
def test_min_norm_returns_a_feasible_set_with_its_true_value(seed):
    view = random_view(seed)
    cohort = choose(view, ridge=0.1, solver="min-norm", target_heterogeneity=0.7)
    exact = choose(view, ridge=0.1, target_heterogeneity=0.7)
    B = view.moments.heterogeneity(ridge=0.1, shares=view.share) * cohort.why.facts["scale"]
    _, g = brute_force(B, view.delay, view.share, range(6))
    assert cohort.why.objective == pytest.approx(g(cohort.clients.tolist()))
    assert cohort.why.objective >= exact.why.objective - 1e-9
    assert cohort.why.facts["B_S"] < 1
    assert "min-norm" in cohort.why.status
    assert "duality gap" in cohort.why.status


def test_min_norm_is_capped():
    cohort = choose(random_view(3, count=12), ridge=0.1, solver="min-norm", target_heterogeneity=0.7, max_iter=1)
    assert "min-norm stopped after 1 steps" in cohort.why.status


def test_min_norm_on_one_client():
    cohort = choose(view_of_moments([1.0], [3.0]), solver="min-norm")
    assert cohort.clients.tolist() == [0]
    assert cohort.why.objective == 3.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "minnorm"}, "solver of delayhet-submodular must be one of 'exact', 'min-norm', but 'minnorm' came"),
        ({"ridge": -1.0}, "ridge of delayhet-submodular must be at least 0"),
        ({"target_heterogeneity": 0.8}, "target_heterogeneity of delayhet-submodular must lie in"),
        ({"max_iter": 0}, "max_iter of delayhet-submodular must be at least 1"),
        ({"max_clients": -1}, "max_clients of delayhet-submodular must be at least 0"),
        ({"max_clients": 3, "solver": "min-norm"}, "min-norm cannot bound the number of clients"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        DelayhetSubmodular(**options)


def test_what_it_needs():
    assert DelayhetSubmodular.needs == {Need.DELAY, Need.MOMENT}
