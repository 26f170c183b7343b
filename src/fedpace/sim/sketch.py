"""`UpdateSketch` compresses updates to short vectors with one count sketch, the same for all clients of a run.

With it, schemes that compare updates (DivFL, clustered sampling, FOLB) neither store nor send whole models.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.stepping import Vector
from fedpace.numerics.count_sketch import CountSketch


class UpdateSketch:
    """A count sketch (`fedpace.numerics.count_sketch`) of torch tensors or NumPy arrays."""

    def __init__(self, length: int, width: int, *, seed: int) -> None:
        self._sketch = CountSketch(length, width, seed=seed)

    def __call__(self, vector: Vector) -> FloatArray:
        """Return the sketch of `vector`."""
        return self._sketch(np.asarray(vector).astype(np.float64))
