"""What clients report is checked before it reaches anything."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace.core.errors import InputError
from fedpace.hosting.notes import pack_labels, pack_moment, pack_update, read_note
from fedpace.hosting.sketch import UpdateSketch


def test_an_empty_note_says_nothing():
    note = read_note({})
    assert note.name == ""
    assert math.isnan(note.seconds)
    assert math.isnan(note.samples)
    assert note.moment is None
    assert note.update is None
    assert note.labels is None


def test_everything_survives_the_journey():
    factor = np.arange(6, dtype=np.float32).reshape(2, 3)
    sketch = np.array([1 / 3, -2.0])
    note = read_note(
        {"name": "a", "seconds": 2, **pack_moment(factor), **pack_update(sketch), **pack_labels([3, 0, 4])}
    )
    np.testing.assert_array_equal(note.moment, factor)
    np.testing.assert_array_equal(note.update, sketch)
    np.testing.assert_array_equal(note.labels, [3, 0, 4])
    assert note.samples == 7
    assert note.seconds == 2


@pytest.mark.parametrize(
    "lie",
    [
        {"seconds": -1},
        {"seconds": math.inf},
        {"samples": "many"},
        {"samples": -3},
        {"update": b"1234567"},
        {"update": b""},
        {"update": np.array([math.nan]).tobytes()},
        {"labels": []},
        {"labels": [1.0, -1.0]},
        {"labels": [math.nan]},
        {"labels": 5},
        {"moment": b"", "shape": [0, 1 << 20]},
        {"moment": "text", "shape": [1, 1]},
    ],
)
def test_a_damaged_note_is_refused(lie):
    with pytest.raises(InputError):
        read_note(lie)


def test_a_histogram_of_negative_counts_is_refused_at_home():
    with pytest.raises(InputError, match="at least 0"):
        pack_labels([1, -1])


def test_a_step_and_an_update_are_sketched_alike():
    current = {"a": np.ones((3, 5)), "b": np.zeros(4)}
    step = {"a": np.full((3, 5), 0.25), "b": np.arange(4.0)}
    sketch = UpdateSketch(current, 6, seed=2)
    trained = {key: current[key] + step[key] for key in current}
    np.testing.assert_allclose(sketch(trained, current), sketch.of_step(step))
    assert sketch(trained, current).shape == (6,)
    assert sketch({"a": trained["a"]}, current) is None
    assert sketch.of_step({**step, "b": np.full(4, np.inf)}) is None
