"""The table of current tasks: in flight, in hand (answered but not yet used in a step), and failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.facts import ordinary
from fedpace.core.tasks import Answer, Kind, Task
from fedpace.core.types import ClientId, InFlight, Outcome

NOTHING = InFlight()
POLICY_KIND: Kind = "train"
"""The kind of the policy's tasks; the coordinator starts tasks of the other kinds itself."""


@dataclass(eq=False)
class Packed:
    """The content of a TaskTable in the form in which it is saved."""

    tasks: list[Task] = field(default_factory=list)
    settled: list[Task] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


class TaskTable:
    """The current tasks by id. It keeps counts up to date, because the coordinator reads them after every answer."""

    def __init__(self, packed: Packed | None = None) -> None:
        packed = packed or Packed()
        self.tasks: dict[int, Task] = {task.id: task for task in packed.tasks}
        self._answers: dict[int, tuple[Task, Answer]] = {
            task.id: (task, outcome) for task, outcome in zip(packed.settled, packed.outcomes, strict=True)
        }
        self._lost = {o[0].id for o in self._answers.values() if isinstance(o[1], Outcome) and not o[1].finished}
        self.flying = self.held = 0
        """Numbers of the policy's tasks in flight and in hand."""
        self._count()

    def start(self, tasks: tuple[Task, ...]) -> None:
        """Add tasks to those in flight; all must be of one kind."""
        self.tasks.update({task.id: task for task in tasks})
        if tasks and tasks[0].kind == POLICY_KIND:
            self.flying += len(tasks)

    def settle(self, task: int, answer: Answer, now: float | None = None) -> None:
        """Record the answer to a task in flight; `now` is the server's clock, and sets `Outcome.measured`."""
        ended = self.tasks.pop(task)
        failed = False
        if isinstance(answer, Outcome):
            failed = not answer.finished
            if now is not None and math.isnan(answer.measured):
                answer = replace(answer, measured=ordinary(now - ended.began))
        self._answers[task] = (ended, answer)
        if failed:
            self._lost.add(task)
        if ended.kind == POLICY_KIND:
            self.flying -= 1
            self.held += not failed

    def refuse(self, ids: Iterable[int]) -> None:
        """Turn answers to the policy's tasks in hand into failures."""
        for task in ids:
            if task not in self._answers:
                continue  # its client has left
            ended = self._answers[task][0]
            self._answers[task] = (ended, Outcome(ended.client, finished=False))
            self._lost.add(task)
            self.held -= 1

    def forget(self, kind: Literal["moment", "update"]) -> None:
        """Remove the feature moments or the update sketches from all answers in hand."""
        for task in list(self._answers):
            ended, outcome = self._answer_to(task)
            without = replace(outcome, moment=None) if kind == "moment" else replace(outcome, update=None)
            self._answers[task] = (ended, without)

    def width(self, kind: Literal["moment", "update"]) -> int | None:
        """Return the width of the moments or sketches in hand; None if there are none."""
        told = (getattr(answer, kind, None) for _, answer in self._answers.values())
        return next((np.shape(values)[-1] for values in told if values is not None), None)

    def telling(self, kind: Literal["moment", "update"]) -> set[ClientId]:
        """Return the clients with a moment or a sketch in an answer in hand."""
        return {task.client for task, answer in self._answers.values() if getattr(answer, kind, None) is not None}

    def drop(self, ids: Iterable[int]) -> tuple[Task, ...]:
        """Remove tasks from those in flight, and return them."""
        dropped = tuple(self.tasks.pop(task) for task in ids)
        self.flying -= sum(task.kind == POLICY_KIND for task in dropped)
        return dropped

    def go_on(self, dropped: Iterable[Task]) -> None:
        """Put dropped tasks back in flight as measurements: the server uses their facts, but not their models."""
        self.tasks.update({task.id: task._replace(kind="measure") for task in dropped})

    def measuring(self, ids: Collection[int]) -> TaskTable:
        """Return a TaskTable with the measurements in hand, and with the measurement tasks in flight among `ids`."""
        answers = [pair for pair in map(self._answer_to, list(self._answers)) if pair[0].kind == "measure"]
        flying = [task for task in self.tasks.values() if task.kind == "measure" and task.id in ids]
        return TaskTable(Packed(flying, [task for task, _ in answers], [outcome for _, outcome in answers]))

    def take(self, kind: Kind) -> list[tuple[Task, Outcome]]:
        """Remove and return the answered tasks of a kind other than `train`, in order of their start."""
        return [self._resolved(task) for task in sorted(i for i, (t, _) in self._answers.items() if t.kind == kind)]

    def take_step(self, applied: Sequence[int]) -> list[tuple[Task, Outcome]]:
        """Remove and return the answers used in a step and all failed tasks of the policy, in order of their start."""
        its_own = {task for task in applied if task in self._answers}  # the clients of the others have left
        self.held -= len(its_own)
        its_own |= {task for task in self._lost if self._answers[task][0].kind == POLICY_KIND}
        return [self._resolved(task) for task in sorted(its_own)]

    def _resolved(self, task: int) -> tuple[Task, Outcome]:
        self._lost.discard(task)
        ended, answer = self._answers.pop(task)
        return ended, answer() if callable(answer) else answer

    def answered(self, ids: Iterable[int]) -> int:
        """Return how many of these tasks are answered and did not fail."""
        return sum(task in self._answers and task not in self._lost for task in ids)

    def lose(self, clients: set[ClientId]) -> None:
        """Remove all tasks and answers of these clients."""
        self.tasks = {i: task for i, task in self.tasks.items() if task.client not in clients}
        self._answers = {i: pair for i, pair in self._answers.items() if pair[0].client not in clients}
        self._lost &= set(self._answers)
        self._count()

    def in_hand(self, ids: Iterable[int]) -> list[Task]:
        """Return the answered tasks with these ids."""
        return [self._answers[task][0] for task in ids]

    def policy_tasks(self) -> tuple[list[Task], list[Task]]:
        """Return the policy's tasks in flight and those in hand, in order of their start."""
        flying = [task for task in self.tasks.values() if task.kind == POLICY_KIND]
        held = [task for i, (task, _) in self._answers.items() if task.kind == POLICY_KIND and i not in self._lost]
        held.sort(key=attrgetter("id"))
        return flying, held

    def of(self, step: int) -> tuple[int, int]:
        """Return how many of the policy's tasks on model version `step` are in flight, and how many are in hand."""
        flying, held = self.policy_tasks()
        return sum(task.step == step for task in flying), sum(task.step == step for task in held)

    def tables(
        self,
        rows: Callable[[Iterable[ClientId]], IntArray],
        shown: Callable[[FloatArray, Sequence[ClientId]], FloatArray],
    ) -> tuple[InFlight, InFlight, InFlight]:
        """Return the policy's tasks in flight, in hand, and failed since the last step, for a View.

        Args:
            rows: returns the rows of clients.
            shown: clips the update sketches of answers in hand, given their clients.
        """
        flying, held = self.policy_tasks()
        lost = [self._answers[task][0] for task in sorted(self._lost)] if self._lost else []
        failed = [task for task in lost if task.kind == POLICY_KIND]
        at = rows([task.client for tasks in (flying, held, failed) for task in tasks])
        answered = len(flying) + len(held)
        return (
            _table(flying, at[: len(flying)]),
            _table(held, at[len(flying) : answered], partial(self._sketches, held, shown)),
            _table(failed, at[answered:]),
        )

    def _sketches(
        self, held: list[Task], shown: Callable[[FloatArray, Sequence[ClientId]], FloatArray]
    ) -> FloatArray | None:
        """Return the clipped update sketches of answers in hand; None if no answer has one."""
        sketches = stacked([self._answer_to(task.id)[1].update for task in held])
        return None if sketches is None else shown(sketches, [task.client for task in held])

    def _answer_to(self, task: int) -> tuple[Task, Outcome]:
        """Return a task in hand and its outcome; a function is called once, and its result is kept."""
        ended, answer = self._answers[task]
        outcome = answer() if callable(answer) else answer
        self._answers[task] = (ended, outcome)
        return ended, outcome

    @property
    def versions(self) -> frozenset[int]:
        """Versions of the model that clients with a task in flight or in hand trained from."""
        return frozenset(
            [task.step for task in self.tasks.values()] + [task.step for task, _ in self._answers.values()]
        )

    def packed(self) -> Packed:
        """Return the content in the form in which it is saved."""
        settled = [self._answer_to(task) for task in list(self._answers)]
        return Packed(list(self.tasks.values()), [task for task, _ in settled], [outcome for _, outcome in settled])

    def _count(self) -> None:
        self.flying = sum(task.kind == POLICY_KIND for task in self.tasks.values())
        self.held = sum(task.kind == POLICY_KIND and i not in self._lost for i, (task, _) in self._answers.items())


def stacked(sketches: Sequence[FloatArray | None]) -> FloatArray | None:
    """Return sketches as the rows of a table, with NaN for missing ones; None if all are missing."""
    width = next((np.size(sketch) for sketch in sketches if sketch is not None), None)
    if width is None:
        return None
    blank = np.full(width, np.nan)
    return np.array([blank if sketch is None else sketch for sketch in sketches], dtype=np.float64)


def _table(tasks: list[Task], rows: IntArray, tell: Callable[[], FloatArray | None] | None = None) -> InFlight:
    if not tasks:
        return NOTHING if tell is None else replace(NOTHING, tell=tell)
    ids, _, _, steps, began, weights, *_, work = zip(*tasks, strict=True)  # fast: called after every answer
    return InFlight(
        np.array(ids, dtype=np.int64),
        rows,
        np.array(began, dtype=np.float64),
        np.array(steps, dtype=np.int64),
        np.array(weights, dtype=np.float64),
        tell,
        np.array(work, dtype=np.float64),
    )
