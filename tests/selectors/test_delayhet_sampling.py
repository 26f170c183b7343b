"""DelayHetSampling: the objective and its gradient, the point-mass oracle, the errata, and the draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import view_of_moments

from fedpace import Need
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics.round_time import MARGIN
from fedpace.selectors.delayhet_sampling import DelayhetSampling, SamplingObjective


def random_objective(seed, count=5, draws=3, scale=0.3):
    rng = stream(seed, "objective")
    points = rng.normal(size=(count, 2))
    squares = scale * np.square(np.linalg.norm(points[:, None] - points[None], axis=2))
    share = rng.dirichlet(np.ones(count))
    return SamplingObjective(squares, squares @ share, rng.uniform(1, 50, count), draws)


def test_by_hand():
    """Two clients, p = (1/4, 3/4), two draws: E[max] = 1/16 * 1 + 15/16 * 3; B_p = 2 (p.r + p'Bp / 2)."""
    objective = SamplingObjective(np.array([[0, 0.2], [0.2, 0]]), np.array([0.1, 0.1]), np.array([1.0, 3.0]), 2)
    p = np.array([0.25, 0.75])
    bound = 2 * (0.1 + 2 * 0.25 * 0.75 * 0.2 / 2)
    assert objective.bound(p) == pytest.approx(bound)
    assert objective.value(p) == pytest.approx((1 / 16 + 45 / 16) / (1 - bound))


@pytest.mark.parametrize("draws", [1, 2, 10])
def test_at_a_vertex_the_variance_vanishes(draws):
    objective = random_objective(1, draws=draws, scale=0.02)
    for i in range(5):
        vertex = np.eye(5)[i]
        assert objective.bound(vertex) == pytest.approx(2 * objective.reach[i])
        assert objective.value(vertex) == pytest.approx(objective.delay[i] / (1 - 2 * objective.reach[i]))


def scaled_to(objective, p, bound):
    """The same objective with B_p equal to `bound`."""
    factor = bound / objective.bound(p)
    return SamplingObjective(objective.squares * factor, objective.reach * factor, objective.delay, objective.draws)


@pytest.mark.parametrize("bound", [0.3, 1 - MARGIN - 0.01, 1 - MARGIN + 0.01, 1.0, 3.0])
@pytest.mark.parametrize("draws", [1, 4])
def test_the_gradient_on_both_sides_of_the_margin(bound, draws):
    rng = stream(draws, "gradient")
    p = rng.dirichlet(np.full(5, 3.0))
    objective = scaled_to(random_objective(2, draws=draws), p, bound)
    assert objective.bound(p) == pytest.approx(bound)
    _, gradient = objective.value_and_gradient(p)
    for _ in range(5):
        direction = rng.normal(size=5)
        direction -= direction.mean()
        step = 1e-6 * direction
        slope = (objective.value(p + step) - objective.value(p - step)) / 2e-6
        assert gradient @ direction == pytest.approx(slope, rel=1e-4)


def test_value_and_slope_are_continuous_at_the_margin():
    p = np.full(5, 0.2)
    below, above = (scaled_to(random_objective(3), p, 1 - MARGIN + shift) for shift in (-1e-9, 1e-9))
    assert below.value(p) == pytest.approx(above.value(p), rel=1e-6)
    np.testing.assert_allclose(below.value_and_gradient(p)[1], above.value_and_gradient(p)[1], rtol=1e-5)


def test_the_value_stays_finite_and_grows_beyond_the_margin():
    p = np.full(5, 0.2)
    values = [scaled_to(random_objective(4), p, bound).value(p) for bound in (0.5, 0.9, 0.96, 1.0, 1.5, 5.0)]
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.sampled_from([0.02, 0.1]))
def test_errata_a4_no_distribution_beats_the_best_single_client(seed, draws, scale):
    objective = random_objective(seed, draws=draws, scale=scale)
    vertices = [objective.value(row) for row in np.eye(5)]
    p = stream(seed, "p").dirichlet(np.full(5, 0.7))
    assert objective.value(p) >= min(vertices) * (1 - 1e-9)


def test_errata_a4_more_iterations_end_at_the_point_mass():
    objective = random_objective(5, draws=1, scale=0.02)
    values, effective = [], []
    for max_iter in (5, 20, 1000):
        p, _ = objective.minimise(max_iter)
        values.append(objective.value(p))
        effective.append(1 / np.square(p).sum())
    assert values[0] >= values[1] >= values[2] - 1e-9
    assert effective[0] > effective[2]
    best = min(objective.value(row) for row in np.eye(5))
    assert values[2] == pytest.approx(best, rel=1e-3)
    assert effective[2] == pytest.approx(1.0, abs=0.01)


def test_errata_a6_the_bound_is_largest_inside():
    """B_12^2 = 0.9: B_p = 0.9 at the corners, 1.8 in the middle with K = 1 and 1.35 with K = 2."""
    squares = np.array([[0, 0.9], [0.9, 0]])
    corner, middle = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    one, two = (SamplingObjective(squares, squares @ middle, np.ones(2), draws) for draws in (1, 2))
    assert one.bound(corner) == pytest.approx(0.9)
    assert one.bound(middle) == pytest.approx(1.8)
    assert two.bound(middle) == pytest.approx(1.35)


def test_errata_a6_with_genuine_features():
    view = view_of_moments([0.53, 1.47], [1.0, 1.0])
    B = view.moments.heterogeneity(ridge=0.0, shares=view.share)
    reach = np.square(B) @ view.share
    np.testing.assert_allclose(reach, 0.442, atol=1e-3)
    assert SamplingObjective(np.square(B), reach, view.delay, 1).bound(view.share) == pytest.approx(1.767, abs=1e-3)


def test_an_infeasible_answer_says_so():
    view = view_of_moments([0.1, 1.9], [1.0, 1.0])
    cohort, _ = DelayhetSampling(k=2, ridge=0.0, target_heterogeneity=0.0).select(None, view, stream(0))
    assert cohort.why.facts["B_p"] >= 1
    assert "infeasible, B_p >= 1: lower target_heterogeneity" in cohort.why.status
    feasible, _ = DelayhetSampling(k=2, ridge=0.0, target_heterogeneity=0.3).select(None, view, stream(0))
    assert feasible.why.facts["B_p"] < 1
    assert "infeasible" not in feasible.why.status


MANY = view_of_moments(np.linspace(0.6, 1.4, 12), np.linspace(10, 120, 12))


def choose(view=MANY, seed=0, **options):
    return DelayhetSampling(**({"k": 5} | options)).select(None, view, stream(seed, "draw"))[0]


def test_weights_are_multiplicity_over_k():
    sizes = set()
    for seed in range(10):
        cohort = choose(seed=seed)
        counts = cohort.weights * 5
        np.testing.assert_allclose(counts, counts.round())
        np.testing.assert_allclose(cohort.weights.sum(), 1.0)
        assert cohort.mode == "average"
        sizes.add(cohort.clients.size)
        for row, count in zip(cohort.clients.tolist(), counts, strict=True):
            assert cohort.why.reasons[row] == f"drawn {round(count)} of 5 times"
    assert min(sizes) < 5, "somebody was drawn twice in ten rounds"


def test_draws_follow_the_distribution():
    total = np.zeros(12)
    for seed in range(40):
        cohort = choose(seed=seed, k=12, max_iter=5)
        total[cohort.clients] += cohort.weights
    problem = SamplingObjective(*_squares_and_reach(MANY, 0.1, cohort.why.facts["scale"]), delay=MANY.delay, draws=1)
    p, _ = problem.minimise(5)
    np.testing.assert_allclose(total / 40, p, atol=5 * 0.5 / (40 * 12) ** 0.5)


def _squares_and_reach(view, ridge, scale):
    squares = np.square(view.moments.heterogeneity(ridge=ridge, shares=view.share) * scale)
    return squares, squares @ view.share


def test_fast_and_central_clients_are_likelier():
    cohort = choose(max_iter=50)
    assert cohort.why.facts["effective_clients"] < 12
    hits = np.zeros(12)
    for seed in range(100):
        hits[choose(seed=seed, max_iter=8).clients] += 1
    assert hits[:4].sum() > hits[-4:].sum()


def test_diagnostics():
    cohort = choose(max_iter=7, target_heterogeneity=0.1)
    facts = cohort.why.facts
    assert facts["max_iter"] == 7
    assert facts["c"] == 0.1
    assert facts["scale"] == pytest.approx(0.1 / facts["largest_mean_B"])
    assert cohort.why.status.startswith("trust-constr stopped after ")
    assert cohort.why.status.endswith(" of 7 iterations")
    assert 1 <= facts["effective_clients"] <= 12
    assert cohort.why.objective > 0
    assert MANY.delay.min() <= cohort.why.predicted_seconds <= MANY.delay.max()


def test_the_full_objective_counts_k():
    one, full = choose(max_iter=15), choose(max_iter=15, full_objective=True)
    assert one.why.objective != full.why.objective
    single = choose(k=1, max_iter=15), choose(k=1, max_iter=15, full_objective=True)
    assert single[0].why.objective == single[1].why.objective, "with k = 1 there is no approximation"


def test_the_unit_of_time_does_not_matter():
    slow = view_of_moments(np.linspace(0.6, 1.4, 12), 1000 * np.linspace(10, 120, 12))
    one, other = choose(), choose(slow)
    assert one.clients.tolist() == other.clients.tolist()
    assert other.why.objective == pytest.approx(1000 * one.why.objective)


def test_only_the_available_are_drawn():
    view = view_of_moments(np.linspace(0.6, 1.4, 12), np.linspace(10, 120, 12), available=np.arange(12) % 3 == 1)
    drawn = {row for seed in range(20) for row in choose(view, seed=seed).clients.tolist()}
    assert drawn <= {1, 4, 7, 10}
    assert len(drawn) > 1


def test_one_candidate():
    view = view_of_moments([0.8, 1.2], [1.0, 2.0], available=[False, True])
    cohort = choose(view, k=2)
    assert cohort.clients.tolist() == [1]
    assert cohort.weights.tolist() == [1.0]


def test_delays_of_0_and_ties():
    view = view_of_moments([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    cohort = choose(view, k=3)
    assert cohort.why.objective == 0.0
    np.testing.assert_allclose(cohort.weights.sum(), 1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k of delayhet-sampling must be at least 1"),
        ({"max_iter": 0}, "max_iter of delayhet-sampling must be at least 1"),
        ({"ridge": -0.1}, "ridge of delayhet-sampling"),
        ({"target_heterogeneity": 0.9}, "target_heterogeneity of delayhet-sampling must lie in"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        DelayhetSampling(**options)


def test_k_beyond_the_roster():
    with pytest.raises(InputError, match="delayhet-sampling is asked for k = 13 clients, but there are only 12"):
        choose(k=13)


def test_what_it_needs():
    assert DelayhetSampling.needs == {Need.DELAY, Need.MOMENT}
