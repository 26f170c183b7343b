"""Two levels of aggregation: edges collect the devices of a region and are themselves clients of a root.

    root = Level(Coordinator(selector), make_server("nesterov"), model, folder)        # clients: the edges
    edge = Edge("europe", Coordinator(make_selector("random", k=0)), model, folder)     # clients: devices of a region

    for task in root.due(now).tasks:             # a task of the root is a round of an edge
        edge.begin(task, root.sent(task), now)
    for task in edge.due(now).tasks: ...         # send edge.sent(task) to the device task.client
    edge.receive(task.id, outcome, trained, now)
    edge.commit()                                # the answers received so far count, whatever happens to the edge
    if edge.result is not None:                  # the round is over: one vector, however many devices answered
        root.receive(edge.result.task, edge.result.outcome(), edge.result.model, now)

Root and edge run the same `Level`: a coordinator, an aggregator and the model. An edge answers with the average of its
devices' models, weighted by their shares in the region. The root weights edges by their samples (`Settings(shares =
"samples")`), so that the model is the one that a flat federation computes, as long as no device fails. A slow or dead
edge is a slow or lost client of the root: its policy, deadline and server rule deal with it.

With a folder, `commit` saves the level before answers are acknowledged. A level that is killed goes on from its last
commit; a device that got no acknowledgement sends its answer again, and an answer that counted is not counted twice.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import FloatArray, float_array
from fedpace._base.errors import InputError, OrderError
from fedpace._base.files import json_bytes, keeping, npz_bytes, read_json, read_npz, write_atomically
from fedpace.core.aggregation import Aggregator, Trained
from fedpace.core.coordinator import Coordinator
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Actions, Step, Task
from fedpace.core.types import Outcome
from fedpace.server.average import Average

COORDINATOR, ARRAYS, ROUND, CURRENT = "coordinator", "level.npz", "round.json", "current.json"


class Level:
    """A coordinator, an aggregator and the model, for the root and for edges.

    Args:
        coordinator: selects among the clients of this level.
        rule: the server rule.
        model: the first model, a flat vector.
        folder: where `commit` saves; None = nothing is saved.
    """

    def __init__(
        self, coordinator: Coordinator, rule: ServerRule[Any], model: ArrayLike, folder: Path | None = None
    ) -> None:
        self.coordinator, self.folder = coordinator, folder
        first = np.array(float_array(model, "a model"))
        self.aggregator = Aggregator(rule, lambda: np.zeros(first.size))
        self.models: dict[int, FloatArray] = {coordinator.step: first}
        """Version -> model, for all versions that answers may still come from."""
        self.answers: dict[int, FloatArray] = {}
        """Task id -> trained model of the answers that no step has used yet."""

    @property
    def model(self) -> FloatArray:
        """The current model."""
        return self.models[self.coordinator.step]

    def sent(self, task: Task) -> FloatArray:
        """Return the model to send with a task."""
        return self.models[task.step]

    def due(self, now: float, available: Any = None) -> Actions:
        """Make the step that is due, if any, and return it with the tasks that are to be sent."""
        due = self.coordinator.due(now, available)
        if due.step is not None:
            self._make(due.step, now)
        return due

    def receive(self, task: int, outcome: Outcome, trained: ArrayLike, now: float) -> bool:
        """Take the answer to a task; return False if it is no longer awaited, as when it was taken before."""
        vector = np.array(float_array(trained, "a trained model"))
        if vector.shape != self.model.shape:
            raise InputError(f"expected a model of {self.model.size} numbers, but {vector.size} came")
        if not self.coordinator.receive(task, outcome, now):
            return False
        self.answers[task] = vector
        return True

    def lost(self, task: int, now: float) -> bool:
        """Record that a client will not answer."""
        return self.coordinator.lost(task, now)

    def commit(self) -> None:
        """Save everything. Acknowledge answers only after this: what is saved is not lost."""
        if self.folder is None:
            return
        scalars, vectors = self.aggregator.saved()
        arrays = {f"model/{version}": model for version, model in self.models.items()}
        arrays |= {f"answer/{task}": answer for task, answer in self.answers.items()}
        arrays |= {f"rule/{name}": np.asarray(vector) for name, vector in vectors.items()}
        number = 1 + (read_json(self.folder / CURRENT)["commit"] if (self.folder / CURRENT).exists() else 0)
        place = self.folder / f"commit-{number}"
        with keeping(self.folder):
            if place.exists():  # a commit that was cut off
                shutil.rmtree(place)
            place.mkdir(parents=True)
            write_atomically(place / ARRAYS, npz_bytes(arrays))
            write_atomically(place / ROUND, json_bytes(self._round() | {"rule": scalars}))
            self.coordinator.save(place / COORDINATOR)
            write_atomically(self.folder / CURRENT, json_bytes({"commit": number}))  # from here on it counts
            shutil.rmtree(self.folder / f"commit-{number - 1}", ignore_errors=True)

    def _round(self) -> dict[str, Any]:
        return {}

    def _load(self, folder: Path) -> dict[str, Any]:
        """Take over what `commit` wrote; return the contents of its small file."""
        arrays = read_npz(folder / ARRAYS)
        found: dict[str, Any] = read_json(folder / ROUND)

        def under(prefix: str) -> dict[str, FloatArray]:
            return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}

        self.models = {int(version): model for version, model in under("model/").items()}
        self.answers = {int(task): answer for task, answer in under("answer/").items()}
        self.aggregator.load(found["rule"], under("rule/"))
        if self.coordinator.step not in self.models:
            raise InputError(f"{folder} has no model of step {self.coordinator.step}: it was saved by something else")
        return found

    @classmethod
    def restore(cls, folder: Path, rule: ServerRule[Any]) -> Level:
        """Return the level that was saved in a folder."""
        place = _committed(folder)
        size = next(iter(read_npz(place / ARRAYS).values())).size
        level = cls(Coordinator.restore(place / COORDINATOR), rule, np.zeros(size), folder)
        level._load(place)
        return level

    def _make(self, step: Step, now: float) -> None:
        trained = [Trained(task, self.answers[task.id], self.models[task.step]) for task, _ in step.answers]
        applied = self.aggregator.apply(self.coordinator, step, self.model, trained)
        self.coordinator.stepped(now)
        self.models[step.number] = np.asarray(applied.model, dtype=np.float64)
        for task, _ in step.answers:
            del self.answers[task.id]
        awaited = self.coordinator.task_table.versions | {step.number}
        self.models = {version: model for version, model in self.models.items() if version in awaited}


@dataclass(frozen=True, eq=False)
class Partial:
    """What an edge sends to the root after a round: one vector, however many devices answered."""

    edge: str
    task: int
    """The root's task that this answers."""
    model: FloatArray
    """The weighted average of the devices' models."""
    devices: int
    """Devices whose answers are in it."""
    seconds: float

    def outcome(self) -> Outcome:
        """Return the outcome for the root's coordinator."""
        return Outcome(self.edge, seconds=self.seconds)


class Edge(Level):
    """An aggregator of one region: each task of the root is one round of its devices.

    Args:
        name: the edge's id at the root.
        coordinator: of the region's devices; its scheme must work in rounds.
        model: a model of the right length.
        folder: where `commit` saves; None = nothing is saved.
    """

    def __init__(self, name: str, coordinator: Coordinator, model: ArrayLike, folder: Path | None = None) -> None:
        if not coordinator.policy.rounds:
            raise InputError(
                f"an edge answers the root with a round of its devices, but {coordinator.policy.name} has no rounds: "
                "use it at the root, and a scheme with rounds, such as random, at the edges"
            )
        super().__init__(coordinator, Average(), model, folder)
        self.name = name
        self.task: int | None = None
        """The root's task that the edge works on; None = it waits for one."""
        self.began = 0.0
        self.result: Partial | None = None
        """The answer to the last task, once its round is over."""

    def begin(self, task: Task, model: ArrayLike, now: float) -> bool:
        """Start a round for a task of the root; return False if the edge works on this task already."""
        if self.task == task.id or (self.result is not None and self.result.task == task.id):
            return False
        if self.task is not None:
            raise OrderError(f"edge {self.name} works on task {self.task}: task {task.id} must wait for its answer")
        vector = np.array(float_array(model, "a model"))
        self.models[self.coordinator.step] = vector
        self.task, self.began, self.result = task.id, now, None
        return True

    def due(self, now: float, available: Any = None) -> Actions:
        """Return the tasks to send; when the round is over, `result` holds the answer for the root."""
        if self.task is None:
            return Actions()
        due = super().due(now, available)
        if due.step is not None and due.step.answers:
            count = len(due.step.answers)
            self.result = Partial(self.name, self.task, self.model, count, now - self.began)
            self.task = None
        return due

    def _round(self) -> dict[str, Any]:
        done = None if self.result is None else [self.result.task, self.result.devices, self.result.seconds]
        return {"name": self.name, "task": self.task, "began": self.began, "result": done}

    @classmethod
    def restore(cls, folder: Path, rule: ServerRule[Any] | None = None) -> Edge:
        """Return the edge that was saved in a folder, in the middle of its round."""
        place = _committed(folder)
        found = read_json(place / ROUND)
        size = next(iter(read_npz(place / ARRAYS).values())).size
        edge = cls(found["name"], Coordinator.restore(place / COORDINATOR), np.zeros(size), folder)
        edge._load(place)
        edge.task, edge.began = found["task"], found["began"]
        if found["result"] is not None:
            task, devices, seconds = found["result"]
            edge.result = Partial(edge.name, task, edge.model, devices, seconds)
        return edge


def _committed(folder: Path) -> Path:
    """Return the folder of the last complete commit."""
    return folder / f"commit-{read_json(folder / CURRENT)['commit']}"
