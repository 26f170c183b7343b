"""Shakespeare: the next character in a speaking role's lines (LEAF, Caldas et al. 2018); `flwrlabs/shakespeare`.

A client is a role of a play. An input is a window of 80 characters, as numbers in LEAF's alphabet of 80; its target is
the next character. LEAF has no test split, so the last windows of every role are held out. Neighbouring windows share
79 characters. So the 80 windows before the test windows are not used, as in LEAF, and test windows are not drawn at
random: otherwise the model would be tested on text that it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between
from fedpace.data import hub
from fedpace.data._public_sets import OwnedRows, Rows

WINDOW = 80


@dataclass(frozen=True)
class Shakespeare(OwnedRows):
    """Shakespeare: a client per speaking role, or iid.

    `natural` are the roles; `iid` deals the windows out evenly.

    Args:
        clients: number of roles, drawn from those with enough windows; 0 = all.
        partition: `natural` (a client is a role) or `iid` (the same windows, distributed at random).
        min_samples: least windows of a role that takes part.
        test_fraction: share of every role's windows that is held out; they are the last ones.
        folder: folder of parquet files; "" = $FEDPACE_DATA, else the Hub.
        samples: most windows of a role, its first ones, before test windows are held out; 0 = no limit.
        context: number of last characters to use, each as 80 columns of 0 and 1, for models such as a perceptron, which
            costs much less than a recurrent network; 0 = all 80 characters, as numbers.
    """

    name: ClassVar[str] = "shakespeare"

    min_samples: Annotated[int, AtLeast(2)] = 500
    samples: Annotated[int, AtLeast(0)] = 0
    context: Annotated[int, Between(0, WINDOW)] = 0

    def __post_init__(self) -> None:
        """Raise if an option is invalid."""
        super().__post_init__()
        least = self.min_samples if self.samples == 0 else min(self.samples, self.min_samples)
        if least - max(1, round(self.test_fraction * least)) - WINDOW < 1:
            raise InputError(
                f"a role of {least} windows would have none to train on: {self.test_fraction:.0%} are held out and the "
                f"{WINDOW} before them go unused; raise min_samples and samples of shakespeare"
            )

    def hold_out(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Return training rows and test rows, the last ones."""
        rows = rows[: self.samples] if self.samples else rows
        held = max(1, round(self.test_fraction * len(rows)))
        return rows[: -held - WINDOW], rows[-held:]

    def prepared(self, inputs: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the windows unchanged, one byte per character; or their last characters as columns of 0 and 1."""
        if not self.context:
            return np.ascontiguousarray(inputs)
        classes = hub.SOURCES[self.name].classes
        last = inputs[:, -self.context :]
        columns = np.zeros((len(last), self.context * classes), dtype=np.float32)
        np.put_along_axis(columns, last + np.arange(self.context) * classes, 1.0, axis=1)
        return columns
