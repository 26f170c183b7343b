"""The engine that does everything in this process, one task after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from fedpace.core.stepping import Vector
from fedpace.sim.engines.base import Engine
from fedpace.sim.engines.tasks import Task
from fedpace.sim.engines.threads import one_thread


class Inline(Engine):
    """Needs nothing and starts at once: the best engine for models so small that a whole cohort is one task."""

    name: ClassVar[str] = "inline"

    def _run(self, parameters: Vector, tasks: Sequence[Task]) -> Iterator[Sequence[Any]]:
        for task in tasks:
            with one_thread():
                answers = task.run(self.trainer, parameters)
            yield answers
