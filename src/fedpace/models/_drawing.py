"""`drawn` draws the initial weights of linear layers without torch; they equal those of torch's generator.

Both torch and NumPy have the Mersenne Twister of 1998. torch seeds it with the lower 32 bits of a seed, and computes a
float32 from the lower 24 bits of each draw (`tests/models/test_drawing.py` compares the two).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace.core.stepping import SingleArray
from fedpace.models.base import Dense

SEED_BITS = 32
DRAWN_BITS = 24


def drawn(layers: Sequence[Dense], seed: int) -> SingleArray:
    """Return the initial flat parameter vector of `dense_model` with torch's generator of this seed."""
    generator = np.random.RandomState(seed % 2**SEED_BITS)
    return np.concatenate(
        [
            np.zeros(count, dtype=np.float32) if layer.zero else _uniform(generator, count, layer.inputs)
            for layer in layers
            for count in (layer.inputs * layer.outputs, layer.outputs if layer.bias else 0)
        ]
    )


def _uniform(generator: np.random.RandomState, count: int, inputs: int) -> SingleArray:
    """Return uniform draws between -1 / sqrt(inputs) and 1 / sqrt(inputs)."""
    raw = generator.randint(0, 2**32, size=count, dtype=np.uint32) % np.uint32(2**DRAWN_BITS)
    bound = np.float32(inputs**-0.5)
    return (raw.astype(np.float32) * np.float32(2.0**-DRAWN_BITS)) * (bound + bound) - bound
