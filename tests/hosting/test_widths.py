"""The width of moments is what most clients report; wide features are made narrow on the client."""

from __future__ import annotations

import numpy as np
import pytest

import fedpace
from fedpace.core.errors import InputError
from fedpace.hosting.reader import Majority
from fedpace.hosting.release import WIDEST, moment_rows, narrowed, packed_moment
from fedpace.hosting.replies import MOST_COLUMNS, read_note


def test_most_votes_win_and_the_first_of_equals():
    widths = Majority({})
    assert widths.most is None
    assert [widths.vote(client, width) for client, width in enumerate((7, 4, 4, 7, 4))] == [7, 7, 4, 4, 4]
    assert widths.vote(4, 7) == 7, "a client has one vote, its last"
    widths.forget([0, 3, 4])
    assert widths.vote(9, 4) == 4


def test_votes_of_a_saved_session_count():
    assert Majority({"a": 4, "b": 4}).vote("c", 9) == 4


def test_wide_rows_keep_their_inner_products():
    rng = fedpace.stream(0, "wide")
    rows = rng.normal(size=(8, 4000))
    narrow = narrowed(rows)
    assert narrow.shape == (8, WIDEST)
    np.testing.assert_array_equal(narrow, narrowed(rows))
    # A count sketch keeps them on average, with an error of about |x||y| / sqrt(WIDEST).
    error = (narrow @ narrow.T - rows @ rows.T) / 4000
    assert np.abs(error).max() < 5 / np.sqrt(WIDEST)
    assert narrowed(rows[:, :WIDEST]).shape == (8, WIDEST)


def test_features_and_targets_are_narrowed_each_for_itself():
    rows = moment_rows(np.ones((3, 2000)), np.eye(3))
    assert rows.shape == (3, WIDEST + 3)
    np.testing.assert_array_equal(rows[:, WIDEST:], np.eye(3))
    widest = moment_rows(np.ones((3, 2000)), np.ones((3, 3000)))
    assert widest.shape == (3, MOST_COLUMNS)
    assert read_note(packed_moment(widest, 2)).moment.shape[1] == MOST_COLUMNS
    with pytest.raises(InputError, match="one target per row"):
        moment_rows(np.ones((3, 2)), np.ones(2))
