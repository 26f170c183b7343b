"""Validates moments before a bank stores them."""

from __future__ import annotations

from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array, of_ordinary_size
from fedpace._base.errors import InputError


def checked_moment(factor: ArrayLike, row: int, width: int | None) -> FloatArray:
    """Return client `row`'s factor as a finite matrix; raise InputError if its width differs from the others'."""
    matrix = float_array(factor, f"the moment of client {row}", ndim=2)
    if matrix.shape[1] == 0:
        raise InputError(f"the moment of client {row} must have at least one column, but shape {matrix.shape} came")
    if width is not None and matrix.shape[1] != width:
        raise InputError(
            f"the moment of client {row} must have {width} columns, as those of the other clients, "
            f"but it has {matrix.shape[1]}"
        )
    of_ordinary_size(matrix, f"the moment of client {row}")
    return matrix
