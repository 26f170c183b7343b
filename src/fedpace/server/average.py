"""FedAvg's step: the weighted average of the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.server_rule import Answers, Part, Vector


@dataclass(frozen=True)
class Average:
    """x <- sum a_i x_i: the weighted mean of models.

    If the weights do not sum to 1, or replies are stale, the step is x + sum a_i u_i with the updates u_i.
    """

    name: ClassVar[str] = "average"
    takes: ClassVar[frozenset[Part]] = frozenset({"models"})

    def init(self, zero: Vector) -> None:
        """No state."""

    def apply(self, state: None, model: Vector, answers: Answers) -> tuple[Vector, None]:
        """Return the average, and no state."""
        return (model + answers.step if answers.average is None else answers.average), None
