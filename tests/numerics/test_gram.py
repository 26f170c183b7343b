"""whitened_gram against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics import heterogeneity, whitened_gram
from fedpace.numerics.heterogeneity import sketched_products, square_root


def factors(count=7, rank=5, width=6):
    rng = stream(0, "gram")
    return [rng.normal(size=(rank, width)) * rng.uniform(0.5, 2, width) for _ in range(count)]


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("portion", [heterogeneity.PORTION_BYTES, 700])
def test_it_is_the_definition(ridge, portion, monkeypatch):
    monkeypatch.setattr(heterogeneity, "PORTION_BYTES", portion)
    given, shares = factors(), np.arange(1.0, 8) / 28
    moments = np.array([factor.T @ factor for factor in given])
    mean = np.tensordot(shares, moments, 1)
    inverse = np.linalg.inv(mean + ridge * np.trace(mean) / 6 * np.eye(6))
    maps = ((moments - mean) @ inverse).reshape(7, -1)
    G = whitened_gram(given, shares=shares, ridge=ridge)
    np.testing.assert_allclose(G, maps @ maps.T / 6, atol=1e-12)
    np.testing.assert_allclose(shares @ G @ shares, 0, atol=1e-12)
    assert np.linalg.eigvalsh(G).min() > -1e-12


def test_near_identical_clients_keep_their_digits():
    base, rng = factors()[0], stream(1, "gram")
    bumps = [1e-6 * rng.normal(size=base.shape) for _ in range(4)]
    near = whitened_gram([base + bump for bump in bumps], reference=np.eye(6))
    far = whitened_gram([base + 1e3 * bump for bump in bumps], reference=np.eye(6))
    np.testing.assert_allclose(1e6 * near, far, rtol=0.05, atol=0.05 * far.max())


def test_a_frozen_reference_and_bad_input():
    G = whitened_gram(factors(), reference=2 * np.eye(6))
    np.testing.assert_allclose(G, whitened_gram(factors(), reference=np.eye(6)) / 4)
    with pytest.raises(InputError, match="6 x 6"):
        whitened_gram(factors(), reference=np.eye(5))


def test_the_root_has_the_gram_matrix_for_inner_products():
    exact = whitened_gram(factors(9, 4), ridge=0.1)
    rows = square_root(exact)
    np.testing.assert_allclose(rows @ rows.T, exact, atol=1e-9 * np.abs(exact).max())
    assert rows.shape[1] <= 8  # shares'G shares = 0


def test_sketches_keep_distances():
    clients = factors(30, 5, 24)
    inverse = np.linalg.inv(sum(factor.T @ factor for factor in clients) / 30)
    flat = np.stack([(factor.T @ factor @ inverse).ravel() for factor in clients])
    sketches = sketched_products(clients, inverse, dimension=256)
    first, second = np.triu_indices(30, 1)
    exact = np.square(flat[first] - flat[second]).sum(axis=1)
    found = np.square(sketches[first] - sketches[second]).sum(axis=1)
    assert found.mean() == pytest.approx(exact.mean(), rel=0.1)
    assert np.abs(found / exact - 1).mean() < 2 * np.sqrt(2 / 256)
