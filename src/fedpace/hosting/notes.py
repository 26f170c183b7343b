"""What a client reports beside its model, as plain entries that any framework can carry: numbers, text, bytes, lists.

A client may be broken or lie: whatever comes is checked here, before anything of it reaches the session.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace.core.checks import FloatArray, float_array
from fedpace.core.errors import InputError

WIDEST = 65_536
"""Columns that a reported array may have at most: a broken client must not fill the server's memory."""


@dataclass(frozen=True, eq=False)
class Note:
    """What a client reported; NaN, None or an empty name where it did not."""

    name: str = ""
    """Stable name."""
    seconds: float = math.nan
    compute: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    update: FloatArray | None = None
    """Sketch of an update or gradient."""
    labels: FloatArray | None = None
    """(c,) how many samples of each class it holds."""


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a factor as entries of a note, in single precision: half the bytes, and far below its noise."""
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def unpack_moment(record: Mapping[str, Any]) -> FloatArray | None:
    """Return the factor in a note, None where there is none; a damaged one is an InputError."""
    data, shape = record.get("moment"), record.get("shape")
    if data is None:
        return None
    if not (isinstance(data, bytes) and isinstance(shape, list) and len(shape) == 2 and 0 < int(shape[1]) <= WIDEST):
        raise InputError(f"a moment should be bytes with a shape of two numbers, but the shape is {shape!r}")
    rows, width = int(shape[0]), int(shape[1])
    if rows < 0 or len(data) != 4 * rows * width:
        raise InputError(f"a moment of shape {shape} should have {4 * rows * width} bytes, but {len(data)} came")
    return _finite(np.frombuffer(data, dtype="<f4").reshape(rows, width), "a moment")


def pack_update(sketch: FloatArray) -> dict[str, Any]:
    """Return a sketch as an entry of a note, in double precision: both sides must sketch alike to the last digit."""
    return {"update": np.ascontiguousarray(sketch, dtype="<f8").tobytes()}


def pack_labels(histogram: ArrayLike) -> dict[str, Any]:
    """Return a label histogram, and the number of samples in it, as entries of a note."""
    counts = float_array(histogram, "the label histogram")
    if (counts < 0).any():
        raise InputError(f"a label histogram must hold counts of at least 0, but {counts.tolist()} came")
    return {"labels": counts.tolist(), "samples": float(counts.sum())}


def read_note(record: Mapping[str, Any]) -> Note:
    """Return what a client reported; a damaged report is an InputError."""
    return Note(
        name=str(record.get("name", "")),
        seconds=_number(record, "seconds"),
        compute=_number(record, "compute"),
        samples=_number(record, "samples"),
        moment=unpack_moment(record),
        update=_update(record),
        labels=_labels(record),
    )


def _number(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key, math.nan)
    try:
        number = float(value)
    except (TypeError, ValueError) as cause:
        raise InputError(f"reported {key} should be a number, but {value!r} came") from cause
    if not math.isnan(number) and not (math.isfinite(number) and number >= 0):
        raise InputError(f"reported {key} should be finite and at least 0, but {number} came")
    return number


def _update(record: Mapping[str, Any]) -> FloatArray | None:
    data = record.get("update")
    if data is None:
        return None
    if not isinstance(data, bytes) or len(data) % 8 or not data:
        raise InputError("a sketch should be the bytes of some numbers in double precision, but other things came")
    return _finite(np.frombuffer(data, dtype="<f8"), "a sketch")


def _labels(record: Mapping[str, Any]) -> FloatArray | None:
    values = record.get("labels")
    if values is None:
        return None
    if not isinstance(values, list) or not 0 < len(values) <= WIDEST:
        raise InputError("a label histogram should be a list of counts, but other things came")
    counts = _finite(np.array(values, dtype=np.float64), "a label histogram")
    if (counts < 0).any():
        raise InputError("a label histogram should hold counts of at least 0, but some are negative")
    return counts


def _finite(array: Any, what: str) -> FloatArray:
    values = np.asarray(array, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{what} should be finite, but it holds NaN or infinity")
    return values
