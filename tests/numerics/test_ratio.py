"""The ratios of the repaired samplers: Monte Carlo, finite differences, and minima against grids."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics.round_time import (
    MARGIN,
    MomentRatio,
    TransportRatio,
    expected_max,
    minimise_on_simplices,
    prefix_starts,
    softmax,
    steep_inverse,
)


def transport_cost(p: np.ndarray, q: np.ndarray, cost: np.ndarray) -> float:
    """The exact cost of moving p to q, by linear programming."""
    n, m = cost.shape
    leaves, arrives = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    solved = linprog(cost.ravel(), A_eq=np.vstack([leaves, arrives])[:-1], b_eq=np.concatenate([p, q])[:-1])
    assert solved.status == 0
    return float(solved.fun)


def moment_ratio(
    seed: int, n: int = 4, draws: int = 3, scale: float = 0.5
) -> tuple[MomentRatio, np.ndarray, np.ndarray]:
    """A ratio, the clients' points, and the shares of the population, which is the clients themselves."""
    rng = stream(seed, "moments")
    share = rng.dirichlet(np.ones(n))
    points = scale * rng.normal(size=(n, 3))
    points -= share @ points + 0.1  # a population whose mean is not quite the origin: the formula must not need it
    gram = points @ points.T
    ratio = MomentRatio(gram, gram @ share, float(share @ gram @ share), rng.uniform(1, 20, n), draws)
    return ratio, points, share


def transport_ratio(seed: int, n: int = 3, draws: int = 4, scale: float = 0.6) -> tuple[TransportRatio, np.ndarray]:
    rng = stream(seed, "places")
    points = rng.normal(size=(n, 2))
    cost = np.linalg.norm(points[:, None] - points, axis=2)
    cost *= scale / cost.mean(axis=1).max()
    return TransportRatio(cost, cost**2, rng.dirichlet(np.full(n, 3.0)), rng.uniform(1, 20, n), draws), points


def simplex_grid(n: int, steps: int) -> list[np.ndarray]:
    return [np.array(c) / steps for c in itertools.product(range(steps + 1), repeat=n) if sum(c) == steps]


@pytest.mark.parametrize("draws", [1, 5])
def test_the_bound_of_moments_is_the_mean_squared_error(draws: int) -> None:
    ratio, points, share = moment_ratio(3, draws=draws)
    rng = stream(draws, "draws")
    p = rng.dirichlet(np.ones(4))
    drawn = points[rng.choice(4, size=(200_000, draws), p=p)].mean(axis=1)
    errors = np.square(drawn - share @ points).sum(axis=1)
    standard_error = errors.std() / np.sqrt(len(errors))
    assert abs(errors.mean() - ratio.bound(p)) < 5 * standard_error


def test_without_bias_only_the_variance_of_the_draws_is_left() -> None:
    one, points, share = moment_ratio(0, draws=1)
    many, _, _ = moment_ratio(0, draws=1_000_000)
    variance = share @ np.square(points - share @ points).sum(axis=1)
    assert one.bound(share) == pytest.approx(variance)
    assert many.bound(share) == pytest.approx(0.0, abs=1e-5)


def test_the_bound_of_transport_holds_where_lipschitz_gradients_are_drawn() -> None:
    """Gradients whose distances are at most B: bias within the transport cost, twice the squares within the bound."""
    ratio, points = transport_ratio(4, n=6)
    rng = stream(4, "gradients")
    scale = np.linalg.norm(points[0] - points[1]) / ratio.cost[0, 1]
    gradients = points / scale  # |g_i - g_j| = B_ij
    p = rng.dirichlet(np.ones(6))
    transport = transport_cost(p, ratio.share, ratio.cost)
    drawn = gradients[rng.choice(6, size=(50_000, ratio.draws), p=p)].mean(axis=1)
    error = np.square(drawn - ratio.share @ gradients).sum(axis=1).mean()
    assert np.linalg.norm((p - ratio.share) @ gradients) <= transport + 1e-12
    assert error <= ratio.bound(p, transport)


def test_transport_has_no_bias_at_the_population() -> None:
    ratio, _ = transport_ratio(0)
    stay = np.eye(3)
    np.testing.assert_allclose(ratio.drawn(stay), ratio.share)
    assert ratio.carried(stay) == 0.0
    assert ratio.bound(ratio.share, 0.0) == pytest.approx(ratio.share @ ratio.squares @ ratio.share / ratio.draws)


@pytest.mark.parametrize("scale", [0.3, 3.0], ids=["feasible", "infeasible"])
def test_gradient_of_moments(scale: float) -> None:
    ratio, _, _ = moment_ratio(1, scale=scale)
    rng = stream(1, "gradient")
    p = rng.dirichlet(np.full(4, 3.0))
    assert (ratio.bound(p) < 1) == (scale < 1)
    direction = rng.normal(size=4)
    direction -= direction.mean()
    step = 1e-6 * direction
    slope = (ratio.value_and_gradient(p + step)[0] - ratio.value_and_gradient(p - step)[0]) / 2e-6
    assert ratio.value_and_gradient(p)[1] @ direction == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("scale", [0.4, 4.0], ids=["feasible", "infeasible"])
def test_gradient_of_transport(scale: float) -> None:
    ratio, _ = transport_ratio(2, scale=scale)
    rng = stream(2, "gradient")
    plan = rng.dirichlet(np.full(3, 3.0), size=3).T
    direction = rng.normal(size=(3, 3))
    direction -= direction.mean(axis=0)
    step = 1e-6 * direction
    slope = (ratio.value_and_gradient(plan + step)[0] - ratio.value_and_gradient(plan - step)[0]) / 2e-6
    assert (ratio.value_and_gradient(plan)[1] * direction).sum() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_minimum_of_moments_is_no_worse_than_a_fine_grid(seed: int) -> None:
    ratio, _, share = moment_ratio(seed)
    starts = [share * mask / (share * mask).sum() for mask in prefix_starts(ratio.delay)]
    p, value = minimise_on_simplices(ratio.value_and_gradient, starts)
    assert value == pytest.approx(ratio.value_and_gradient(p)[0])
    assert value <= min(ratio.value_and_gradient(q)[0] for q in simplex_grid(4, 20)) + 1e-9


@pytest.mark.parametrize(("seed", "scale"), [(0, 0.6), (1, 1.0), (2, 1.0), (3, 1.3)])
def test_the_minimum_over_plans_is_the_minimum_over_distributions_with_exact_transport(seed: int, scale: float) -> None:
    ratio, _ = transport_ratio(seed, scale=scale)

    def exact(p: np.ndarray) -> float:
        bound = ratio.bound(p, transport_cost(p, ratio.share, ratio.cost))
        return expected_max(p, ratio.delay, ratio.draws).value * steep_inverse(bound)[0]

    near = np.exp(-ratio.cost / ratio.cost.mean())
    starts = [near * mask[:, None] / (near * mask[:, None]).sum(axis=0) for mask in prefix_starts(ratio.delay)]
    plan, value = minimise_on_simplices(ratio.value_and_gradient, starts)
    p = ratio.drawn(plan)
    assert value == pytest.approx(exact(p / p.sum()), rel=1e-4), "the plan that was found is the cheapest one"
    assert value <= min(exact(q) for q in simplex_grid(3, 12)) * (1 + 1e-6)


def test_the_inverse_goes_on_along_its_tangent() -> None:
    assert steep_inverse(0.5) == (2.0, 4.0)
    below, above = steep_inverse(1 - MARGIN - 1e-9), steep_inverse(1 - MARGIN + 1e-9)
    assert below[0] == pytest.approx(above[0])
    assert below[1] == pytest.approx(above[1])
    assert steep_inverse(5.0)[0] > steep_inverse(2.0)[0] > above[0]


def test_starts_are_prefixes_from_all_to_one() -> None:
    delay = np.array([4.0, 1.0, 3.0, 2.0, 5.0, 9.0, 7.0])
    masks = prefix_starts(delay)
    sizes = [int(mask.sum()) for mask in masks]
    assert sizes[0] == 7
    assert sizes[-1] == 1
    assert sizes == sorted(set(sizes), reverse=True)
    for mask in masks:
        if not mask.all():
            assert delay[mask].max() < delay[~mask].min()
    assert len(prefix_starts(np.ones(1))) == 1


def test_softmax_of_large_logits() -> None:
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000.0])), [0.5, 0.5])
    np.testing.assert_allclose(softmax(np.array([[0.0, 900.0], [0.0, 0.0]])), [[0.5, 1.0], [0.5, 0.0]])


def test_no_start() -> None:
    with pytest.raises(InputError, match="at least one start"):
        minimise_on_simplices(lambda p: (0.0, p), [])
