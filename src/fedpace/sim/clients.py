"""The simulated clients: `Clients` trains, measures or answers a probe for each task, and builds the reports.

Tasks that end together are computed together, because engines are faster on large batches. Only tasks that are answered
in time are computed.

`ControlVariates` are those of SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II): local steps go along
g_i(y) - c_i + c, and afterwards c_i <- c_i - c + (x - y_i) / (steps x lr). The paper updates c with |S|/m times the
plain mean over the cohort, which assumes uniform selection; under any other, c would drift away from the clients' c_i.
Here each change is weighted by the client's share, so c = sum_i share_i c_i holds after every round. If a scheme always
selects the same clients, the variates of the others would stay at 0, so the warm-up sets every client's variate to its
gradient (option I).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import Vector
from fedpace.core.tasks import Task
from fedpace.core.types import Need, Outcome
from fedpace.numerics.count_sketch import CountSketch
from fedpace.sim.engines.engine import Engine
from fedpace.sim.trainers import Trainer
from fedpace.sim.training import WARM_UP_STEP, LocalResult


class ControlVariates:
    """The server's variate c and the clients' variates c_i. A client that never took part has c_i = 0, not stored.

    Args:
        zero: a zero vector of the model's length.
        shares: the clients' weights in the objective.
    """

    def __init__(self, zero: Vector, shares: FloatArray) -> None:
        self._shares = shares
        self._own: dict[int, Vector] = {}
        self._zero = zero
        self.server = zero

    def of(self, client: int) -> Vector:
        """Return c_i of a client."""
        return self._own.get(client, self._zero)

    def replace(self, client: int, variate: Vector) -> None:
        """Set c_i, and move c by the client's share of the change."""
        self.server = self.server + (variate - self.of(client)) * float(self._shares[client])
        self._own[client] = variate

    def tensors(self) -> dict[str, Vector]:
        """Return the state as named tensors, for a checkpoint."""
        return {"server": self.server} | {str(client): variate for client, variate in self._own.items()}

    def load(self, tensors: Mapping[str, Vector]) -> None:
        """Restore the state that `tensors` returned."""
        self.server = tensors["server"]
        self._own = {int(client): variate for client, variate in tensors.items() if client != "server"}

    def round(self) -> RoundVariates:
        """Return the variates for one round, in which the cohort trains with a fixed c."""
        return RoundVariates(self, self.server)


class RoundVariates:
    """The server's c, frozen for one round."""

    def __init__(self, variates: ControlVariates, server: Vector) -> None:
        self._variates = variates
        self._server = server

    def correction(self, client: int) -> Vector:
        """Return what is added to each of the client's gradients, c - c_i."""
        return self._server - self._variates.of(client)

    def learn(self, client: int, drift: Vector) -> None:
        """Update c_i after local training; `drift` is (x - y_i) / (steps x lr)."""
        self._variates.replace(client, self._variates.of(client) - self._server + drift)


MAX_EARLY_BYTES = 2**29
"""Most bytes of trained models that are kept until their step, when a scheme asks for reports before the step."""


class Clients:
    """The clients of one run.

    Args:
        trainer: the clients' data, model and training options.
        engine: computes the clients' tasks.
        models: version -> model; the simulation updates it.
        variates: SCAFFOLD's control variates; None for other algorithms.
        rounds: whether each client trains a version of the model at most once. If so, random draws are keyed by the
            version; otherwise by the number of tasks that the client had before.
        seed: of the update sketches.
        tell_losses: whether clients report their training losses one by one.
    """

    def __init__(
        self,
        trainer: Trainer,
        engine: Engine,
        models: Mapping[int, Vector],
        variates: ControlVariates | None,
        *,
        rounds: bool,
        seed: int,
        tell_losses: bool = True,
    ) -> None:
        self._trainer = trainer
        self._engine = engine
        self._models = models
        self._variates = variates
        self._rounds = rounds
        self._tell_losses = tell_losses
        self._sketch = CountSketch(trainer.trainable, trainer.training.sketch, seed=seed)
        self._arrived: dict[int, tuple[Task, float]] = {}
        self._compute: dict[int, float] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._results: dict[int, LocalResult] = {}
        """Task -> trained model, for tasks that had to report before the step that applies them."""
        self._max_early = max(1, MAX_EARLY_BYTES // trainer.message_bytes)

    def add_arrival(self, task: Task, seconds: float, compute: float = -1.0) -> partial[Outcome]:
        """Note that a task has ended; return a function that computes its outcome when called.

        Args:
            task: the task.
            seconds: that it took.
            compute: part of the seconds that grew with the work; below 0 = unknown.
        """
        self._arrived[task.id] = (task, seconds)
        if compute >= 0:
            self._compute[task.id] = compute
        return partial(self._outcome, task)

    def _outcome(self, task: Task) -> Outcome:
        """Return a client's report; the first call also computes the other tasks of this kind that have arrived."""
        if task.id not in self._outcomes:
            together = [
                other
                for other, _ in self._arrived.values()
                if (other.kind, other.step) == (task.kind, task.step) and other.id not in self._outcomes
            ]
            if task.kind == "train":
                self._train_early()
            elif task.kind == "measure":
                self._measure(sorted(together, key=lambda other: other.id))
            else:
                self._probe(sorted(together, key=lambda other: other.id))
        self._arrived.pop(task.id)
        return self._outcomes.pop(task.id)

    def forget(self, tasks: Iterable[int]) -> None:
        """Drop the reports of tasks whose answers the server refused."""
        for task in tasks:
            self._arrived.pop(task, None)
            self._outcomes.pop(task, None)
            self._compute.pop(task, None)

    def train(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, LocalResult]]:
        """Train the tasks' clients and yield the results one by one, so that not all models are in memory at once.

        Tasks that were trained early for their reports are not trained again, unless their models exceeded
        `MAX_EARLY_BYTES`.
        """
        late: list[Task] = []
        for task in tasks:
            if task.id in self._results:
                yield task, self._results.pop(task.id)
            else:
                late.append(task)
        yield from self._train(late)

    def _train_early(self) -> None:
        """Train all tasks that have arrived, because a report is needed before the step."""
        waiting = [task for task, _ in self._arrived.values() if task.kind == "train" and task.id not in self._results]
        for task, result in self._train(sorted(waiting, key=lambda other: other.id)):
            if len(self._results) < self._max_early:
                self._results[task.id] = result

    def _train(self, tasks: list[Task]) -> Iterator[tuple[Task, LocalResult]]:
        losses: dict[int, float] = {}
        updates: dict[int, FloatArray] = {}
        for group, turns in self._groups(tasks):
            variates = None if self._variates is None else self._variates.round()
            corrections = None if variates is None else variates.correction
            clients, received = [_client_row(task) for task in group], [self._models[task.step] for task in group]
            # Where all work is 1, engines are called without it: code that replaces their methods need not know it.
            work = () if all(task.work == 1 for task in group) else ([task.work for task in group],)
            if len({*turns}) == len({task.step for task in group}) == 1:
                results = self._engine.train(received[0], clients, turns[0], corrections, *work)
            else:
                results = self._engine.train_from(received, clients, turns, corrections, *work)
            for task, model, result in zip(group, received, results, strict=True):
                if variates is not None:
                    drift = (model - result.parameters) / (result.steps * self._trainer.training.lr)
                    variates.learn(_client_row(task), drift)
                losses[task.id] = result.loss
                if Need.UPDATE in task.facts:
                    updates[task.id] = self._sketched(result.parameters - model)
                yield task, result
        for step in sorted({task.step for task in tasks}):
            self._report([task for task in tasks if task.step == step], losses, updates, self._models[step])

    def _groups(self, tasks: list[Task]) -> Iterator[tuple[list[Task], list[int]]]:
        """Yield groups of tasks to train in one engine call, with the key of each task's random draws."""
        if not self._rounds and tasks:
            yield tasks, [task.job for task in tasks]
            return
        for step in sorted({task.step for task in tasks}):
            group = [task for task in tasks if task.step == step]
            yield group, [step] * len(group)

    def _measure(self, tasks: list[Task]) -> None:
        """Compute reports of clients that measure the model without changing it."""
        model, clients = self._models[tasks[0].step], [_client_row(task) for task in tasks]
        if self._variates is not None:
            for client, gradient in zip(clients, self._engine.gradients(model, clients), strict=True):
                self._variates.replace(client, gradient)
        updates: dict[int, FloatArray] = {}
        if Need.UPDATE in tasks[0].facts:
            trained = self._engine.train(model, clients, WARM_UP_STEP)
            for task, result in zip(tasks, trained, strict=True):
                updates[task.id] = self._sketched(result.parameters - model)
        losses = dict(zip((task.id for task in tasks), self._engine.local_losses(model, clients), strict=True))
        self._report(tasks, losses, updates, model)

    def _probe(self, tasks: list[Task]) -> None:
        """Answer probes: with losses, or with sketches of one full-batch gradient step."""
        first, clients = tasks[0], [_client_row(task) for task in tasks]
        model = self._models[first.step]
        if first.probe == "loss":
            losses = self._engine.local_losses(model, clients, samples=first.samples, step=first.step)
            answers = [Outcome(client, loss=loss) for client, loss in zip(clients, losses, strict=True)]
        else:
            lr, gradients = self._trainer.training.lr, self._engine.gradients(model, clients)
            answers = [Outcome(c, update=self._sketched(-lr * g)) for c, g in zip(clients, gradients, strict=True)]
        self._outcomes |= {task.id: outcome for task, outcome in zip(tasks, answers, strict=True)}

    def _sketched(self, update: Vector) -> FloatArray:
        """Return the sketch of an update, without the model's buffers."""
        return self._sketch(update[: self._trainer.trainable])

    def _report(
        self, tasks: list[Task], losses: Mapping[int, float], updates: Mapping[int, FloatArray], model: Vector
    ) -> None:
        """Store the reports of clients that received `model`; moments only for tasks that ask for them."""
        tasks = [task for task in tasks if task.id in self._arrived]  # others have reported already
        asked = [task for task in tasks if Need.MOMENT in task.facts]
        targets = any(Need.TARGETS in task.facts for task in asked)
        found = self._engine.moments(model, [_client_row(task) for task in asked], targets=targets) if asked else []
        moments = {task.id: moment for task, moment in zip(asked, found, strict=True)}
        counts, arrived = self._trainer.counts, self._arrived
        for task in tasks:
            number, client = task.id, _client_row(task)
            self._outcomes[number] = Outcome(
                client,
                arrived[number][1],
                True,
                losses[number] if self._tell_losses else math.nan,
                float(counts[client]),
                moments.get(number),
                updates.get(number),
                measured=arrived[number][1],
                compute=self._compute.pop(number, math.nan),
            )


def _client_row(task: Task) -> int:
    client: int = task.client  # type: ignore[assignment]
    return client
