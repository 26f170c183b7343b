"""`SharedArrays`: NumPy arrays in memory that this process and its workers share.

The memory has no name in the file system. The operating system frees it with the last process that has it open, so
nothing is left behind after a crash.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64
"""Alignment of every array in bytes, as in torch: the rounding of some kernels depends on it."""


@dataclass(frozen=True)
class Place:
    """Position, shape and type of an array in the shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Named arrays in shared memory.

    Args:
        file: file descriptor of the memory; this object owns it.
        places: name -> place of each array.
    """

    def __init__(self, file: int, places: Mapping[str, Place]) -> None:
        self.file = file
        self.places = dict(places)
        self._map = mmap.mmap(file, max(_end(place) for place in places.values()))

    @classmethod
    def create(cls, arrays: Mapping[str, tuple[tuple[int, ...], Any]]) -> SharedArrays:
        """Allocate arrays of these shapes and types, filled with 0."""
        places: dict[str, Place] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            places[name] = Place(-(-end // ALIGNED) * ALIGNED, tuple(shape), np.dtype(dtype).str)
            end = _end(places[name])
        file = _anonymous_file()
        os.ftruncate(file, end)
        return cls(file, places)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array of this name."""
        place = self.places[name]
        flat = np.frombuffer(self._map, dtype=place.dtype, count=prod(place.shape), offset=place.offset)
        return flat.reshape(place.shape)

    def close(self) -> None:
        """Close the file descriptor; the memory lives as long as one of its arrays."""
        os.close(self.file)


def _end(place: Place) -> int:
    return place.offset + max(1, prod(place.shape) * np.dtype(place.dtype).itemsize)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedpace")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
