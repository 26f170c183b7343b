from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.delays.correlation import correlated, holding, outlying, rarity, reorder_by
from fedpace.delays.lognormal import LognormalDelays


def test_full_strength_sorts_and_none_leaves_alone() -> None:
    rng = np.random.default_rng(0)
    scores, delays = rng.random(50), rng.random(50)
    np.testing.assert_array_equal(reorder_by(scores, delays, strength=0.0), np.arange(50))
    dealt = delays[reorder_by(scores, delays, strength=1.0)]
    np.testing.assert_array_equal(np.argsort(dealt), np.argsort(scores))


def test_in_between_the_correlation_is_the_strength() -> None:
    from scipy.special import ndtri

    rng = np.random.default_rng(0)
    scores, delays = rng.random(4000), rng.lognormal(3, 1, 4000)
    for strength in (0.3, 0.6, 0.9):
        dealt = delays[reorder_by(scores, delays, strength=strength)]
        normal = [ndtri((np.argsort(np.argsort(x)) + 0.5) / 4000) for x in (scores, dealt)]
        assert np.corrcoef(*normal)[0, 1] == pytest.approx(strength, abs=0.03)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=12),
    st.floats(0, 1),
)
def test_delays_are_dealt_never_made(pairs: list[tuple[int, int]], strength: float) -> None:
    scores, delays = np.array(pairs, dtype=float).T
    source = reorder_by(scores, delays, strength=strength)
    assert sorted(source) == list(range(len(pairs)))


def test_equal_scores_change_nothing() -> None:
    delays = np.array([5.0, 1.0, 3.0])
    np.testing.assert_array_equal(reorder_by(np.ones(3), delays, strength=1.0), np.arange(3))


def test_ties_favour_neither_side() -> None:
    """Turning both scores and delays around turns nothing around in who gets what."""
    rng = np.random.default_rng(0)
    scores, delays = rng.integers(0, 3, 60).astype(float), rng.random(60)
    there = reorder_by(scores, delays, strength=0.7)
    np.testing.assert_array_equal(there, reorder_by(-scores, -delays, strength=0.7))


def test_a_model_keeps_its_draws_with_their_rows() -> None:
    model = LognormalDelays().build(30, model_bytes=0, seed=0)
    scores = np.arange(30.0)
    tied = correlated(model, scores, strength=1.0)
    assert (np.diff(tied.expected()) > 0).all()
    np.testing.assert_array_equal(tied.draw(4), model.draw(4)[tied.source])
    with pytest.raises(ValueError, match="read-only"):
        tied.draw(0)[0] = 1.0


def test_rare_classes_score_high() -> None:
    labels = np.array([[90, 0, 0], [50, 40, 0], [0, 9, 1], [0, 0, 5], [0, 0, 0]])
    score = rarity(labels)
    assert list(np.argsort(score)[-2:]) == [2, 3]
    assert score[4] == score.min()
    np.testing.assert_allclose(holding(labels, [1, 2]), [0, 4 / 9, 1, 1, 0])


def test_bad_input() -> None:
    with pytest.raises(InputError, match="strength must lie between 0 and 1"):
        reorder_by([1.0], [1.0], strength=1.5)
    with pytest.raises(InputError, match="expected 2 scores, one per client, but 1 came"):
        reorder_by([1.0], [1.0, 2.0], strength=1.0)
    with pytest.raises(InputError, match="scores must be finite"):
        reorder_by([np.nan], [1.0], strength=1.0)
    with pytest.raises(InputError, match=r"number of clients|at least one client"):
        reorder_by([], [], strength=1.0)
    with pytest.raises(InputError, match="counts of at least 0, but -1 came"):
        rarity([[1, -1]])
    with pytest.raises(InputError, match=r"classes must be numbers in 0..1"):
        holding([[1, 1]], [2])


def test_the_few_clients_with_other_features_score_highest() -> None:
    rng = np.random.default_rng(0)
    common, rare = np.array([3.0, 1.0, 1.0]), np.array([1.0, 1.0, 3.0])
    inputs = [rng.standard_normal((400, 3)) * (rare if client in (4, 9) else common) for client in range(12)]
    assert set(np.argsort(outlying(inputs))[-2:]) == {4, 9}
    images = [rows.reshape(-1, 3, 1) for rows in inputs]
    np.testing.assert_array_equal(outlying(images), outlying(inputs))


def test_wide_inputs_are_judged_by_their_leading_axes() -> None:
    rng = np.random.default_rng(0)
    narrow = [rng.standard_normal((30, 4)) * (1 + client) for client in range(6)]
    embedding = np.linalg.qr(rng.standard_normal((600, 4)))[0]
    np.testing.assert_allclose(outlying([rows @ embedding.T for rows in narrow]), outlying(narrow), rtol=1e-4)


def test_clients_must_share_one_width() -> None:
    with pytest.raises(InputError, match=r"one width, at least one per client, but widths \[2, 3\] came"):
        outlying([np.ones((4, 2)), np.ones((4, 3))])
