"""The simulator's main loop: `Simulation` and `simulate` run a federation in virtual time, round by round.

Look here to see how the simulator carries out the coordinator's tasks, delivers the answers and steps the shared model.
`simulate` yields rounds without end. Its callers decide when to stop (`stopping.py`), and write records or show
progress.

`SpeedGroups` evaluates the shared model on the data of fast and of slow clients: a scheme that avoids slow clients may
reach its target early at their cost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, IntArray, whole
from fedpace._base.errors import InfeasibleError, InputError
from fedpace._base.rng import stream
from fedpace.core.aggregation import Aggregator, Trained, Validation
from fedpace.core.budget import PrivacyBudget
from fedpace.core.coordinator import Coordinator
from fedpace.core.privacy import TrainingPrivacy
from fedpace.core.rounds import check_k
from fedpace.core.server_rule import ServerRule, Vector, step_facts, step_notes
from fedpace.core.settings import Settings
from fedpace.core.step_log import StepLog
from fedpace.core.sums import SumAggregator
from fedpace.core.tasks import Actions, Events, Policy, Step
from fedpace.core.types import DelayConfig, Need, Selector
from fedpace.data.federated import DataConfig, FederatedData, Samples
from fedpace.delays.availability import Availability
from fedpace.models.contract import ModelConfig
from fedpace.numerics.quantised import row_bytes
from fedpace.records.run import Round, recorded
from fedpace.server import server_step
from fedpace.server._client_memory import ClientMemory, sum_rule
from fedpace.sim.clients import Clients, ControlVariates
from fedpace.sim.clock import Clock, VirtualTime, draw_completion_times
from fedpace.sim.engines.engine import EngineChoice, EngineOptions, one_thread
from fedpace.sim.fleet import Fleet, virtual_time
from fedpace.sim.group_sums import SimulatedGroups
from fedpace.sim.trainers import Trainer, trainer_for
from fedpace.sim.training import MAX_LOSS_GROWTH, DivergedError, Training
from fedpace.trust.robust import RobustRule

__all__ = ["Evaluate", "Fleet", "Simulation", "simulate", "virtual_time"]

P = ParamSpec("P")
Evaluate = Callable[[int, float], bool]
"""Decides from a round's number and its end in virtual seconds whether the round is evaluated."""


class Simulation:
    """One simulated run: its data, model, virtual clock, coordinator, server step and clients.

    Data, initial model, delays and absences depend on `seed` alone, never on the selector. So runs with the same seed
    are paired. The constructor checks the whole configuration, so that errors show before the first round.
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
        server: ServerRule[Any] | None = None,
        robust: RobustRule | None = None,
        validation: int = 0,
        privacy: TrainingPrivacy | None = None,
        seed: int = 0,
    ) -> None:
        fleet = fleet or Fleet()
        self.privacy = privacy or TrainingPrivacy()
        self._opening = self.privacy.opening_seconds
        self.scheme, self.model = selector, model
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
        self.speeds = SpeedGroups(trainer, self.expected_delays)
        check_privacy(self.privacy, selector, trainer, robust)
        how = settings(selector, trainer, self.time, fleet, self.privacy, seed=seed)
        self.coordinator = Coordinator(selector, how, offers=offers(trainer.data, sums=self.privacy.sums))
        self.coordinator.join(
            range(clients),
            samples=[float(len(samples)) for samples in trainer.data.train],
            delays=self.expected_delays if fleet.delays == "expected" else None,
            compute=self.time.expected_compute if fleet.delays == "expected" else None,
            labels=histograms,
        )
        self._first_loss: float | None = None
        self.models: dict[int, Vector] = {0: trainer.initial}
        """Version -> shared model: the current version, and older versions that clients in flight train from."""
        self.events = Events()
        self.server = server_step(selector, server)
        masks = self.privacy.protocol == "masks"
        if self.privacy.sums:
            self.server = sum_rule(self.server, noisy=self.privacy.epsilon > 0, masks=masks)
            self.aggregator: Aggregator | SumAggregator = SumAggregator(self.server, self._zero)
        else:
            validator = self._trained_on(validation, seed)
            self.aggregator = Aggregator(self.server, self._zero, robust=robust, validation=validator, streams=True)
        self.variates: ControlVariates | None = None
        if trainer.training.algorithm == "scaffold":
            self.variates = ControlVariates(trainer.zeros(len(trainer.initial)), self.coordinator.view().share)
        self._in_rounds, self._sets_work = self.coordinator.policy.rounds, selector.sets_work
        tell_losses = not self.privacy.sums or getattr(selector, "reads_losses", False)
        self.clients = Clients(
            trainer, self.engine, self.models, self.variates, rounds=self._in_rounds, seed=seed, tell_losses=tell_losses
        )
        self.groups: SimulatedGroups | None = None
        self._unusable = False
        self.sent_bytes = self.returned_bytes = trainer.message_bytes
        """Bytes of the vectors that go to a client with a task, and of those that come back."""
        if self.privacy.sums:
            budget = PrivacyBudget(self.privacy) if self.privacy.epsilon else None
            self.groups = SimulatedGroups(self.clients, self.models, trainer, budget, seed)
            if masks and isinstance(self.server, ClientMemory):
                # A reference goes down, and the offset comes up.
                self.sent_bytes += row_bytes(trainer.trainable, self.server.reference_bits)
                self.returned_bytes += trainer.message_bytes
            self.time.transfers = (self.sent_bytes + self.returned_bytes) / (2 * trainer.message_bytes)

    @property
    def parameters(self) -> Vector:
        """The current version of the shared model."""
        return self.models[self.coordinator.step]

    @property
    def expected_delays(self) -> FloatArray:
        """Mean delay of each client in seconds."""
        return self.time.expected

    def rounds(self, evaluate: Evaluate | None = None) -> Generator[Round, None, None]:
        """Yield the initial model as round 0, then one round after the other.

        `evaluate` decides from the number and the clock which rounds are evaluated; None = all. A simulation restored
        from a checkpoint continues after the last round in the checkpoint. Closing the iterator closes the engine. With
        differential privacy the rounds end when too few clients have any budget left.
        """
        with closing(self.engine):
            if self.coordinator.step == 0:
                metric, loss = self._evaluate(0)
                by_speed = self.speeds.evaluate(self.parameters)
                yield Round(
                    0, 0.0, 0.0, 0.0, metric, loss, work=0.0, wasted=0, bytes_down=0, bytes_up=0, by_speed=by_speed
                )
            while not self.exhausted:
                try:
                    current = self._round(evaluate)
                except (InfeasibleError, InputError):
                    if self._affordable is None or len(self._affordable) == self.time.clients:
                        raise
                    self._unusable = True  # the scheme cannot choose among the clients that have budget left
                    return
                yield current

    @property
    def exhausted(self) -> bool:
        """Whether too few clients have any privacy budget left for another sum, or for the scheme to choose among."""
        return self._unusable or (self._affordable is not None and len(self._affordable) < self.privacy.minimum)

    @property
    def _affordable(self) -> list[int] | None:
        """Clients with privacy budget left; None = there are no budgets."""
        if self.groups is None or (budget := self.groups.budget) is None:
            return None
        return [client for client in range(self.time.clients) if budget.affordable(client)]

    def _round(self, evaluate: Evaluate | None) -> Round:
        """Start tasks and deliver answers until the model has stepped; return the record of the round."""
        began = self.time.now
        tick, rows = self.time.wait_for_clients(self.coordinator.step)
        present = None if rows.size == self.time.clients else rows.tolist()
        if (affordable := self._affordable) is not None:
            present = sorted({*rows.tolist()} & {*affordable})
            if len(affordable) >= (self.scheme.fixed_k or 0):  # schemes see clients with budget only
                self.coordinator.leave([client for client in self.coordinator.clients if client not in affordable])
        while True:
            self._deliver()
            due = self.coordinator.due(self.time.now, present)
            if due.step is not None:
                break
            if due.tasks:
                self._launch(due, tick)
            else:
                self._pass_time()
        with one_thread():  # more threads would take cores from the workers
            losses, moved = self._step(due.step)
        waited = self.events.waited if self._in_rounds else None
        if self._opening:
            self.time.now += self._opening
            waited = None if waited is None else waited + self._opening
        turn = self.coordinator.stepped(
            self.time.now if self._opening else None,
            seconds=waited,
            facts=step_facts(self.aggregator.state),
        )
        for version in set(self.models) - self.coordinator.task_table.versions - {self.coordinator.step}:
            del self.models[version]
        self._launch(due, tick)
        return self._recorded(turn, losses, moved, began, evaluate)

    def _deliver(self) -> None:
        """Pass every answer or crash that is due by now to the coordinator."""
        opened = self.coordinator.now if self._opening else 0.0  # what arrives while a sum is opened counts after it
        for task, event in self.events.come(self.coordinator, self.time.now):
            if task.kind == "measure" and event.when == task.began:
                self.coordinator.add_work(event.seconds)  # takes no virtual time, but counts as work
            when = max(event.when, opened)
            if event.crashed:
                self.coordinator.lost(task.id, when)
            else:
                arrived = self.clients.add_arrival(task, event.seconds, event.compute)
                self.coordinator.receive(task.id, arrived, when)

    def _pass_time(self) -> None:
        """Advance the virtual clock to the next event."""
        self.time.now = self.events.next_instant(self.coordinator)
        if self.time.now == np.inf:
            raise InfeasibleError(
                f"{self.coordinator.policy.name} waits, but nobody is at work: it would wait for ever"
            )

    def _launch(self, due: Actions, tick: int) -> None:
        """Start tasks; each ends after its client's delay."""
        if due.tasks:
            rounds, split = self._in_rounds, self._sets_work
            self.events.add(draw_completion_times(due, self.time, tick, in_rounds=rounds, split=split))

    def _step(self, step: Step) -> tuple[list[float], bool]:
        """Train the clients that answered in time and step the model; return their losses and whether it moved."""
        if self.groups is not None:
            return self._open(step, self.groups)
        assert isinstance(self.aggregator, Aggregator)
        losses: dict[int, float] = {}
        buffers: dict[int, Vector] = {}
        cut, buffered = self.trainer.trainable, len(self.trainer.initial) > self.trainer.trainable
        sent = {version: self.models[version][:cut] for version in {task.step for task, _ in step.answers}}

        def trained() -> Iterator[Trained]:
            for task, result in self.clients.train([task for task, _ in step.answers]):
                losses[task.id] = result.loss
                if buffered:
                    buffers[task.id] = self.trainer.buffers(result.parameters)
                model = result.parameters[:cut] if buffered else result.parameters
                yield Trained(task, model, sent[task.step], steps=float(result.steps))

        current = self.models[step.number - 1]
        applied = self.aggregator.apply(self.coordinator, step, current[:cut], trained())
        if lost := losses.keys() - {task.id for task, _ in applied.step.answers}:
            self.clients.forget(lost)
        if applied.moved:
            weighted = [(buffers[task.id], weight) for task, weight in applied.step.answers] if buffered else []
            current = self.trainer.next_model(applied.model, current, weighted)
        self.models[step.number] = current
        return [losses[task.id] for task, _ in applied.step.answers], applied.moved

    def _open(self, step: Step, groups: SimulatedGroups) -> tuple[list[float], bool]:
        """Step the model with sums over the clients that answered; return their mean loss and whether it moved."""
        assert isinstance(self.aggregator, SumAggregator)
        model, cut = self.models[step.number - 1], self.trainer.trainable
        groups.prepare(step)
        applied = self.aggregator.apply(self.coordinator, step, model[:cut], groups)
        self.clients.forget(applied.refused)
        if applied.moved:
            buffers = [] if applied.buffers is None else [(self.trainer.to_native(applied.buffers), 1.0)]
            model = self.trainer.next_model(applied.model, model, buffers)
        self.models[step.number] = model
        return ([] if applied.loss is None else [applied.loss]), applied.moved

    def _recorded(
        self, turn: StepLog, losses: list[float], moved: bool, began: float, evaluate: Evaluate | None
    ) -> Round:
        number, judged = self.coordinator.step, {}
        if evaluate is None or evaluate(number, self.time.now):
            metric, loss = self._evaluate(number)
            judged = {"metric": metric, "loss": loss, "by_speed": self.speeds.evaluate(self.parameters)}
        found = recorded(
            self.coordinator,
            turn,
            since=began,
            losses=losses,
            model_bytes=self.sent_bytes,
            protocol_bytes=self.returned_bytes - self.sent_bytes + self.privacy.client_bytes,
            stepping=step_facts(self.aggregator.state) if moved else {},
            notes=step_notes(self.aggregator.state) if moved else {},
            **judged,
        )
        if self.groups is None or self.groups.budget is None:
            return found
        return replace(found, facts={**found.facts, "privacy": self.groups.budget.facts(range(self.time.clients))})

    def _trained_on(self, validation: int, seed: int) -> Validation | None:
        """Return the server's validation function, or None if `validation` is 0.

        The function trains the current model, as a client would, on `validation` samples drawn from all clients' data.
        """
        whole(validation, 0, "validation")
        if not validation:
            return None
        data = self.trainer.data
        inputs = np.concatenate([samples.inputs for samples in data.train])
        targets = np.concatenate([samples.targets for samples in data.train])
        if validation > len(inputs):
            raise InputError(f"validation = {validation} samples are wanted, but the clients hold {len(inputs)}")
        chosen = np.sort(stream(seed, "validation").choice(len(inputs), validation, replace=False))
        held = replace(data, train=(Samples(inputs[chosen], targets[chosen]),), test_sizes=None, names=None)
        trainer = trainer_for(held, self.model, self.trainer.training, seed=seed)
        return lambda model: trainer.train(self.parameters, 0, self.coordinator.step).parameters[: len(model)]

    def _zero(self) -> Vector:
        return self.trainer.zeros(self.trainer.trainable, double=True)

    def _evaluate(self, number: int) -> tuple[float, float]:
        """Return metric and loss of the shared model; raise `DivergedError` early, before numbers overflow."""
        metric, loss = self.engine.evaluate(self.parameters)
        if self._first_loss is None:  # a resumed run has not evaluated the initial model
            self._first_loss = self.engine.evaluate(self.trainer.initial)[1] if number else loss
        grown = 0 < MAX_LOSS_GROWTH * self._first_loss < loss
        if grown or not np.isfinite(loss):
            raise DivergedError(
                f"the shared model diverged in round {number}: its test loss is {loss:.3g}, that of the initial model "
                f"was {self._first_loss:.3g}: lower lr = {self.trainer.training.lr}"
            )
        return metric, loss


def _rounds_of(build: Callable[P, Simulation]) -> Callable[P, Iterator[Round]]:
    def simulate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Round]:
        """Run a federation and yield its rounds without end. The arguments are those of `Simulation`."""
        return build(*args, **kwargs).rounds()

    simulate.__signature__ = inspect.signature(build)  # type: ignore[attr-defined]
    return simulate


simulate = _rounds_of(Simulation)


def offers(data: FederatedData, *, sums: bool = False) -> frozenset[Need]:
    """Return the facts that simulated clients can report.

    These are all facts, but labels only if the data have classes. If the server sees sums only, clients send no
    sketches of updates, and all train the same amount.
    """
    missing = {Need.LABELS} if data.classes is None else set()
    return frozenset(Need) - missing - ({Need.UPDATE, Need.WORK} if sums else set())


def check_privacy(
    privacy: TrainingPrivacy, selector: Selector[Any] | Policy[Any], trainer: Trainer, robust: RobustRule | None
) -> None:
    """Raise InputError if sums or noise cannot be used with this scheme, these clients, or this robust rule."""
    if not privacy.sums:
        return
    if privacy.epsilon and getattr(selector, "reads_losses", False):
        raise InputError(
            f"{selector.name} is told the losses of single clients, which get no noise: leave epsilon out, or use "
            "random, fedbuff or pace-async"
        )
    if robust is not None:
        raise InputError(
            f"the robust rule {robust.name} compares single updates, but the server sees sums only: leave it out, or "
            "use aggregation = 'individual'"
        )
    if trainer.training.algorithm == "scaffold":
        raise InputError(
            "scaffold's control variates reach the server one by one: use algorithm = 'fedavg' with aggregation = "
            "'sums'"
        )
    if privacy.epsilon and len(trainer.initial) > trainer.trainable:
        raise InputError(
            "the model has buffers, such as the means of a batch norm, which get no noise: use a model without them, "
            "such as one with nn.GroupNorm, or leave epsilon out"
        )
    if trainer.data.clients < privacy.minimum:
        raise InputError(
            f"a sum needs at least {privacy.minimum} clients, but there are {trainer.data.clients}: lower minimum"
        )


def check_scheme(
    selector: Selector[Any] | Policy[Any], trainer: Trainer, engine: EngineOptions | None = None
) -> EngineChoice:
    """Raise if the scheme cannot work with this data and model; return the engine that trains its clients."""
    k = selector.fixed_k
    if k is not None:
        check_k(k, trainer.data.clients, selector.name)  # fail now rather than after minutes of other runs
    if why := getattr(selector, "not_with", {}).get(trainer.training.algorithm):
        raise InputError(f"{selector.name} does not work with algorithm = {trainer.training.algorithm!r}: {why}")
    if missing := selector.needs - offers(trainer.data):
        raise InputError(f"{selector.name} needs {', '.join(sorted(missing))}, which these data do not have")
    return (engine or EngineOptions()).choose(trainer, k)


def settings(
    selector: Selector[Any] | Policy[Any],
    trainer: Trainer,
    time: VirtualTime,
    fleet: Fleet,
    privacy: TrainingPrivacy | None = None,
    *,
    seed: int,
) -> Settings:
    """Return the coordinator's settings for a simulated run."""
    return Settings(
        seed,
        fleet.shares,
        fleet.warmup,
        fleet.warmup_quota,
        fleet.waits_for(time.clock),
        learn_delays=fleet.delays == "observed",
        deadline=time.clock.deadline,
        moments_every=int(trainer.moving_features and not selector.first_moments),
        warmup_trains=fleet.warmup_trains and time.clock.charge_warmup,
        trust=fleet.trust,
        aggregation=(privacy or TrainingPrivacy()).aggregation,
        minimum=(privacy or TrainingPrivacy()).minimum,
    )


GROUPS = 10
MAX_GROUP_SAMPLES = 200
"""Most samples per group, drawn once: enough to tell schemes apart, and cheap compared with a round."""


class SpeedGroups:
    """Groups of clients by speed, with samples of their data.

    Args:
        trainer: the model and the data.
        delays: expected delay of each client in seconds.
    """

    def __init__(self, trainer: Trainer, delays: FloatArray) -> None:
        self._trainer = trainer
        order = np.argsort(delays, kind="stable")
        groups = np.array_split(order, min(GROUPS, order.size))
        found = [_samples(trainer.data, group, seed=trainer.seed) for group in groups]
        self._samples = [(trainer.to_native(inputs), trainer.to_native(targets)) for inputs, targets in found]
        self._sizes = np.array([len(targets) for _, targets in found])
        # Linear layers compute each row independently, so all groups can be evaluated at once.
        self._all_groups: tuple[Vector, ...] | None = None
        if trainer.stackable and trainer.data.metric != "loss":
            self._all_groups = tuple(trainer.to_native(np.concatenate(parts)) for parts in zip(*found, strict=True))

    def evaluate(self, parameters: Vector) -> tuple[float, ...]:
        """Return the metric on each group's samples, fastest group first."""
        with one_thread():
            if self._all_groups is None:
                return tuple(round(metric, 6) for metric in self._trainer.metrics_on(parameters, self._samples))
            correct = np.asarray(self._trainer.correct(parameters, *self._all_groups))
            counts = np.add.reduceat(correct, np.cumsum(self._sizes) - self._sizes, dtype=np.int64)
            return tuple(
                round(count / size, 6) for count, size in zip(counts.tolist(), self._sizes.tolist(), strict=True)
            )


def _samples(data: FederatedData, group: IntArray, *, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return up to `MAX_GROUP_SAMPLES` samples of a group of clients, each sample with the same probability."""
    ends = None if data.test_sizes is None else np.cumsum(data.test_sizes)
    if ends is not None and any(data.test_sizes[client] for client in group):  # type: ignore[index]
        own = [data.test] * group.size
        starts = ends[group] - np.array(data.test_sizes)[group]
        sizes = np.array(data.test_sizes)[group]
    else:
        own = [data.train[client] for client in group]
        starts, sizes = np.zeros(group.size, dtype=np.int64), np.array([len(samples) for samples in own])
    total = int(sizes.sum())
    chosen = np.arange(total)
    if total > MAX_GROUP_SAMPLES:
        chosen = np.sort(stream(seed, "speeds", int(group[0])).choice(total, MAX_GROUP_SAMPLES, replace=False))
    before = np.cumsum(sizes) - sizes
    holder = np.searchsorted(before, chosen, side="right") - 1
    rows = starts[holder] + chosen - before[holder]
    inputs = np.stack([own[client].inputs[row] for client, row in zip(holder, rows, strict=True)])
    targets = np.stack([own[client].targets[row] for client, row in zip(holder, rows, strict=True)])
    return inputs, targets
