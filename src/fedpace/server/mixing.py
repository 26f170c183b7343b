"""FedAsync's step: clients' models are mixed into the shared one, whole.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019). Other rules add what clients changed, u_i = trained
- received, to the model as it is now; this one goes a part of the way to where they arrived, so that an old answer also
takes back a part of what was learnt since it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.stepping import Answers, Part, Vector, double

ROUNDING = 1e-12
"""Weights that sum to 1 up to this keep nothing of the model: equal models then stay as they are to the last bit."""


@dataclass(frozen=True)
class Mixing:
    """x <- (1 - sum a_i) x + sum a_i x_i: the average at sum 1."""

    name: ClassVar[str] = "mixing"
    takes: ClassVar[frozenset[Part]] = frozenset({"mixture"})

    def init(self, zero: Vector) -> None:
        """No state."""

    def apply(self, state: None, model: Vector, answers: Answers) -> tuple[Vector, None]:
        """Return the mixture."""
        assert answers.average is not None
        own_share = 1.0 - float(answers.weights.sum())
        return (answers.average if abs(own_share) < ROUNDING else own_share * double(model) + answers.average), None
