"""FedExP: the averaged step, as long as the clients' disagreement allows (`fedpace.core.extrapolation`).

Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.checks import between
from fedpace.core.extrapolation import extrapolation
from fedpace.core.stepping import Answers, Part, Vector


@dataclass(frozen=True)
class Stretched:
    """What the last step was multiplied by."""

    stretch: float = 1.0


@dataclass(frozen=True)
class FedExP:
    """The averaged step, lengthened.

    Args:
        power: exponent of FedExP's factor: 0 = the plain average, 1 = FedExP.
    """

    name: ClassVar[str] = "fedexp"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares"})

    power: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        between(self.power, 0, 1, "power of fedexp")

    def init(self, zero: Vector) -> Stretched:
        """Nothing is remembered but what is recorded."""
        return Stretched()

    def apply(self, state: Stretched, model: Vector, answers: Answers) -> tuple[Vector, Stretched]:
        """Return the model after the longer step."""
        square = float(answers.step @ answers.step)
        stretch = extrapolation(answers.mean_square, square, self.power)
        return model + stretch * answers.step, Stretched(stretch)
