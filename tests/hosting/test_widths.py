"""The width of moments is what most clients report; wide features are made narrow on the client."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fedpace
from fedpace._base.errors import InputError
from fedpace.core.types import Outcome
from fedpace.hosting.replies import (
    MAX_FEATURES,
    MAX_MOMENT_COLUMNS,
    moment_rows,
    narrowed,
    pack_moment,
    packed_moment,
    read_note,
)
from fedpace.hosting.reply_loop import ReplyReader


def test_a_moment_that_does_not_fit_costs_its_client_nothing_else(caplog):
    coordinator = fedpace.Coordinator(fedpace.make_selector("pace"), fedpace.Settings())
    coordinator.join(list("abcde"))
    reader = ReplyReader(coordinator, {}, logging.getLogger("test"), "")
    used = []
    for task, width in zip(coordinator.due(0.0).tasks, (7, 4, 4, 7, 4), strict=True):
        outcome = reader.without_misfit(Outcome(task.client, 1.0, moment=np.eye(1, width)))
        assert coordinator.receive(task.id, outcome, 1.0)
        used.append(outcome.moment is not None)
    assert used == [True, False, True, False, True], "the width that more clients report is used, the first of equals"
    assert "the moment of 'b' has 4 columns, those of most clients have 7: it is not used" in caplog.text
    coordinator.due(1.0)
    assert coordinator.ledger.moments.known.tolist() == [False, False, True, False, True]
    assert coordinator.ledger.columns["failures"].tolist() == [0] * 5


def test_wide_rows_keep_their_inner_products():
    rng = fedpace.stream(0, "wide")
    rows = rng.normal(size=(8, 4000))
    narrow = narrowed(rows)
    assert narrow.shape == (8, MAX_FEATURES)
    np.testing.assert_array_equal(narrow, narrowed(rows))
    # A count sketch keeps them on average, with an error of about |x||y| / sqrt(MAX_FEATURES).
    error = (narrow @ narrow.T - rows @ rows.T) / 4000
    assert np.abs(error).max() < 5 / np.sqrt(MAX_FEATURES)
    assert narrowed(rows[:, :MAX_FEATURES]).shape == (8, MAX_FEATURES)


def test_features_and_targets_are_narrowed_each_for_itself():
    rows = moment_rows(np.ones((3, 2000)), np.eye(3))
    assert rows.shape == (3, MAX_FEATURES + 3)
    np.testing.assert_array_equal(rows[:, MAX_FEATURES:], np.eye(3))
    widest = moment_rows(np.ones((3, 2000)), np.ones((3, 3000)))
    assert widest.shape == (3, MAX_MOMENT_COLUMNS)
    assert read_note(packed_moment(widest, 2)).moment.shape[1] == MAX_MOMENT_COLUMNS
    with pytest.raises(InputError, match="one target per row"):
        moment_rows(np.ones((3, 2)), np.ones(2))


def test_a_moment_of_nothing_costs_a_client_nothing():
    """Noise may leave nothing above 0, and features may all be 0: the moment is 0, and no reason to refuse a reply."""
    assert read_note(packed_moment(np.zeros((4, 3)), 2)).moment.tolist() == [[0, 0, 0]]
    assert read_note(pack_moment(np.zeros((0, 3)))).moment.tolist() == [[0, 0, 0]]
