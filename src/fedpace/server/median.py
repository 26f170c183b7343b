"""The coordinate-wise median: a step that some broken or hostile clients cannot bend.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018). Weights decide only
who counts at all, which is what makes it robust: a scheme that weighs clients apart loses that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace.core.stepping import Answers, Part, Vector, like


@dataclass(frozen=True)
class Median:
    """x <- x + the median of the updates, coordinate by coordinate."""

    name: ClassVar[str] = "median"
    takes: ClassVar[frozenset[Part]] = frozenset({"rows"})

    def init(self, zero: Vector) -> None:
        """No state."""

    def apply(self, state: None, model: Vector, answers: Answers) -> tuple[Vector, None]:
        """Return the model after the median step of those that count."""
        rows = [np.asarray(row) for row, weight in zip(answers.rows, answers.weights, strict=True) if weight]
        return model + like(answers.step, np.median(rows, axis=0)), None
