"""What a client puts beside its model, as plain entries that any framework can carry: numbers, text, bytes, lists.

`fedpace.hosting.replies` reads them on the server's side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import InputError


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a factor as entries of a note, in single precision: half the bytes, and far below its noise."""
    if not len(factor):  # a moment of 0, as of features that are all 0, or when noise left nothing above it
        factor = np.zeros((1, factor.shape[1]))
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def pack_update(sketch: FloatArray) -> dict[str, Any]:
    """Return a sketch as an entry of a note, in double precision: both sides must sketch alike to the last digit."""
    return {"update": np.ascontiguousarray(sketch, dtype="<f8").tobytes()}


def pack_labels(histogram: ArrayLike) -> dict[str, Any]:
    """Return a label histogram, and the number of samples in it, as entries of a note."""
    counts = float_array(histogram, "the label histogram")
    if (counts < 0).any():
        raise InputError(f"a label histogram must hold counts of at least 0, but {counts.tolist()} came")
    return {"labels": counts.tolist(), "samples": float(counts.sum())}
