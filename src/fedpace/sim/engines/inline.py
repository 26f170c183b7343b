"""`Inline`, the engine that computes all tasks in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from fedpace.core.stepping import Vector
from fedpace.sim.engines.base import Engine
from fedpace.sim.engines.tasks import Task
from fedpace.sim.engines.threads import one_thread


class Inline(Engine):
    """Runs in this process, without setup: the best engine for small models, where a whole cohort is one task."""

    name: ClassVar[str] = "inline"

    def _run(self, parameters: Vector, tasks: Sequence[Task]) -> Iterator[Sequence[Any]]:
        for task in tasks:
            with one_thread():
                answers = task.run(self.trainer, parameters)
            yield answers
