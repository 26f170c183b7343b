"""FedExP: the averaged step, lengthened as far as the clients' disagreement allows (`fedpace.server._step_length`).

Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023). The paper's
epsilon keeps the factor finite when updates cancel, but must be tuned in squared units of the updates. By default, the
curvature seen in past steps limits the factor instead, and a budget keeps the total extra length finite. For the
paper's rule, set `guarded = false` and an `epsilon`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedpace._base.options import FINITE, AtLeast, Between, Options
from fedpace.core.server_rule import Answers, Part, Vector, norm
from fedpace.server._step_length import StepLength, fedexp_factor


@dataclass(frozen=True, eq=False, kw_only=True)
class Stretched(StepLength):
    """Data of past steps that limit the next one."""

    last: Vector
    """The averaged update of the last step."""
    moved: float = 0.0
    """Length of the last step; 0 = no step yet."""


@dataclass(frozen=True)
class Fedexp(Options):
    """The averaged step, lengthened.

    Args:
        power: exponent of FedExP's factor: 0 = the plain average, 1 = FedExP.
        epsilon: added to |sum a_i u_i|^2 in the factor, as in the paper.
        guarded: limit the factor by the curvature seen in past steps, and limit the total extra length of all steps.
    """

    name: ClassVar[str] = "fedexp"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares"})

    power: Annotated[float, Between(0, 1)] = 1.0
    epsilon: Annotated[float, AtLeast(0), FINITE] = 0.0
    guarded: bool = True

    def init(self, zero: Vector) -> Stretched:
        """Return the state before the first step."""
        return Stretched(last=zero)

    def apply(self, state: Stretched, model: Vector, answers: Answers) -> tuple[Vector, Stretched]:
        """Return the model after the lengthened step, and the state."""
        update, square = answers.step, norm(answers.step) ** 2
        wanted = fedexp_factor(answers.mean_square, square + self.epsilon, self.power)
        if not self.guarded:
            return model + wanted * update, replace(state, last=update, step_factor=wanted)
        size = math.sqrt(square)
        after = state.next(wanted, change=norm(update - state.last), moved=state.moved, length=size)
        part, after = after.within_budget((after.step_factor - 1) * size)
        factor = 1 + part * (after.step_factor - 1)
        return model + factor * update, replace(after, last=update, moved=factor * size)
