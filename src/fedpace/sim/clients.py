"""What the simulated clients do with a task: they train, measure or answer a probe, and report.

Tasks that end together are worked on together, so that engines keep their speed; and only those that are answered in
time are worked on at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch

from fedpace.core.checks import FloatArray
from fedpace.core.tasks import Task
from fedpace.core.types import Need, Outcome
from fedpace.sim.engines.base import Engine
from fedpace.sim.scaffold import ControlVariates
from fedpace.sim.sketch import UpdateSketch
from fedpace.sim.trainer import Trainer
from fedpace.sim.training import WARM_UP, LocalResult


class Clients:
    """The clients of one run.

    Args:
        trainer: their data, model and options.
        engine: where they are worked on.
        models: version -> model, kept by the simulation.
        variates: SCAFFOLD's, where it is used.
        rounds: whether a version of the model is trained once by each client at the most: its draws are then keyed by
            the version, and else by how many tasks the client had before.
        seed: of the sketches.
    """

    def __init__(
        self,
        trainer: Trainer,
        engine: Engine,
        models: Mapping[int, torch.Tensor],
        variates: ControlVariates | None,
        *,
        rounds: bool,
        seed: int,
    ) -> None:
        self._trainer = trainer
        self._engine = engine
        self._models = models
        self._variates = variates
        self._rounds = rounds
        self._sketch = UpdateSketch(trainer.initial.numel(), trainer.training.sketch, seed=seed)
        self._arrived: dict[int, tuple[Task, float]] = {}
        self._outcomes: dict[int, Outcome] = {}

    def arrive(self, task: Task, seconds: float) -> partial[Outcome]:
        """Note that a task has ended after so many seconds; return what tells its outcome."""
        self._arrived[task.id] = (task, seconds)
        return partial(self._outcome, task)

    def _outcome(self, task: Task) -> Outcome:
        """Return what a client reports; the first to be asked for brings those that arrived with it."""
        if task.id not in self._outcomes:
            together = [
                other
                for other, _ in self._arrived.values()
                if (other.kind, other.step) == (task.kind, task.step) and other.id not in self._outcomes
            ]
            if task.kind == "train":
                list(self.train([task]))
            elif task.kind == "measure":
                self._measure(sorted(together, key=lambda other: other.id))
            else:
                self._probe(sorted(together, key=lambda other: other.id))
        self._arrived.pop(task.id)
        return self._outcomes.pop(task.id)

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, LocalResult]]:
        """Train, and yield the results one by one in the order of `tasks`, so that not all need be in memory."""
        mine = list(tasks)
        losses: dict[int, float] = {}
        updates: dict[int, FloatArray] = {}
        for step, turn in sorted({self._key(task) for task in mine}):
            model, group = self._models[step], [task for task in mine if self._key(task) == (step, turn)]
            variates = None if self._variates is None else self._variates.round()
            corrections = None if variates is None else variates.correction
            results = self._engine.train(model, [_client(task) for task in group], turn, corrections)
            for task, result in zip(group, results, strict=True):
                if variates is not None:
                    drift = (model - result.parameters) / (result.steps * self._trainer.training.lr)
                    variates.learn(_client(task), drift)
                losses[task.id] = result.loss
                if Need.UPDATE in task.facts:
                    updates[task.id] = self._sketch(result.parameters - model)
                yield task, result
            self._report(group, losses, updates, model)

    def _key(self, task: Task) -> tuple[int, int]:
        """The version that a task trains, and what names its draws."""
        return task.step, task.step if self._rounds else task.job

    def _measure(self, tasks: list[Task]) -> None:
        """What clients report on the model that they were given without changing it."""
        model, clients = self._models[tasks[0].step], [_client(task) for task in tasks]
        if self._variates is not None:
            for client, gradient in zip(clients, self._engine.gradients(model, clients), strict=True):
                self._variates.replace(client, gradient)
        updates: dict[int, FloatArray] = {}
        if Need.UPDATE in tasks[0].facts:
            trained = self._engine.train(model, clients, WARM_UP)
            for task, result in zip(tasks, trained, strict=True):
                updates[task.id] = self._sketch(result.parameters - model)
        losses = dict(zip((task.id for task in tasks), self._engine.local_losses(model, clients), strict=True))
        self._report(tasks, losses, updates, model)

    def _probe(self, tasks: list[Task]) -> None:
        """The losses, or the sketches of one full-batch gradient step, that the scheme asks for."""
        first, clients = tasks[0], [_client(task) for task in tasks]
        model = self._models[first.step]
        if first.probe == "loss":
            losses = self._engine.local_losses(model, clients, samples=first.samples, step=first.step)
            answers = [Outcome(client, loss=loss) for client, loss in zip(clients, losses, strict=True)]
        else:
            lr, gradients = self._trainer.training.lr, self._engine.gradients(model, clients)
            answers = [Outcome(c, update=self._sketch(-lr * g)) for c, g in zip(clients, gradients, strict=True)]
        self._outcomes |= {task.id: outcome for task, outcome in zip(tasks, answers, strict=True)}

    def _report(
        self, tasks: list[Task], losses: Mapping[int, float], updates: Mapping[int, FloatArray], model: torch.Tensor
    ) -> None:
        """Note what everybody reports that was given `model`; a moment only where it is asked for."""
        asked = [task for task in tasks if Need.MOMENT in task.facts]
        targets = any(Need.TARGETS in task.facts for task in asked)
        found = self._engine.moments(model, [_client(task) for task in asked], targets=targets) if asked else []
        moments = {task.id: moment for task, moment in zip(asked, found, strict=True)}
        samples, arrived = self._trainer.samples, self._arrived
        for task in tasks:
            number, client = task.id, _client(task)
            self._outcomes[number] = Outcome(
                client,
                arrived[number][1],
                True,
                losses[number],
                float(samples(client)),
                moments.get(number),
                updates.get(number),
            )


def _client(task: Task) -> int:
    client: int = task.client  # type: ignore[assignment]
    return client
