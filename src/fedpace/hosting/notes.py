"""Functions that pack a client's facts into a note: plain numbers, text, bytes and lists that any framework can send.

A client sends the note with its model. `fedpace.hosting.replies` reads notes on the server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import InputError


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a moment factor as entries of a note, in single precision to halve the bytes."""
    if not len(factor):  # the moment is 0: all features are 0, or the privacy noise hides them
        factor = np.zeros((1, factor.shape[1]))
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def pack_update(sketch: FloatArray) -> dict[str, Any]:
    """Return a sketch as an entry of a note, in double precision, so that it equals the server's own sketch exactly."""
    return {"update": np.ascontiguousarray(sketch, dtype="<f8").tobytes()}


def pack_labels(histogram: ArrayLike) -> dict[str, Any]:
    """Return a label histogram and its number of samples as entries of a note."""
    counts = float_array(histogram, "the label histogram")
    if (counts < 0).any():
        raise InputError(f"a label histogram must hold counts of at least 0, but {counts.tolist()} came")
    return {"labels": counts.tolist(), "samples": float(counts.sum())}
