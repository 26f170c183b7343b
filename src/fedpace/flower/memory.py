"""From a usable answer to an outcome: sketch the update, check the moment, and say what a scheme lacks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedpace.core.checks import FloatArray, at_least
from fedpace.core.session import Session
from fedpace.core.types import Need, Outcome, facts_wanted
from fedpace.flower.replies import Answer
from fedpace.flower.sketch import UpdateSketch

log = logging.getLogger("flwr")

REMEDY = {
    Need.MOMENT: "add report_mod(module=...) to the mods of its ClientApp",
    Need.LOSS: "put train_loss into the metrics of its reply",
}
"""What a client must do about something that a scheme needs and it does not send."""


class Memory:
    """When each client's moment came, and how wide moments are: one client's wrong report must not stop the others.

    Args:
        every: ask for a moment again after so many selections; 0 = once.
        width: entries of an update's sketch.
    """

    def __init__(self, every: int, width: int) -> None:
        at_least(every, 0, "moments_every")
        at_least(width, 0, "sketch")
        self._every = every
        self._width = width
        self._sketch: UpdateSketch | None = None
        self.moment_steps: dict[str, int] = {}
        self.moment_width: int | None = None

    def moment_due(self, name: str, step: int) -> bool:
        """Whether to ask `name` for its moment at `step`."""
        last = self.moment_steps.get(name)
        return last is None or (self._every > 0 and step - last >= self._every)

    def outcome(self, answer: Answer, session: Session, current: Mapping[str, NDArray[np.generic]]) -> Outcome:
        """Return what the session is told of a client that finished."""
        needs, wanted = session.selector.needs, facts_wanted(session.selector)
        moment = self._moment(answer, session.step) if Need.MOMENT in wanted else None
        lacks = {
            Need.MOMENT: answer.name not in self.moment_steps,
            Need.LOSS: math.isnan(answer.loss),
        }
        for need, missing in lacks.items():
            if missing and need in needs:
                remedy = REMEDY[need]
                log.warning("fedpace: %s needs %s, %r sent none: %s", session.selector.name, need, answer.name, remedy)
        return Outcome(
            answer.name,
            seconds=answer.seconds,
            loss=answer.loss,
            samples=answer.samples,
            moment=moment,
            update=self._update(answer, session.seed, current) if Need.UPDATE in wanted else None,
        )

    def _moment(self, answer: Answer, step: int) -> FloatArray | None:
        moment = answer.moment
        if moment is None:
            return None
        if self.moment_width not in (None, moment.shape[1]):
            log.warning(
                "fedpace: the moment of %r has %d features, those before have %d: it is not used",
                answer.name,
                moment.shape[1],
                self.moment_width,
            )
            return None
        self.moment_width = moment.shape[1]
        self.moment_steps[answer.name] = step
        return moment

    def _update(self, answer: Answer, seed: int, current: Mapping[str, NDArray[np.generic]]) -> FloatArray | None:
        if self._sketch is None:
            self._sketch = UpdateSketch(current, self._width, seed=seed)
        trained = next(iter(answer.reply.content.array_records.values()), ArrayRecord())
        return self._sketch(trained, current)
