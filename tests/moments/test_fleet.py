"""The sketched bank: its distances, its scan against the exact one, its clusters, and its bookkeeping."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from fedpace._base.errors import InfeasibleError, InputError, MissingExtraError
from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.moments.sketched import PROBES, Clusters, Sketcher, scan_clusters
from fedpace.moments.store import MomentStore
from fedpace.numerics import best_prefix
from fedpace.numerics.prefix import solution_of_set


def groups(count, groups=6, noise=0.1, width=8, seed=0):
    rng = stream(seed, "fleet")
    base = rng.normal(size=(groups, 12, width)) * np.sqrt(rng.uniform(0.3, 3, (groups, 1, width)))
    return [base[row % groups] + noise * rng.normal(size=(12, width)) for row in range(count)]


def filled(count=60, **options):
    bank = MomentBank.sketched(count, **({"pilot": 20} | options))
    for row, factor in enumerate(groups(count)):
        bank.put(row, factor)
    return bank


def test_it_is_what_the_ledger_asks_for():
    store: MomentStore = MomentBank.sketched(2)
    assert store.known.tolist() == [False, False]
    assert store.width is None


def test_squared_sketch_distances_are_unbiased_estimates_of_frobenius_norms():
    first, second = groups(2)
    inverse = np.diag(np.linspace(0.5, 2, 8))
    truth = np.linalg.norm((first.T @ first - second.T @ second) @ inverse)
    estimates = []
    for seed in range(300):
        sketcher = Sketcher(inverse, dimension=16, seed=seed)
        estimates.append(float(((sketcher.sketch(first) - sketcher.sketch(second)) ** 2).sum()))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth**2) < 4 * error
    # More rank-one probes a coordinate bring its kurtosis down towards a Gaussian's, and the spread with it.
    assert np.std(estimates) / truth**2 < np.sqrt((2 + 6 / PROBES) / 16) * 1.4


def test_the_calibrated_distances_are_close_to_the_exact_ones():
    bank, exact = filled(), MomentBank(60)
    for row, factor in enumerate(groups(60)):
        exact.put(row, factor)
    off = ~np.eye(60, dtype=bool)
    ratio = bank.heterogeneity(ridge=0.1)[off] / exact.heterogeneity(ridge=0.1)[off]
    assert abs(np.median(ratio) - 1) < 0.15
    assert bank.calibration.pairs == 190
    assert 0 < bank.calibration.relative_error < 0.4


@pytest.mark.parametrize("target", [0.0, 0.5])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_the_answer_costs_little_more_than_the_exact_one(target, noise):
    factors, delay = groups(120, noise=noise), stream(1, "delay").lognormal(2, 1, 120)
    bank, exact = MomentBank.sketched(120, pilot=40), MomentBank(120)
    for row, factor in enumerate(factors):
        bank.put(row, factor)
        exact.put(row, factor)
    best = exact.best_prefix(delay, ridge=0.1, target=target)
    found = bank.best_prefix(delay, ridge=0.1, target=target)
    B = exact.heterogeneity(ridge=0.1) * best.scale
    valued = solution_of_set(B, delay, np.full(120, 1 / 120), found.clients)
    assert valued.bound < 1
    assert valued.objective <= 1.05 * best.objective
    np.testing.assert_allclose(found.weights.sum(), 1.0)


def fleet(count=40, clusters=None, seed=0):
    rng = stream(seed, "scan")
    points = rng.normal(size=(count, 5)).astype(np.float32)
    shares = rng.dirichlet(np.ones(count))
    if clusters is None:
        return Clusters(points, np.arange(count), points, shares, 0.2)
    return Clusters(points, np.arange(count) % clusters, points[:clusters], shares, 0.2)


@pytest.mark.parametrize("seed", range(5))
def test_with_one_cluster_a_client_the_scan_is_exact(seed, monkeypatch):
    monkeypatch.setattr("fedpace.moments.sketched.SCAN_BLOCK", 7)
    every = fleet(seed=seed)
    rng = stream(seed, "delay")
    delay = rng.integers(1, 15, 40).astype(float) if seed % 2 else rng.lognormal(1, 1, 40)
    B = 0.2 * np.linalg.norm(every.sketches[:, None] - every.sketches[None], axis=2)
    candidates = np.sort(rng.choice(40, 25, replace=False))
    for cap in (None, 5):
        try:
            expected = best_prefix(B, delay, shares=every.shares, candidates=candidates, max_clients=cap)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                scan_clusters(every, delay, candidates, max_clients=cap)
            continue
        found = scan_clusters(every, delay, candidates, max_clients=cap)
        if cap is None or seed % 2 == 0:
            assert found.clients.tolist() == expected.clients.tolist()
            np.testing.assert_allclose(found.weights, expected.weights, atol=1e-6)
            np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-4)


def test_portions_do_not_change_the_answer(monkeypatch):
    some, delay = fleet(clusters=6), stream(4, "delay").lognormal(1, 1, 40)
    whole = scan_clusters(some, delay, np.arange(40))
    monkeypatch.setattr("fedpace.moments.sketched.SCAN_BLOCK", 3)
    parts = scan_clusters(some, delay, np.arange(40))
    assert whole.clients.tolist() == parts.clients.tolist()
    np.testing.assert_allclose(parts.weights, whole.weights, atol=1e-6)


def test_clusters_of_many_clients():
    pytest.importorskip("faiss")
    bank = filled(300, prototypes=12)
    delay = stream(5, "delay").lognormal(2, 1, 300)
    found = bank.best_prefix(delay, ridge=0.1, target=0.5)
    assert len(bank._centroids) == 12
    again = filled(300, prototypes=12).best_prefix(delay, ridge=0.1, target=0.5)
    np.testing.assert_array_equal(found.clients, again.clients)
    centroids = bank._centroids
    bank.put(3, groups(1, seed=9)[0])
    bank.best_prefix(delay, ridge=0.1)
    assert bank._centroids is centroids  # one newcomer joins the nearest cluster
    for row in range(50):
        bank.put(row, groups(1, seed=10 + row)[0])
    bank.best_prefix(delay, ridge=0.1)
    assert bank._centroids is not centroids


def test_without_faiss_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"fedpace\[scale\]"):
        filled(60, prototypes=5).best_prefix(np.ones(60), ridge=0.1)


def test_rows_come_and_go_before_and_after_the_pilot():
    delay = np.arange(1.0, 31)
    late = filled(30, pilot=100)
    late.remove(np.array([0, 7]))
    late.append(2)
    assert late.known.tolist() == [True] * 28 + [False] * 2
    early = filled(30, pilot=100)
    assert early.calibration.pairs > 0
    early.remove(np.array([0, 7]))
    np.testing.assert_array_equal(early.known, [True] * 28)
    found = early.best_prefix(delay[:28], ridge=0.1, target=0.5)
    assert found.clients.max() < 28
    unknown = late.best_prefix(np.append(delay[:28], [np.nan, 0.1]), ridge=0.1, candidates=[0, 1, 2, 29], target=0.5)
    assert 29 not in unknown.clients


@pytest.mark.parametrize("pilot", [20, 100])
def test_saving_and_loading_gives_the_same_bank(pilot):
    bank = filled(40, pilot=pilot)
    bank.append(1)
    buffer = io.BytesIO()
    np.savez(buffer, **bank.arrays())
    buffer.seek(0)
    other = MomentBank.sketched(0, pilot=pilot)
    with np.load(buffer, allow_pickle=False) as saved:
        other.load(saved)
    assert other.known.tolist() == bank.known.tolist()
    extra = groups(1, seed=4)[0]
    for store in (bank, other):
        store.put(40, extra)
    np.testing.assert_array_equal(other.heterogeneity(ridge=0.1), bank.heterogeneity(ridge=0.1))
    with pytest.raises(InputError, match="same options"):
        MomentBank.sketched(0, ridge=0.2).load(bank.arrays())
    with pytest.raises(InputError, match="missing"):
        MomentBank.sketched(0).load({})


def test_an_unchanged_sketch_changes_nothing():
    bank = filled(30)
    version = bank.version
    bank.put(25, groups(30)[25])
    assert bank.version == version
    bank.put(25, groups(1, seed=3)[0])
    assert bank.version > version


def test_bad_input_is_refused_with_a_sentence(monkeypatch):
    bank = filled(30)
    with pytest.raises(InputError, match=r"ridge 0\.1, but 0\.5 came"):
        bank.heterogeneity(ridge=0.5)
    with pytest.raises(InputError, match="8 columns"):
        bank.put(0, np.ones((2, 3)))
    with pytest.raises(InputError, match="row from 0 to 29"):
        bank.put(30, np.ones((2, 8)))
    with pytest.raises(InputError, match="64 numbers"):
        bank.put_sketches([0], np.ones((1, 3)))
    with pytest.raises(InputError, match="client 2 is not"):
        bank.put_sketches([2], np.full((1, 64), np.nan))
    with pytest.raises(InputError, match="rows from 0 to 29"):
        bank.put_sketches([30], np.ones((1, 64)))
    with pytest.raises(InputError, match="expected 30 delays"):
        bank.best_prefix(np.ones(3), ridge=0.1)
    with pytest.raises(InputError, match="delay of client 4"):
        bank.best_prefix(np.where(np.arange(30) == 4, np.nan, 1.0), ridge=0.1)
    with pytest.raises(InputError, match="max_clients"):
        bank.best_prefix(np.ones(30), ridge=0.1, max_clients=0)
    with pytest.raises(InputError, match="dimension"):
        MomentBank.sketched(0, dimension=0)
    with pytest.raises(InfeasibleError, match="no candidate"):
        MomentBank.sketched(3).best_prefix(np.ones(3), ridge=0.1)
    monkeypatch.setattr("fedpace.moments.sketched.MAX_DENSE_CLIENTS", 10)
    with pytest.raises(InputError, match="best_prefix"):
        bank.heterogeneity(ridge=0.1)
