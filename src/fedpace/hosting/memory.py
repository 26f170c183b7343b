"""From a usable answer to an outcome: sketch the update, check the moment, and say what a scheme lacks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from fedpace.core.checks import FloatArray, at_least
from fedpace.core.session import Session
from fedpace.core.types import Need, Outcome, facts_wanted
from fedpace.hosting.notes import Note
from fedpace.hosting.sketch import Arrays, UpdateSketch


@dataclass(frozen=True, eq=False)
class Answer:
    """One client's usable reply."""

    name: str
    seconds: float
    loss: float
    samples: float
    note: Note
    trained: Callable[[], Arrays]
    """Returns the model that it sent."""


class Memory:
    """When each client's moment came, and how wide moments are: one client's wrong report must not stop the others.

    Args:
        every: ask for a moment again after so many selections; 0 = once.
        width: entries of an update's sketch.
        remedies: what a client must do about something that a scheme needs and it does not send.
        log: where warnings go.
    """

    def __init__(self, every: int, width: int, remedies: dict[Need, str], log: logging.Logger) -> None:
        at_least(every, 0, "moments_every")
        at_least(width, 0, "sketch")
        self.width = width
        self._every = every
        self._remedies = remedies
        self._log = log
        self._sketch: UpdateSketch | None = None
        self._warned: set[tuple[str, Need]] = set()
        self.moment_steps: dict[str, int] = {}
        self.moment_width: int | None = None

    def moment_due(self, name: str, step: int) -> bool:
        """Whether to ask `name` for its moment at `step`."""
        last = self.moment_steps.get(name)
        return last is None or (self._every > 0 and step - last >= self._every)

    def outcome(self, answer: Answer, session: Session, current: Arrays) -> Outcome:
        """Return what the session is told of a client that finished."""
        wanted = facts_wanted(session.selector)
        moment = self._moment(answer, session.step) if Need.MOMENT in wanted else None
        self._say_what_lacks(answer, session)
        sketch = self.sketch(current, session.settings.seed) if Need.UPDATE in wanted else None
        return Outcome(
            answer.name,
            seconds=answer.seconds,
            loss=answer.loss,
            samples=answer.samples,
            moment=moment,
            update=None if sketch is None else sketch(answer.trained(), current),
        )

    def sketch(self, current: Arrays, seed: int) -> UpdateSketch:
        """Return the session's one projection of updates."""
        if self._sketch is None:
            self._sketch = UpdateSketch(current, self.width, seed=seed)
        return self._sketch

    def _say_what_lacks(self, answer: Answer, session: Session) -> None:
        """Warn once a client and fact: until it sends it, it can only be met as a newcomer."""
        lacks = {Need.MOMENT: answer.name not in self.moment_steps, Need.LOSS: math.isnan(answer.loss)}
        for need, missing in lacks.items():
            if missing and need in session.selector.needs and (answer.name, need) not in self._warned:
                self._warned.add((answer.name, need))
                self._log.warning(
                    "fedpace: %s needs %s, %r sent none: %s",
                    session.selector.name,
                    need,
                    answer.name,
                    self._remedies[need],
                )

    def _moment(self, answer: Answer, step: int) -> FloatArray | None:
        moment = answer.note.moment
        if moment is None:
            return None
        if self.moment_width not in (None, moment.shape[1]):
            self._log.warning(
                "fedpace: the moment of %r has %d columns, those before have %d: it is not used",
                answer.name,
                moment.shape[1],
                self.moment_width,
            )
            return None
        self.moment_width = moment.shape[1]
        self.moment_steps[answer.name] = step
        return moment
