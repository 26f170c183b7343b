"""Optimal transport against hand-worked cases, brute force over vertices, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics.transport import transport_cost


def random_case(seed: int, n: int = 4, m: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = stream(seed, "transport")
    return rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(m)), rng.uniform(0, 3, (n, m))


def test_by_hand() -> None:
    """A quarter moves from the first to the second place, at 2 each."""
    found = transport_cost([0.75, 0.25], [0.5, 0.5], [[0.0, 2.0], [2.0, 0.0]])
    assert found.value == pytest.approx(0.5)
    np.testing.assert_allclose(found.plan, [[0.5, 0.25], [0.0, 0.25]], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_on_a_line_it_is_the_distance_between_the_cumulative_sums(seed: int) -> None:
    rng = stream(seed, "line")
    places = np.sort(rng.uniform(0, 5, 6))
    p, q = rng.dirichlet(np.ones(6), size=2)
    expected = np.abs(np.cumsum(p - q)[:-1]) @ np.diff(places)
    assert transport_cost(p, q, np.abs(places[:, None] - places)).value == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_plan_and_potentials_prove_each_other(seed: int) -> None:
    p, q, cost = random_case(seed)
    found = transport_cost(p, q, cost)
    assert found.plan.min() >= 0
    np.testing.assert_allclose(found.plan.sum(axis=1), p, atol=1e-9)
    np.testing.assert_allclose(found.plan.sum(axis=0), q, atol=1e-9)
    assert (found.plan * cost).sum() == pytest.approx(found.value)
    assert (found.source[:, None] + found.target <= cost + 1e-9).all()
    assert p @ found.source + q @ found.target == pytest.approx(found.value)


@pytest.mark.parametrize("seed", range(3))
def test_the_potentials_are_the_gradient(seed: int) -> None:
    p, q, cost = random_case(seed)
    found = transport_cost(p, q, cost)
    rng = stream(seed, "direction")
    for potentials, moved in ((found.source, 0), (found.target, 1)):
        direction = rng.normal(size=potentials.size)
        direction -= direction.mean()
        step = 1e-5 * direction
        ends = [
            transport_cost(p + sign * step * (moved == 0), q, cost).value
            if moved == 0
            else transport_cost(p, q + sign * step, cost).value
            for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(potentials @ direction, rel=1e-4)


def test_nothing_to_carry_costs_nothing() -> None:
    p, _, cost = random_case(1, n=5)
    np.fill_diagonal(cost, 0.0)
    assert transport_cost(p, p, cost).value == pytest.approx(0.0, abs=1e-12)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="a cost of 2 x 3 needs p of 2 and q of 3, but 3 and 3 came"):
        transport_cost(np.full(3, 1 / 3), np.full(3, 1 / 3), np.ones((2, 3)))
    with pytest.raises(InputError, match="sum to 1"):
        transport_cost([0.5, 0.6], [0.5, 0.5], np.ones((2, 2)))
