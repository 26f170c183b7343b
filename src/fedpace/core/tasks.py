"""The types that coordinator, transports and policies exchange: tasks, answers, moves and steps.

A task is one client's work on one version of the shared model. It is in flight until the transport reports that it was
answered or lost. The answer to a training task is then in hand until a step uses it.

`Events` is a queue of task ends ordered by virtual time, for the simulator and for the clock `reported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import ClientId, Described, Diagnostics, Mode, Need, Outcome, Probe, ProbeKind, Report, View

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator


class Event(NamedTuple):
    """The end of a task: an answer, or a failure if the client crashed."""

    when: float
    task: int
    seconds: float
    """Seconds that the client took."""
    crashed: bool = False
    compute: float = -1.0
    """Part of the seconds that grew with the work; below 0 = unknown."""


class Events:
    """A queue of events; it skips the events of tasks that are no longer in flight."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._heap = list(events)
        heapify(self._heap)
        self.waited: float | None = None
        """Exact duration of the policy's last wait: the seconds of its last answer, or its deadline."""

    def add(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            heappush(self._heap, event)

    def come(self, coordinator: Coordinator, now: float) -> Iterator[tuple[Task, Event]]:
        """Yield the events of tasks in flight until `now`; the caller must process each before it takes the next."""
        tasks = coordinator.task_table.tasks
        while self._first(tasks) <= now:
            event = heappop(self._heap)
            task = tasks[event.task]
            if task.kind == "train":
                self.waited = event.seconds
            yield task, event

    def next_instant(self, coordinator: Coordinator) -> float:
        """Return the time of the next event: an answer or the end of the policy's wait; infinity = none."""
        first, wake = self._first(coordinator.task_table.tasks), coordinator.wake_at
        if wake < first and (wait := coordinator.progress.wait) is not None:
            self.waited = min(wait.seconds, coordinator.settings.deadline)
        return min(first, wake)

    def all(self, wanted: Container[int]) -> list[Event]:
        """Return the events of the tasks in `wanted`, in order of time."""
        return sorted(event for event in self._heap if event.task in wanted)

    def _first(self, wanted: Container[int]) -> float:
        """Return the time of the next event of a task in `wanted`, and drop earlier events of other tasks."""
        while self._heap and self._heap[0].task not in wanted:
            heappop(self._heap)
        return self._heap[0].when if self._heap else math.inf


Kind = Literal["train", "measure", "probe"]
"""`train`: train the model and return it. `measure`: train and report facts only; the shared model does not use the
result. `probe`: return one loss or gradient before the policy chooses."""
Answer = Outcome | Callable[[], Outcome]
"""A client's answer. A function is called only when its facts are needed, so that a simulator can train in batches."""


StepFacts = Mapping[str, float | FloatArray]
"""Name -> a number about a step, or one number per answer of the step."""


class Task(NamedTuple):
    """One client's work on one version of the model."""

    id: int
    client: ClientId
    kind: Kind
    step: int
    """Version of the model that the client gets, which is the number of steps made before."""
    began: float
    weight: float = 0.0
    """Weight that the policy gave the task."""
    facts: frozenset[Need] = frozenset()
    """Facts to report beside the model, the loss and the seconds."""
    probe: ProbeKind = "loss"
    samples: int = 0
    """For a probe: number of samples to use; 0 = all."""
    job: int = 0
    """Number of training tasks that the client got before."""
    work: float = 1.0
    """How much to train: a multiple of the configured local training, in units of local steps, at least one step."""


@dataclass(frozen=True, eq=False)
class Wait:
    """When the policy decides again: at the latest when none of its tasks is in flight."""

    answers: int = 0
    """Number of answers in hand that ends the wait; 0 = wait for all tasks in flight."""
    seconds: float = math.inf
    """Longest wait from now. With no answer in hand, the wait continues as long as a task is in flight."""
    fresh: bool = False
    """Count only tasks on the current model version: stale ones neither end nor prolong the wait."""


@dataclass(frozen=True, eq=False)
class Apply:
    """The answers in hand that make the next model: task ids, weights and mode."""

    ids: IntArray
    weights: FloatArray
    mode: Mode = "average"
    facts: StepFacts = field(default_factory=dict)
    """What the policy tells its server rule beside the weights (`Answers.facts`): name -> a number about the step, or
    an array with one number per answer."""


_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Move:
    """A policy's decision: the coordinator does `apply` and `drop` first, then `start` with the new model."""

    start: IntArray = field(default_factory=_NOBODY.copy)
    """Rows of the clients that get the model and start to train now."""
    weights: FloatArray = field(default_factory=partial(np.zeros, 0))
    """Planned weight of each of them; `View.in_hand` shows it with the answer."""
    apply: Apply | None = None
    """None = no step: the model stays as it is."""
    drop: IntArray = field(default_factory=_NOBODY.copy)
    """Ids of tasks in flight to give up; used only together with `apply`."""
    wait: Wait = field(default_factory=Wait)
    mode: Mode = "average"
    """Aggregation mode that the planned weights are meant for; recorded and shown."""
    why: Diagnostics = field(default_factory=Diagnostics)
    work: FloatArray | None = None
    """How much each of them trains (`Task.work`); None = 1 for all. The policy must declare `sets_work`, and the host
    must offer `Need.WORK`."""


@dataclass(frozen=True, eq=False)
class Step:
    """The answers that the transport aggregates into the next model; afterwards it calls `Coordinator.stepped`."""

    number: int
    """Number of this step, counted from 1; also the version of the model that it makes."""
    answers: tuple[tuple[Task, float], ...]
    """Tasks and the weights of their answers; empty = the model does not change."""
    mode: Mode
    dropped: tuple[Task, ...] = ()
    scale: float = 1.0
    """Fraction of the step to make; below 1 if all clients in the step reached their weight caps (`fedpace.trust`)."""
    facts: StepFacts = field(default_factory=dict)
    """See `Apply.facts`; arrays have one entry per answer."""

    @property
    def fresh(self) -> bool:
        """Whether no answer is stale: all clients trained from the current version."""
        return all(task.step == self.number - 1 for task, _ in self.answers)

    def without(self, tasks: Container[int]) -> Step:
        """Return the step without the answers to `tasks`.

        In mode `average` the weights of the remaining answers are scaled to sum 1.
        """
        kept = [task.id not in tasks for task, _ in self.answers]
        left = tuple(answer for answer, stays in zip(self.answers, kept, strict=True) if stays)
        total = sum(weight for _, weight in left)
        if self.mode == "average" and total > 0:
            left = tuple((task, weight / total) for task, weight in left)
        facts = {name: np.asarray(value)[kept] if np.ndim(value) else value for name, value in self.facts.items()}
        return replace(self, answers=left, facts=facts)


@dataclass(frozen=True, eq=False)
class Actions:
    """What the transport must do now: make the step, then send the new model with the tasks."""

    tasks: tuple[Task, ...] = ()
    step: Step | None = None
    warmup: bool = False
    """Whether the tasks are a warm-up that must end before the policy decides."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.tasks) or self.step is not None


S = TypeVar("S")


class Policy(Described, Protocol[S]):
    """Decides which clients start, when the model steps and with which weights, with or without rounds.

    Derive a policy from `fedpace.core.types.Traits`. Its state and configuration follow the rules for a Selector.
    `fedpace.core.rounds.Rounds` turns a Selector into a policy.
    """

    rounds: ClassVar[bool]
    """True: when the wait is over, the coordinator applies the answers in hand, drops the other tasks, and lets the
    policy start the next round. False: the policy decides what happens when the wait is over."""

    def init(self) -> S:
        """Return the state before the first decision."""

    def probe(self, state: S, view: View, rng: np.random.Generator) -> Probe | None:
        """Return the probe to make before the next decision, or None; called when the policy waits for nothing."""

    def decide(self, state: S, view: View, rng: np.random.Generator) -> tuple[Move, S]:
        """Return the next move and the new state; called at the start, and whenever the wait of the last move ends."""

    def observe(self, state: S, report: Report) -> S:
        """Return the state after a step; the report lists the tasks that were applied, failed or given up."""
