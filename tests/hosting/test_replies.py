"""What clients report is checked before it reaches anything: a value, or the reason why it is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.hosting.replies import (
    MAX_MOMENT_ROWS,
    Raw,
    Reply,
    UpdateSketch,
    pack_labels,
    pack_moment,
    pack_update,
    parse,
    read_note,
)


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


SENT = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3), "n": np.array(7)}
GOOD = {"w": np.ones((2, 3), np.float32), "b": np.ones(3), "n": np.array(8)}


def test_a_good_reply_is_read():
    reply = parse(
        lambda: Raw({"seconds": 2.0}, metrics={"loss": 0.5}, samples=np.int64(9), model=GOOD, carrier="message"), SENT
    )
    assert isinstance(reply, Reply)
    assert (reply.loss, reply.samples, reply.note.seconds, reply.carrier) == (0.5, 9.0, 2.0, "message")
    assert reply.model.keys() == SENT.keys()
    silent = parse(lambda: Raw(model=GOOD), SENT)
    assert math.isnan(silent.loss)
    assert math.isnan(silent.samples)


def floats(*values):
    return np.array(values, "<f4").tobytes()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"note": ["seconds"]}, "should be a table"),
        ({"note": None}, "should be a table"),
        ({"note": {"name": 7}}, "a name should be text"),
        ({"note": {"name": "x" * 1000}}, "a name should be text"),
        ({"note": {"seconds": -1}}, "seconds should be finite and at least 0"),
        ({"note": {"seconds": math.inf}}, "seconds should be finite and at least 0"),
        ({"note": {"seconds": "soon"}}, "seconds should be a number"),
        ({"note": {"seconds": [1.0]}}, "seconds should be a number"),
        ({"note": {"seconds": 10**400}}, "cannot be read: OverflowError"),
        ({"note": {"samples": "many"}}, "samples should be a number"),
        ({"note": {"samples": -3}}, "samples should be finite and at least 0"),
        ({"note": {"update": b"1234567"}}, "a sketch should be"),
        ({"note": {"update": b""}}, "a sketch should be"),
        ({"note": {"update": 5}}, "a sketch should be"),
        ({"note": {"update": np.array([math.nan]).tobytes()}}, "a sketch should be finite"),
        ({"note": {"labels": []}}, "a label histogram should be a list"),
        ({"note": {"labels": ["a"]}}, "a count in the label histogram should be a number"),
        ({"note": {"labels": [[1.0]]}}, "a count in the label histogram should be a number"),
        ({"note": {"labels": [1.0, -1.0]}}, "at least 0"),
        ({"note": {"labels": [math.nan]}}, "NaN came"),
        ({"note": {"labels": 5}}, "a label histogram should be a list"),
        ({"note": {"labels": [1.0] * 70_000}}, "a label histogram should be a list"),
        ({"note": {"moment": b""}}, "with a shape of two whole numbers"),
        ({"note": {"moment": b"", "shape": [0, 65_536]}}, "1 to"),
        ({"note": {"moment": b"", "shape": [0, 1 << 20]}}, "1 to"),
        ({"note": {"moment": b"", "shape": [-1, -1]}}, "1 to"),
        ({"note": {"moment": b"", "shape": [MAX_MOMENT_ROWS + 1, 1]}}, "1 to"),
        ({"note": {"moment": b"", "shape": [MAX_MOMENT_ROWS, 65_536]}}, "1 to"),
        ({"note": {"moment": b"", "shape": ["1", "1"]}}, "two whole numbers"),
        ({"note": {"moment": b"", "shape": [1.0, 1.0]}}, "two whole numbers"),
        ({"note": {"moment": "text", "shape": [1, 1]}}, "should be bytes"),
        ({"note": {"moment": floats(1, 2, 3), "shape": [2, 2]}}, "should have 16 bytes, but 12 came"),
        ({"note": {"moment": floats(1, math.inf), "shape": [1, 2]}}, "a moment should be finite"),
        ({"metrics": {"loss": math.nan}}, "the loss is nan: training diverged"),
        ({"metrics": {"loss": math.inf}}, "the loss is inf: training diverged"),
        ({"metrics": {"train_loss": [0.5]}}, "the loss should be a number"),
        ({"metrics": {"loss": "low"}}, "the loss should be a number"),
        ({"metrics": {"loss": True}}, "the loss should be a number"),
        ({"samples": [9]}, "samples should be a number"),
        ({"samples": -1}, "samples should be finite and at least 0"),
        ({"model": None}, "no model came"),
        ({"model": [1, 2]}, "no model came"),
        ({"model": {}}, "missing or new"),
        ({"model": {"w": GOOD["w"], "b": GOOD["b"]}}, "['n'] are missing or new"),
        ({"model": {**GOOD, "extra": np.ones(1)}}, "['extra'] are missing or new"),
        ({"model": {**GOOD, "b": np.ones((3, 1))}}, "'b' of the model should have shape (3,), but it has (3, 1)"),
        ({"model": {**GOOD, "b": np.array(1.0)}}, "'b' of the model should have shape (3,), but it has ()"),
        ({"model": {**GOOD, "n": np.ones(3)}}, "'n' of the model should have shape (), but it has (3,)"),
        ({"model": {**GOOD, "b": np.array([1, math.nan, 1])}}, "NaN or infinity"),
        ({"model": {**GOOD, "b": np.array(["a", "b", "c"])}}, "should hold real numbers"),
        ({"model": {**GOOD, "b": np.ones(3, complex)}}, "should hold real numbers"),
        ({"model": {**GOOD, "b": [[1], [1, 2]]}}, "cannot be read"),
    ],
)
def test_a_wrong_reply_is_a_reason(lie, reason):
    said = parse(lambda: Raw(**({"model": GOOD} | lie)), SENT)
    assert isinstance(said, str)
    assert reason in said
    assert len(said) <= 300


def test_what_cannot_even_be_unpacked_is_a_reason():
    assert parse(lambda: 1 / 0) == "it cannot be read: ZeroDivisionError: division by zero"


def test_a_model_that_nobody_expects_is_not_looked_at():
    assert parse(lambda: Raw(metrics={"loss": 1.0}, model={"w": "nonsense"})).model is None


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


def test_updates_are_compared_array_by_array_in_whatever_order_they_come():
    sent = {"a": np.zeros(2), "b": np.zeros(2), "bn.running_mean": np.zeros(2)}
    trained = {"bn.running_mean": np.full(2, 9.0), "b": np.full(2, 2.0), "a": np.ones(2)}
    assert UpdateSketch(sent, 0, seed=0)(trained, sent).tolist() == [1, 1, 2, 2]
