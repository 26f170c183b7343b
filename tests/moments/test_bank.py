"""The bank: rows come, change and go, and the heterogeneity follows."""

from __future__ import annotations

import io

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.moments.store import MomentStore
from fedpace.numerics import best_prefix, pairwise_heterogeneity, whitened_gram


def factor(seed, rank=6, width=4):
    return stream(seed, "bank").normal(size=(rank, width))


def filled(count=4):
    bank = MomentBank(count)
    for row in range(count):
        bank.put(row, factor(row, rank=3 + row))
    return bank


def test_it_is_what_the_ledger_asks_for():
    store: MomentStore = MomentBank(2)
    assert store.known.tolist() == [False, False]


def test_unknown_clients_are_nan_and_do_not_enter_the_reference():
    bank = filled()
    bank.append(1)
    B = bank.heterogeneity(ridge=0.0)
    assert B.shape == (5, 5)
    assert np.isnan(B[4]).all()
    assert np.isnan(B[:, 4]).all()
    expected = pairwise_heterogeneity([factor(row, rank=3 + row) for row in range(4)])
    np.testing.assert_allclose(B[:4, :4], expected)


def test_shares_are_scaled_over_the_known():
    bank = filled()
    bank.append(1)
    B = bank.heterogeneity(ridge=0.1, shares=np.array([0.1, 0.2, 0.1, 0.1, 0.5]))
    expected = pairwise_heterogeneity(
        [factor(row, rank=3 + row) for row in range(4)], shares=[0.2, 0.4, 0.2, 0.2], ridge=0.1
    )
    np.testing.assert_allclose(B[:4, :4], expected)


def test_directions_have_the_gram_matrix_for_inner_products(monkeypatch):
    bank = MomentBank(40)
    for row in range(39):
        bank.put(row, factor(row))
    exact = bank.gram(ridge=0.1)
    assert bank.gram(ridge=0.1) is exact
    points = bank.directions(ridge=0.1)
    np.testing.assert_allclose((points @ points.T)[:39, :39], exact[:39, :39], atol=1e-9)
    assert np.isnan(points[39]).all()
    assert bank.directions(ridge=0.1) is points
    bank.put(39, factor(39))
    assert not np.isnan(bank.directions(ridge=0.1)).any()
    monkeypatch.setattr("fedpace.moments.bank.MAX_ROOT_CLIENTS", 10)
    sketched = bank.directions(ridge=0.2)
    np.testing.assert_allclose(sketched @ sketched.T, bank.gram(ridge=0.2), atol=1e-9)  # 16 entries: nothing is folded


def test_nobody_known():
    assert np.isnan(MomentBank(2).heterogeneity(ridge=0.0)).all()
    assert MomentBank().heterogeneity(ridge=0.0).shape == (0, 0)


def test_it_is_computed_once_a_version_and_read_only():
    bank = filled()
    B = bank.heterogeneity(ridge=0.0)
    assert bank.heterogeneity(ridge=0.0) is B
    with pytest.raises(ValueError, match="read-only"):
        B[0, 0] = 1
    version = bank.version
    bank.put(1, factor(1, rank=4))
    assert bank.version == version
    assert bank.heterogeneity(ridge=0.0) is B
    bank.put(1, factor(9))
    assert bank.version > version
    assert np.abs(bank.heterogeneity(ridge=0.0) - B).max() > 0.01
    assert np.abs(bank.heterogeneity(ridge=0.5) - bank.heterogeneity(ridge=0.0)).max() > 0.01


def test_the_callers_array_is_copied():
    bank, mine = filled(2), factor(7)
    bank.put(0, mine)
    B = bank.heterogeneity(ridge=0.0).copy()
    mine *= 3
    bank.append(0)
    np.testing.assert_array_equal(bank.heterogeneity(ridge=0.0), B)


def test_rows_move_up_when_clients_leave():
    bank = filled()
    bank.remove(np.array([0, 2]))
    assert len(bank) == 2
    np.testing.assert_array_equal(bank.factor(0), factor(1, rank=4))
    np.testing.assert_allclose(
        bank.heterogeneity(ridge=0.0), pairwise_heterogeneity([factor(1, rank=4), factor(3, rank=6)])
    )


def test_saving_and_loading_gives_the_same_bank():
    bank = filled(3)
    bank.append(2)
    bank.put(4, np.zeros((0, 4)))
    buffer = io.BytesIO()
    np.savez(buffer, **bank.arrays())
    buffer.seek(0)
    other = MomentBank(17)
    with np.load(buffer, allow_pickle=False) as saved:
        other.load(saved)
    assert other.known.tolist() == bank.known.tolist()
    np.testing.assert_array_equal(other.heterogeneity(ridge=0.1), bank.heterogeneity(ridge=0.1))
    with pytest.raises(InputError, match="4 columns"):
        other.put(0, np.ones((2, 5)))
    empty = MomentBank(3)
    empty.load(MomentBank(1).arrays())
    assert len(empty) == 1


@pytest.mark.parametrize(
    ("row", "bad", "words"),
    [
        (1, np.ones((2, 5)), "client 1 must have 4 columns.*but it has 5"),
        (1, np.full((2, 4), np.nan), "client 1 must be finite"),
        (1, np.ones(4), "client 1 must have 2 axes"),
        (1, np.ones((2, 0)), "at least one column"),
        (4, np.ones((2, 4)), "row from 0 to 3, but 4"),
        (-1, np.ones((2, 4)), "row from 0 to 3, but -1"),
    ],
)
def test_bad_moments_are_refused_and_leave_the_bank_as_it_was(row, bad, words):
    bank = filled()
    version = bank.version
    with pytest.raises(InputError, match=words):
        bank.put(row, bad)
    assert bank.version == version


def test_bad_saves_are_refused():
    with pytest.raises(InputError, match="'factors'"):
        MomentBank().load({"ranks": np.zeros(1)})
    with pytest.raises(InputError, match="add up to 2, but 3 rows"):
        MomentBank().load({"ranks": np.array([2.0]), "factors": np.zeros((3, 2))})


def test_a_frozen_reference_recomputes_only_the_pairs_of_those_who_changed():
    bank = MomentBank(6, reference="frozen")
    for row in range(5):
        bank.put(row, factor(row))
    first = bank.heterogeneity(ridge=0.1)
    reference = np.mean([factor(row).T @ factor(row) for row in range(5)], axis=0)
    assert bank._distances.pairs_computed == 10
    bank.put(2, factor(22))
    bank.put(5, factor(25))
    second = bank.heterogeneity(ridge=0.1)
    assert bank._distances.pairs_computed == 10 + 2 * 4 + 1
    now = [factor(0), factor(1), factor(22), factor(3), factor(4), factor(25)]
    np.testing.assert_allclose(second, pairwise_heterogeneity(now, reference=reference, ridge=0.1), rtol=1e-6)
    np.testing.assert_array_equal(second[0, [1, 3, 4]], first[0, [1, 3, 4]])
    assert np.isnan(first[5]).all()
    bank.refresh()
    np.testing.assert_allclose(bank.heterogeneity(ridge=0.1), pairwise_heterogeneity(now, ridge=0.1), rtol=1e-6)


def test_a_frozen_reference_survives_clients_that_come_and_go_and_saving():
    bank = MomentBank(4, reference="frozen")
    for row in range(4):
        bank.put(row, factor(row))
    before = bank.heterogeneity(ridge=0.0)
    bank.remove(np.array([1]))
    bank.append(1)
    bank.put(1, factor(31))
    bank.put(3, factor(33))
    after = bank.heterogeneity(ridge=0.0)
    assert after[0, 2] == before[0, 3]
    reference = np.mean([factor(row).T @ factor(row) for row in range(4)], axis=0)
    now = [factor(0), factor(31), factor(3), factor(33)]
    np.testing.assert_allclose(after, pairwise_heterogeneity(now, reference=reference), rtol=1e-6)
    other = MomentBank(reference="frozen")
    other.load(bank.arrays())
    np.testing.assert_allclose(other.heterogeneity(ridge=0.0), after, rtol=1e-6)


def test_the_bank_solves_for_the_best_prefix_among_the_known():
    bank = filled(4)
    bank.append(2)
    delay, shares = np.array([3.0, 1.0, 2.0, 8.0, np.nan, 0.1]), np.array([1.0, 2, 1, 1, 3, 3])
    found = bank.best_prefix(
        delay, ridge=0.1, shares=shares, candidates=np.array([True, True, True, True, False, True]), target=0.5
    )
    B = bank.heterogeneity(ridge=0.1, shares=shares)[:4, :4]
    largest = (B @ [0.2, 0.4, 0.2, 0.2]).max()
    expected = best_prefix(B * 0.5 / largest, delay[:4], shares=shares[:4])
    assert found.clients.tolist() == expected.clients.tolist()
    np.testing.assert_allclose(found.objective, expected.objective)
    np.testing.assert_allclose([found.largest_mean, found.scale], [largest, 0.5 / largest])
    with pytest.raises(InputError, match="target"):
        bank.best_prefix(delay, ridge=0.1, target=0.8)
    with pytest.raises(InputError, match="expected 6 delays"):
        bank.best_prefix(delay[:4], ridge=0.1)
    with pytest.raises(InputError, match="at least one client"):
        MomentBank(2).best_prefix(np.ones(2), ridge=0.1)
    raw = bank.best_prefix(delay, ridge=0.1, candidates=[0, 1, 2, 3])
    assert raw.scale == 1


def test_the_gram_matrix_has_nan_for_the_unknown():
    bank = filled(4)
    bank.append(1)
    G = bank.gram(ridge=0.1, shares=np.array([1.0, 1, 1, 2, 9]))
    expected = whitened_gram([factor(row, rank=3 + row) for row in range(4)], shares=[1, 1, 1, 2], ridge=0.1)
    np.testing.assert_allclose(G[:4, :4], expected)
    assert np.isnan(G[4]).all()


def test_bad_options_are_refused():
    with pytest.raises(InputError, match="reference must be one of"):
        MomentBank(reference="sometimes")
    with pytest.raises(InputError, match="tol"):
        MomentBank(tol=0.0)
