"""Whatever a client sends is a reply that can be used, or a reason: nothing is raised, nothing large is made."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedpace.hosting.replies import Raw, Reply, parse

SENT = {"w": np.zeros((2, 3), np.float32), "n": np.array(7)}
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=16)
THINGS = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
SIZES = st.lists(st.integers(-1, 1 << 40) | st.floats() | st.text(max_size=2), max_size=3)
NOTES = THINGS | st.fixed_dictionaries(
    {},
    optional={
        "name": THINGS,
        "seconds": THINGS,
        "compute": st.floats() | THINGS,
        "samples": THINGS,
        "moment": st.binary(max_size=24) | THINGS,
        "shape": SIZES | THINGS,
        "update": st.binary(max_size=24) | THINGS,
        "labels": st.lists(st.floats() | THINGS, max_size=4) | THINGS,
    },
)
DTYPES = st.sampled_from(["f4", "f8", "f2", "i4", "u1", "?", "c8", "U3", "O", "M8[s]"])
ARRAYS = DTYPES.flatmap(
    lambda kind: (
        arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_side=3))
        if kind != "O"
        else st.just(np.array([None, {}], object))
    )
)
MODELS = THINGS | st.dictionaries(st.sampled_from(["w", "n", "x", ""]), ARRAYS | THINGS, max_size=3)


@settings(max_examples=500, deadline=None)
@given(
    note=NOTES,
    metrics=THINGS | st.dictionaries(st.sampled_from(["loss", "train_loss", "x"]), THINGS),
    samples=THINGS,
    model=MODELS,
)
def test_anything_is_a_reply_or_a_reason(note, metrics, samples, model):
    found = parse(lambda: Raw(note, metrics, samples, model), SENT)
    if isinstance(found, str):
        assert 0 < len(found) <= 300
        return
    assert isinstance(found, Reply)
    assert found.model.keys() == SENT.keys()
    for key, array in found.model.items():
        assert array.shape == SENT[key].shape
        assert array.dtype == SENT[key].dtype
        assert np.isfinite(array).all()
    assert math.isnan(found.loss) or math.isfinite(found.loss)
    for number in (found.samples, found.note.seconds, found.note.compute, found.note.samples):
        assert math.isnan(number) or 0 <= number < math.inf
    for array in (found.note.moment, found.note.update, found.note.labels):
        assert array is None or (array.size and np.isfinite(array).all())


@settings(max_examples=200, deadline=None)
@given(step=arrays.arrays("f4", (2, 3)), count=st.integers(-5, 5))
def test_a_model_that_fits_is_used_if_it_is_finite(step, count):
    found = parse(lambda: Raw(model={"w": step, "n": np.array(count)}), SENT)
    assert isinstance(found, Reply) == bool(np.isfinite(step).all())
