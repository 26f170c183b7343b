"""`rotate` rotates images about their centre with bilinear interpolation, for the paper's rotated data sets.

All images of a client have the same angle. So a rotation is one sparse matrix with four entries per pixel, and one
product rotates all images of a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse


def rotate(images: NDArray[np.float32], degrees: float) -> NDArray[np.float32]:
    """Rotate images (n, channels, height, width) counter-clockwise; pixels from outside the image are 0."""
    if degrees == 0:
        return images
    count, channels, height, width = images.shape
    flat = images.reshape(count * channels, height * width)
    rotated = (_rotation(height, width, degrees) @ flat.T).T
    return np.ascontiguousarray(rotated, dtype=np.float32).reshape(images.shape)


def _rotation(height: int, width: int, degrees: float) -> sparse.csr_matrix:
    """Return the matrix that maps the pixels of an image to those of the rotated image."""
    from scipy import sparse  # imported here, so that importing a data set stays fast

    row, column = (grid.ravel() for grid in np.mgrid[:height, :width].astype(np.float64))
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    # Source of each pixel: its position rotated back. Row numbers grow downwards.
    from_row = middle_row + cosine * (row - middle_row) + sine * (column - middle_column)
    from_column = middle_column - sine * (row - middle_row) + cosine * (column - middle_column)
    top, left = np.floor(from_row).astype(np.int64), np.floor(from_column).astype(np.int64)
    below, right = from_row - top, from_column - left
    target = np.arange(height * width)
    entries = []
    for down, across, weight in (
        (0, 0, (1 - below) * (1 - right)),
        (0, 1, (1 - below) * right),
        (1, 0, below * (1 - right)),
        (1, 1, below * right),
    ):
        y, x = top + down, left + across
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        entries.append((weight[inside], target[inside], y[inside] * width + x[inside]))
    weights, rows, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (height * width, height * width)
    return sparse.csr_matrix((weights.astype(np.float32), (rows, columns)), shape=shape)
