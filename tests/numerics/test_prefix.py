"""best_prefix: worked cases; the property tests compare it with brute force."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InfeasibleError, InputError
from fedpace.numerics import best_prefix

LINE = np.abs(np.subtract.outer([0.8, 1.0, 1.2], [0.8, 1.0, 1.2]))


def test_a_worked_example():
    # h({1}) = .4/3, so g = 1.1 / (1 - 2 (.4/3)^2); waiting for anybody else costs more.
    found = best_prefix(LINE, [3.0, 1.1, 2.0])
    assert found.clients.tolist() == [1]
    assert found.weights.tolist() == [1.0]
    np.testing.assert_allclose(found.heterogeneity, 0.4 / 3)
    np.testing.assert_allclose(found.bound, 2 * (0.4 / 3) ** 2)
    np.testing.assert_allclose(found.objective, 1.1 / (1 - 2 * (0.4 / 3) ** 2))
    assert found.delay == 1.1


def test_weights_are_the_shares_of_those_represented():
    found = best_prefix(LINE, [1.0, 1.1, 90.0], shares=[1, 2, 7])
    assert found.clients.tolist() == [0, 1]
    np.testing.assert_allclose(found.weights, [0.1, 0.9])


def test_an_infeasible_fast_client_is_not_taken_alone():
    # ERRATA A8: the raw objective of {3} is negative and would win.
    moments = np.array([1.0, 1.0, 1.0, 9.0])
    found = best_prefix(np.abs(np.subtract.outer(moments, moments)) / 3, [1.0, 2.0, 3.0, 0.5])
    assert found.clients.tolist() == [3, 0]
    assert found.bound < 1


def test_equal_delays_enter_together_and_duplicates_do_not_train():
    B = np.array([[0, 0, 0.3], [0, 0, 0.3], [0.3, 0.3, 0.0]])
    found = best_prefix(B, [2.0, 2.0, 2.0])
    assert found.clients.tolist() == [0, 2]
    np.testing.assert_allclose(found.weights, [2 / 3, 1 / 3])
    assert found.heterogeneity == 0


def test_a_slower_duplicate_leaves_its_weight_to_the_faster():
    B = np.array([[0, 0, 1.5], [0, 0, 1.5], [1.5, 1.5, 0.0]])
    found = best_prefix(B, [1.0, 0.9, 1.05])
    assert found.clients.tolist() == [1, 2]
    np.testing.assert_allclose(found.weights, [2 / 3, 1 / 3])


def test_no_delay_at_all_takes_everybody():
    found = best_prefix(LINE, np.zeros(3))
    assert found.clients.tolist() == [0, 1, 2]
    assert found.objective == 0


def test_the_cap_cuts_the_prefix_and_prefers_central_clients():
    found = best_prefix(LINE, np.ones(3), max_clients=1)
    assert found.clients.tolist() == [1]
    assert best_prefix(LINE, np.ones(3), max_clients=9).clients.size == 3


def test_candidates_may_be_rows_or_a_mask_and_the_rest_may_be_unknown():
    B, delay = LINE.copy(), np.array([1.0, np.nan, 5.0])
    B[1, :] = np.nan
    for candidates in ([0, 2], np.array([True, False, True])):
        found = best_prefix(B, delay, candidates=candidates)
        assert found.clients.tolist() == [0]
        np.testing.assert_allclose(found.heterogeneity, 0.2)
    B[:, 1] = np.nan
    assert best_prefix(B, delay, candidates=[0, 2], shares=[1, 0, 1]).clients.tolist() == [0]


def test_candidates_that_cannot_stand_for_the_rest_are_infeasible():
    with pytest.raises(InfeasibleError, match=r"2 h\^2 is 4.5"):
        best_prefix([[0, 3.0], [3.0, 0]], [1.0, 1.0], candidates=[0])
    with pytest.raises(InfeasibleError, match="no candidate"):
        best_prefix(LINE, [1.0, 1.0, 1.0], candidates=np.zeros(3, dtype=bool))


def test_the_answer_is_read_only():
    found = best_prefix(LINE, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="read-only"):
        found.weights[0] = 3


@pytest.mark.parametrize(
    ("B", "delay", "options", "words"),
    [
        (LINE[:2], [1.0, 1.0], {}, "square"),
        (LINE, [1.0, 1.0], {}, "expected 3 delays"),
        (LINE, [1.0, np.nan, 1.0], {}, "delay of client 1"),
        (LINE, [1.0, -1.0, 1.0], {"candidates": [1, 2]}, "delay of client 1"),
        (LINE, [1.0, np.inf, 1.0], {}, "delay of client 1"),
        (-LINE, [1.0, 1.0, 1.0], {}, "at least 0"),
        (LINE * np.nan, [1.0, 1.0, 1.0], {}, "moments are unknown"),
        (LINE, [1.0, 1.0, 1.0], {"shares": [1, 1]}, "expected 3 shares"),
        (LINE, [1.0, 1.0, 1.0], {"max_clients": 0}, "max_clients"),
        (LINE, [1.0, 1.0, 1.0], {"candidates": [3]}, "from 0 to 2"),
        (LINE, [1.0, 1.0, 1.0], {"candidates": [0.5]}, "rows or a mask"),
        (LINE, [1.0, 1.0, 1.0], {"candidates": np.ones(2, dtype=bool)}, "mask"),
        (np.zeros((0, 0)), [], {}, "at least one client"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(B, delay, options, words):
    with pytest.raises(InputError, match=words):
        best_prefix(B, delay, **options)
