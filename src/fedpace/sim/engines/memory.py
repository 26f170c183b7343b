"""Arrays that worker processes see too: one piece of memory, mapped by all of them.

It has no name in the file system, so nothing is left behind, however a process ends: the system takes it back with the
last process that has it open.
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
"""Bytes that every array starts at a multiple of, as torch's own do: some kernels round by it."""


@dataclass(frozen=True)
class Place:
    """Where an array lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Named arrays in shared memory.

    Args:
        file: descriptor of the memory; this object owns it.
        places: of the arrays.
    """

    def __init__(self, file: int, places: Mapping[str, Place]) -> None:
        self.file = file
        self.places = dict(places)
        self._map = mmap.mmap(file, max(_end(place) for place in places.values()))

    @classmethod
    def create(cls, arrays: Mapping[str, tuple[tuple[int, ...], Any]]) -> SharedArrays:
        """Return new arrays, all 0, of these shapes and types."""
        places: dict[str, Place] = {}
        end = 0
        for name, (shape, dtype) in arrays.items():
            places[name] = Place(-(-end // ALIGNED) * ALIGNED, tuple(shape), np.dtype(dtype).str)
            end = _end(places[name])
        file = _anonymous_file()
        os.ftruncate(file, end)
        return cls(file, places)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the array."""
        place = self.places[name]
        flat = np.frombuffer(self._map, dtype=place.dtype, count=prod(place.shape), offset=place.offset)
        return flat.reshape(place.shape)

    def close(self) -> None:
        """Give the descriptor back; the memory lives for as long as an array of it does."""
        os.close(self.file)


def _end(place: Place) -> int:
    return place.offset + max(1, prod(place.shape) * np.dtype(place.dtype).itemsize)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedpace")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
