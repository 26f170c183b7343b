"""FedAsync's server step: mixes the clients' whole models into the shared model.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019). Other rules add the clients' updates, u_i = trained
- received, to the current model. This rule moves the current model part of the way toward the trained models. A stale
answer therefore also undoes part of what the model learned after the client received its copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedpace.core.server_rule import Answers, Part, Vector, double

ROUNDING = 1e-12
"""If the weights sum to 1 within this tolerance, the result is exactly the average, without rounding errors."""


@dataclass(frozen=True)
class Mixing:
    """x <- (1 - sum a_i) x + sum a_i x_i, for FedAsync."""

    name: ClassVar[str] = "mixing"
    takes: ClassVar[frozenset[Part]] = frozenset({"mixture"})

    def init(self, zero: Vector) -> None:
        """No state."""

    def apply(self, state: None, model: Vector, answers: Answers) -> tuple[Vector, None]:
        """Return the mixture, and no state."""
        assert answers.average is not None
        own_share = 1.0 - float(answers.weights.sum())
        return (answers.average if abs(own_share) < ROUNDING else own_share * double(model) + answers.average), None
