"""FEMNIST: handwritten characters by writer, 62 classes, 28x28 pixels (LEAF, Caldas et al. 2018); `flwrlabs/femnist`.

A client is a writer. LEAF has no test split: a share of every writer's images, drawn at random, is held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpace.data._images import standardised, unit_interval
from fedpace.data._owned import OwnedRows, Rows

MEAN, DEVIATION = (0.9615,), (0.1633,)
"""Of the pixels in [0, 1], measured on 300 writers: paper is white, 1, and ink is dark."""


@dataclass(frozen=True)
class Femnist(OwnedRows):
    """FEMNIST over its writers (`natural`), or its images dealt out evenly (`iid`).

    Args:
        clients: writers, drawn from those with enough images; 0 = all of them.
        partition: `natural` (a client is a writer) or `iid` (the same images, dealt out at random).
        min_samples: images that a writer must have.
        test_fraction: share of every writer's images that is held out.
        folder: of parquet files; "" = $FEDPACE_DATA, else the Hub.
    """

    name: ClassVar[str] = "femnist"

    def hold_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Return training rows and test rows, drawn at random."""
        order = rng.permutation(rows)
        held = max(1, round(self.test_fraction * len(rows)))
        return np.sort(order[held:]), np.sort(order[:held])

    def prepared(self, inputs: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return normalised pixels."""
        return standardised(unit_interval(inputs), MEAN, DEVIATION)
