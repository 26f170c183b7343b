"""`pace-async` without one of its parts each: `time_to_target.py --schemes pace-async,grid.ablations:NoMemory,...`.

Each class switches one part off and leaves all others as they are, so that the time it takes says what the part brings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.server_rule import Answers, Vector
from fedpace.core.types import View
from fedpace.selectors.pace_async import REACH, AsyncState, PaceAsync, _Plan
from fedpace.server._memory import MemoryState
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov


class NoMemory(PaceAsync):
    """Clients that did not answer are left out of the step; nothing of them is remembered."""

    name: ClassVar[str] = "no-memory"

    @property
    def server(self) -> Any:
        """Momentum and FedExP on the average of the fresh answers."""
        return Nesterov(self.fedexp_exponent)


class _Still(MemoryCorrected):
    """The memory's step without momentum."""

    def apply(self, state: MemoryState, model: Vector, answers: Answers) -> tuple[Vector, MemoryState]:
        """Return the next model, as if momentum restarted in every step."""
        return super().apply(replace(state, age=0, momentum=0 * state.momentum), model, answers)


class NoMomentum(PaceAsync):
    """Every step restarts the momentum."""

    name: ClassVar[str] = "no-momentum"

    @property
    def server(self) -> Any:
        """Memory and FedExP."""
        return _Still(self.fedexp_exponent, self.memory_gib, REACH)


@dataclass(frozen=True)
class NoFedexp(PaceAsync):
    """Steps are never lengthened."""

    name: ClassVar[str] = "no-fedexp"

    fedexp_exponent: float = 0.0


class NoLimit(PaceAsync):
    """The model may move on its memory as far as it likes: no safeguard."""

    name: ClassVar[str] = "no-limit"

    @property
    def server(self) -> Any:
        """Memory, momentum and FedExP, with no limit `reach`."""
        return MemoryCorrected(self.fedexp_exponent, self.memory_gib, 0.0)


class TenAnswers(PaceAsync):
    """A step at every ten fresh answers, in place of the timing rule."""

    name: ClassVar[str] = "ten-answers"

    def _plan(self, state: AsyncState, view: View, fresh: IntArray) -> tuple[_Plan, FloatArray]:
        plan, weights = super()._plan(state, view, fresh)
        if fresh.size >= 10:
            return replace(plan, now=True), weights
        return (plan if plan.now and view.clients < 10 else _Plan(plan.error, False, 10, np.inf)), weights


class NoSketch(PaceAsync):
    """The first steps assume that clients disagree as much as they agree, in place of measuring it on sketches."""

    name: ClassVar[str] = "no-sketch"
    uses = PaceAsync.uses - {next(need for need in PaceAsync.uses if need.name == "UPDATE")}


class _Alike(MemoryCorrected):
    """The memory's step if nobody knows how many local steps clients made."""

    def apply(self, state: MemoryState, model: Vector, answers: Answers) -> tuple[Vector, MemoryState]:
        """Return the next model, as if all clients responded alike."""
        sources = tuple(source._replace(steps=math.nan) for source in answers.sources)
        return super().apply(state, model, replace(answers, sources=sources))


class NoResponse(PaceAsync):
    """Clients with many more local steps are predicted like all others."""

    name: ClassVar[str] = "no-response"

    @property
    def server(self) -> Any:
        """Memory, momentum and FedExP, without the clients' responses."""
        return _Alike(self.fedexp_exponent, self.memory_gib, REACH)


PARTS = ("NoMemory", "NoMomentum", "NoFedexp", "NoLimit", "TenAnswers", "NoSketch", "NoResponse")
