"""Updates as short vectors: one count sketch, the same for every client of a run.

Schemes that compare updates (DivFL, clustered sampling, FOLB) then neither store nor ship whole models.
"""

from __future__ import annotations

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.stepping import Vector
from fedpace.numerics.count_sketch import CountSketch


class UpdateSketch:
    """`fedpace.numerics.count_sketch` for the vectors of a trainer."""

    def __init__(self, length: int, width: int, *, seed: int) -> None:
        self._sketch = CountSketch(length, width, seed=seed)

    def __call__(self, vector: Vector) -> FloatArray:
        """Return the sketch of `vector`."""
        return self._sketch(np.asarray(vector).astype(np.float64))
