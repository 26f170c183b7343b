"""The routes agree with each other and with NumPy, in either precision, and updates touch only what changed."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedpace._base.rng import stream
from fedpace.numerics import blas
from fedpace.numerics.heterogeneity import whiten
from fedpace.numerics.whitened import Whitened, cheapest_route


def quadratic(count, rows, width, seed=0, spread=1.0):
    """The paper's Quadratic data, whose leading singular values lie close together."""
    rng = stream(seed, "quadratic", count, width)
    basis, _ = np.linalg.qr(rng.normal(size=(width, width)))
    scale = np.sqrt(rng.uniform(1, 10, (count, width)) ** spread)
    return [rng.normal(size=(rows, width)) * own @ basis.T / np.sqrt(rows) for own in scale]


def exact(whitened, first, second):
    maps = [factor.T @ (factor @ whitened.inverse) for factor in whitened.factors]
    return np.array([np.linalg.norm(maps[i] - maps[j], 2) for i, j in zip(first, second, strict=True)])


@pytest.mark.parametrize("route", ["svd", "gram", "vectors"])
@pytest.mark.parametrize(("rows", "width"), [(8, 60), (40, 60), (90, 60), (1, 30)])
def test_every_route_is_within_its_tolerance(route, rows, width):
    factors = quadratic(12, rows, width)
    whitened = whiten(factors, np.full(12, 1 / 12))
    first, second = np.triu_indices(12, 1)
    for tol in (1e-3, 1e-6):
        got = whitened.norms(first, second, tol=tol, route=route)
        np.testing.assert_allclose(got, exact(whitened, first, second), rtol=tol)


def test_many_close_singular_values():
    whitened = whiten(quadratic(16, 40, 90), np.full(16, 1 / 16))
    first, second = np.triu_indices(16, 1)
    got, truth = whitened.norms(first, second, tol=1e-3, route="vectors"), exact(whitened, first, second)
    assert (got <= truth * (1 + 1e-5)).all()
    np.testing.assert_allclose(got, truth, rtol=1e-3)
    assert whitened.operations > 0


@pytest.mark.parametrize("route", ["gram", "vectors"])
@pytest.mark.parametrize("bump", [1e-2, 1e-5, 1e-8])
def test_near_identical_clients_keep_their_digits(route, bump):
    base, rng = quadratic(1, 20, 50)[0], stream(1, "bump")
    factors = [base + bump * rng.normal(size=base.shape) for _ in range(5)]
    whitened = whiten(factors, np.full(5, 0.2), ridge=0.01)
    first, second = np.triu_indices(5, 1)
    got = whitened.norms(first, second, tol=1e-3, route=route)
    np.testing.assert_allclose(got, exact(whitened, first, second), rtol=1e-3)


@pytest.mark.parametrize("route", ["svd", "gram", "vectors"])
def test_duplicates_are_at_zero(route):
    factors = quadratic(3, 8, 30)
    whitened = whiten([*factors, factors[1].copy()], np.full(4, 0.25), ridge=0.01)
    assert whitened.norms(np.array([1]), np.array([3]), tol=1e-3, route=route)[0] == 0


def test_a_replaced_client_is_as_if_it_had_always_been():
    factors, other = quadratic(10, 12, 40), quadratic(2, 30, 40, seed=3)
    whitened = whiten(factors, np.full(10, 0.1))
    first, second = np.triu_indices(10, 1)
    whitened.norms(first, second, tol=1e-3)
    whitened.replace(4, other[0])
    fresh = Whitened([*factors[:4], other[0], *factors[5:]], whitened.inverse)
    np.testing.assert_allclose(whitened.norms(first, second, tol=1e-3), fresh.norms(first, second, tol=1e-3), rtol=1e-6)


def test_portions_do_not_change_the_answer(monkeypatch):
    whitened = whiten(quadratic(20, 12, 40), np.full(20, 0.05))
    first, second = np.triu_indices(20, 1)
    whole = whitened.norms(first, second, tol=1e-6, route="vectors")
    monkeypatch.setattr("fedpace.numerics.whitened.TILE_BYTES", 1)
    np.testing.assert_allclose(whitened.norms(first, second, tol=1e-6, route="vectors"), whole, rtol=1e-6)


def test_the_route_follows_the_cost():
    assert cheapest_route(5, 8) == "svd"
    assert cheapest_route(4, 512) == "gram"
    assert cheapest_route(100, 500) == "vectors"
    assert cheapest_route(500, 500) == "vectors"


def test_workers_see_everything_and_blas_gets_its_threads_back():
    switch = blas._switch()
    before = switch[0]() if switch else None
    seen: list[int] = []
    blas.in_parallel(seen.append, list(range(50)))
    assert sorted(seen) == list(range(50))
    with pytest.raises(ZeroDivisionError):
        blas.in_parallel(lambda part: 1 // part, [1, 0, 1])
    assert (switch[0]() if switch else None) == before
    assert os.cpu_count()
