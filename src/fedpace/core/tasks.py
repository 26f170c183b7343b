"""What the coordinator and its transports say to each other: tasks, answers, steps; and what a policy decides.

A task is one client's work on one version of the shared model. It is in flight until the transport says that it was
answered or lost; an answer to a task of the policy's is then in hand until it is applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.types import ClientId, Described, Diagnostics, Mode, Need, Outcome, Probe, ProbeKind, Report, View

Kind = Literal["train", "measure", "probe"]
"""`train`: train the model and send it back. `measure`: report as if, and the shared model stays as it is. `probe`: one
loss or gradient, before the policy chooses."""
Answer = Outcome | Callable[[], Outcome]
"""What came back; a function is called when the facts are needed, so that a simulator can train many tasks at once."""


class Task(NamedTuple):
    """One client's work."""

    id: int
    client: ClientId
    kind: Kind
    step: int
    """The version of the model that it is given: steps made before it."""
    began: float
    weight: float = 0.0
    """What the policy gave it."""
    facts: frozenset[Need] = frozenset()
    """What to report beside the model, the loss and the seconds."""
    probe: ProbeKind = "loss"
    samples: int = 0
    """Of a probe: samples to answer from; 0 = all."""
    job: int = 0
    """Tasks to train that the client was given before."""


@dataclass(frozen=True, eq=False)
class Wait:
    """When a policy is asked again: at the latest when none of its tasks is in flight any more."""

    answers: int = 0
    """Answers in hand that suffice; 0 = all of those in flight."""
    seconds: float = math.inf
    """How long to wait from now. A wait never ends with empty hands while somebody may still answer."""
    fresh: bool = False
    """Count tasks on the current model only: late ones neither end the wait nor prolong it."""


@dataclass(frozen=True, eq=False)
class Apply:
    """Answers in hand that make the next model."""

    ids: IntArray
    weights: FloatArray
    mode: Mode = "average"


_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Move:
    """What a policy decides: first `apply` and `drop`, then `start` with the model that comes out."""

    start: IntArray = field(default_factory=lambda: _NOBODY)
    """Rows that get the current model now."""
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """What each is meant to count for; they come back with the answers in hand."""
    apply: Apply | None = None
    """None: the model stays, and no step is counted."""
    drop: IntArray = field(default_factory=lambda: _NOBODY)
    """Tasks in flight, by id, that are given up: whatever they answer is not heard."""
    wait: Wait = field(default_factory=Wait)
    mode: Mode = "average"
    """What the weights of those that start are for: recorded and shown."""
    why: Diagnostics = field(default_factory=Diagnostics)


@dataclass(frozen=True, eq=False)
class Step:
    """Answers that the transport makes the next model of; then it calls `Coordinator.stepped`."""

    number: int
    """Steps made with this one."""
    answers: tuple[tuple[Task, float], ...]
    """Tasks and the weights of their answers; empty = the model stays as it is."""
    mode: Mode
    dropped: tuple[Task, ...] = ()
    scale: float = 1.0
    """Part of the move that is made: below 1 where all that answered have used up their weight (`fedpace.trust`)."""

    @property
    def fresh(self) -> bool:
        """Whether every answer was made from the current model."""
        return all(task.step == self.number - 1 for task, _ in self.answers)


@dataclass(frozen=True, eq=False)
class Due:
    """What the transport is to do now: the step, then the tasks with the model that comes out."""

    tasks: tuple[Task, ...] = ()
    step: Step | None = None
    warmup: bool = False
    """Whether the tasks are a warm-up that is waited for before the policy is asked."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.tasks) or self.step is not None


S = TypeVar("S")


class Policy(Described, Protocol[S]):
    """Who starts, when to step and with what weights: for rounds, and for training without rounds.

    `fedpace.core.policies.Rounds` makes one of every Selector. State and configuration are as a Selector's; derive it
    from `fedpace.core.types.Traits`.
    """

    rounds: ClassVar[bool]
    """True: when its wait is over, the coordinator applies what is in hand, gives up the rest, and asks it to start
    anew. False: it is asked, and may do something else."""

    def init(self) -> S:
        """Return the state before the first decision."""
        ...

    def probe(self, state: S, view: View, rng: np.random.Generator) -> Probe | None:
        """Name the clients to ask before deciding while none of its tasks is out, or None."""
        ...

    def decide(self, state: S, view: View, rng: np.random.Generator) -> tuple[Move, S]:
        """Decide: asked at first, and whenever the last move's wait is over."""
        ...

    def observe(self, state: S, report: Report) -> S:
        """Learn, after each step, from the tasks that were applied, failed or given up."""
        ...
