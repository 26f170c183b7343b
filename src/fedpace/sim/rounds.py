"""The simulator: a transport that delivers the coordinator's tasks at virtual times, and steps the shared model.

`simulate` is a generator without an end. Stopping (`stopping.py`), records and progress bars consume it, so none of
them is known here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, ParamSpec

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InfeasibleError
from fedpace.core.coordinator import Coordinator
from fedpace.core.events import Events
from fedpace.core.progress import Turn
from fedpace.core.stepping import Gather, ServerStep, Source, Vector, double, step_facts
from fedpace.core.tasks import Due, Policy, Step, Task
from fedpace.core.types import DelayConfig, Selector
from fedpace.data.federated import DataConfig
from fedpace.delays.availability import Availability
from fedpace.models.base import ModelConfig
from fedpace.records.round import Round, recorded
from fedpace.server import server_step
from fedpace.sim.clients import ANSWER_BYTES, Clients
from fedpace.sim.clock import Clock
from fedpace.sim.endings import endings
from fedpace.sim.engines.choice import EngineOptions
from fedpace.sim.engines.threads import one_thread
from fedpace.sim.fleet import Fleet, virtual_time
from fedpace.sim.scaffold import ControlVariates
from fedpace.sim.setup import check_scheme, offers, settings
from fedpace.sim.speeds import Speeds
from fedpace.sim.trainers import trainer_for
from fedpace.sim.training import DivergedError, LocalResult, Training

__all__ = ["Evaluate", "Fleet", "Simulation", "simulate", "virtual_time"]

P = ParamSpec("P")
Evaluate = Callable[[int, float], bool]
"""Whether a round is evaluated, by its number and by the virtual seconds at its end."""


class Simulation:
    """The pieces of one run.

    Data, initial model, delays and absences depend on `seed` alone, never on the selector: runs under one seed are
    paired. Everything that can be wrong with the configuration is found here, not in the first round.
    """

    def __init__(
        self,
        data: DataConfig,
        model: ModelConfig,
        delays: DelayConfig,
        selector: Selector[Any] | Policy[Any],
        *,
        training: Training | None = None,
        fleet: Fleet | None = None,
        availability: Availability | None = None,
        clock: Clock | None = None,
        engine: EngineOptions | None = None,
        server: ServerStep[Any] | None = None,
        seed: int = 0,
    ) -> None:
        fleet = fleet or Fleet()
        self.scheme = selector
        self.trainer = trainer = trainer_for(data.build(seed=seed), model, training or Training(), seed=seed)
        clients = trainer.data.clients
        self.engine_choice = check_scheme(selector, trainer, engine)
        self.engine = self.engine_choice.build(trainer)
        histograms = trainer.data.label_histograms()
        self.time = virtual_time(
            trainer.data,
            delays,
            fleet=fleet,
            availability=availability,
            clock=clock,
            training=trainer.training,
            model_bytes=trainer.message_bytes,
            seed=seed,
        )
        self.speeds = Speeds(trainer, self.expected_delays)
        how = settings(selector, trainer, self.time, fleet, seed=seed)
        self.coordinator = Coordinator(selector, how, offers=offers(trainer.data))
        self.coordinator.join(
            range(clients),
            samples=[float(len(samples)) for samples in trainer.data.train],
            delays=self.expected_delays if fleet.delays == "expected" else None,
            labels=histograms,
        )
        self.models: dict[int, Vector] = {0: trainer.initial}
        """Version -> shared model: the current one, and those that clients in flight were given."""
        self.events = Events()
        self.server = server_step(selector, server)
        self.server_state: Any = self.server.init(self._zero())
        self.variates: ControlVariates | None = None
        if trainer.training.algorithm == "scaffold":
            self.variates = ControlVariates(trainer.zeros(len(trainer.initial)), self.coordinator.view().share)
        rounds = self.coordinator.policy.rounds
        self.clients = Clients(trainer, self.engine, self.models, self.variates, rounds=rounds, seed=seed)

    @property
    def parameters(self) -> Vector:
        """The shared model."""
        return self.models[self.coordinator.step]

    @property
    def expected_delays(self) -> FloatArray:
        """Mean seconds of each client."""
        return self.time.expected

    def rounds(self, evaluate: Evaluate | None = None) -> Generator[Round, None, None]:
        """Yield the initial model as round 0, then one round after the other.

        `evaluate` says by number and clock which rounds are evaluated; None = all. A simulation that was restored from
        a checkpoint goes on after the round that it was taken in. The engine is closed with the iterator.
        """
        with closing(self.engine):
            if self.coordinator.step == 0:
                metric, loss = self._evaluate(0)
                by_speed = self.speeds.judge(self.parameters)
                yield Round(
                    0, 0.0, 0.0, 0.0, metric, loss, work=0.0, wasted=0, bytes_down=0, bytes_up=0, by_speed=by_speed
                )
            while True:
                yield self._round(evaluate)

    def _round(self, evaluate: Evaluate | None) -> Round:
        """Carry tasks out and bring answers back until the model has stepped."""
        began = self.time.now
        tick, rows = self.time.wait(self.coordinator.step)
        present = None if rows.size == self.time.clients else rows.tolist()
        while True:
            self._deliver()
            due = self.coordinator.due(self.time.now, present)
            if due.step is not None:
                break
            if due:
                self._launch(due, tick)
            else:
                self._pass_time()
        with one_thread():  # adding models up with several would have them take the workers' cores while they wait
            losses, moved = self._step(due.step)
        turn = self.coordinator.stepped(
            seconds=self.events.waited if self.coordinator.policy.rounds else None, facts=step_facts(self.server_state)
        )
        for version in set(self.models) - self.coordinator.flight.versions - {self.coordinator.step}:
            del self.models[version]
        self._launch(due, tick)
        return self._recorded(turn, losses, moved, began, evaluate)

    def _deliver(self) -> None:
        """Hand over what has come by now."""
        for task, event in self.events.come(self.coordinator, self.time.now):
            if task.kind == "measure" and event.when == task.began:
                self.coordinator.at.turn.work += event.seconds  # free on the clock, and work all the same
            if event.crashed:
                self.coordinator.lost(task.id, event.when)
            else:
                self.coordinator.receive(task.id, self.clients.arrive(task, event.seconds), event.when)

    def _pass_time(self) -> None:
        """Go to the next instant at which something happens."""
        self.time.now = self.events.next_instant(self.coordinator)
        if self.time.now == np.inf:
            raise InfeasibleError(
                f"{self.coordinator.policy.name} waits, but nobody is at work: it would wait for ever"
            )

    def _launch(self, due: Due, tick: int) -> None:
        """Send tasks out; each ends when its client's delay has passed."""
        if due.tasks:
            self.events.add(endings(due, self.time, tick, in_rounds=self.coordinator.policy.rounds))

    def _step(self, step: Step) -> tuple[list[float], bool]:
        """Train who answered in time, and step; return the losses, and whether the model moved."""
        gather = Gather(self.server, self._zero(), mean=step.mode == "average" and step.fresh)
        if step.afresh:
            self.server_state = self.server.init(self._zero())
        # Only rules that see each update ask whose it is.
        share_of = self.coordinator.share_of() if "rows" in self.server.takes else None
        losses: list[float] = []
        buffers: list[tuple[Vector, float]] = []
        cut, buffered = self.trainer.trainable, len(self.trainer.initial) > self.trainer.trainable
        sent = {version: self.models[version][:cut] for version in {task.step for task, _ in step.answers}}
        trained: Iterable[tuple[Task, LocalResult]] = self.clients.train(task for task, _ in step.answers)
        if self.coordinator.settings.trust and len(step.answers) * self.trainer.message_bytes <= ANSWER_BYTES:
            step, trained = self._screened(step, list(trained))
        weights = {task.id: weight for task, weight in step.answers}
        for task, result in trained:
            source = None if share_of is None else Source(task.client, task.step, share_of(task.client) or 0.0)
            gather.add(
                result.parameters[:cut] if buffered else result.parameters, sent[task.step], weights[task.id], source
            )
            if buffered:
                buffers.append((self.trainer.buffers(result.parameters), weights[task.id]))
            losses.append(result.loss)
        answers = gather.answers(step.number - 1, self.coordinator.flight.versions, share_of)
        model = self.models[0 if step.afresh else step.number - 1]
        if answers is not None:
            stepped, self.server_state = self.server.apply(self.server_state, model[:cut], answers)
            model = self.trainer.next_model(stepped, model, buffers)
        self.models[step.number] = model
        return losses, answers is not None

    def _screened(
        self, step: Step, trained: list[tuple[Task, LocalResult]]
    ) -> tuple[Step, list[tuple[Task, LocalResult]]]:
        """Return what is left of a step, and the answers that may count; the others have failed."""
        cut = self.trainer.trainable
        refused = self.coordinator.screen(
            lambda: (double((result.parameters - self.models[task.step])[:cut]) for task, result in trained)
        )
        if refused:
            step = self.coordinator.refuse(refused)
            self.clients.forget(refused)
        return step, [(task, result) for task, result in trained if task.id not in refused]

    def _recorded(self, turn: Turn, losses: list[float], moved: bool, began: float, evaluate: Evaluate | None) -> Round:
        number, judged = self.coordinator.step, {}
        if evaluate is None or evaluate(number, self.time.now):
            metric, loss = self._evaluate(number)
            judged = {"metric": metric, "loss": loss, "by_speed": self.speeds.judge(self.parameters)}
        return recorded(
            self.coordinator,
            turn,
            since=began,
            losses=losses,
            model_bytes=self.trainer.message_bytes,
            stepping=step_facts(self.server_state) if moved else {},
            **judged,
        )

    def _zero(self) -> Vector:
        return self.trainer.zeros(self.trainer.trainable, double=True)

    def _evaluate(self, number: int) -> tuple[float, float]:
        metric, loss = self.engine.evaluate(self.parameters)
        if not np.isfinite(loss):
            raise DivergedError(
                f"the shared model diverged in round {number} (test loss {loss}): lower lr = {self.trainer.training.lr}"
            )
        return metric, loss


def _rounds_of(build: Callable[P, Simulation]) -> Callable[P, Iterator[Round]]:
    def simulate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Round]:
        """Run a federation and yield its rounds for as long as they are asked for; arguments as for `Simulation`."""
        return build(*args, **kwargs).rounds()

    simulate.__signature__ = inspect.signature(build)  # type: ignore[attr-defined]
    return simulate


simulate = _rounds_of(Simulation)
