"""The loop: select, train, aggregate, evaluate, report; one `Round` at a time.

`simulate` is a generator without an end. Stopping (`stopping.py`), records and progress bars consume it, so none of
them is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fedpace.core import checks
from fedpace.core.checks import FloatArray, IntArray
from fedpace.core.errors import InputError
from fedpace.core.session import Session, ShareRule, Warmup
from fedpace.core.stepping import Gather, ServerStep, step_facts
from fedpace.core.types import (
    DelayConfig,
    DelayModel,
    Need,
    Outcome,
    ProbeRequest,
    Selection,
    Selector,
    facts_wanted,
    wants_first_moments,
)
from fedpace.data.federated import DataConfig, FederatedData
from fedpace.delays.availability import Availability, AvailabilityModel
from fedpace.delays.correlation import correlated, outlying, rarity
from fedpace.models.base import ModelConfig
from fedpace.selectors._cohorts import check_k
from fedpace.server import server_step
from fedpace.sim.awaited import Awaited
from fedpace.sim.clock import Clock, RoundTiming, VirtualTime
from fedpace.sim.engines.choice import EngineOptions
from fedpace.sim.engines.threads import one_thread
from fedpace.sim.round import Round
from fedpace.sim.scaffold import ControlVariates
from fedpace.sim.sketch import UpdateSketch
from fedpace.sim.trainer import Trainer
from fedpace.sim.training import WARM_UP, DivergedError, Training

DelayKnowledge = Literal["expected", "observed"]

Evaluate = Callable[[int, float], bool]
"""Whether a round is evaluated, by its number and by the virtual seconds at its end."""


@dataclass(frozen=True)
class Fleet:
    """How the session meets the clients.

    Args:
        shares: what a client weighs in the objective: `uniform` (the paper) or its `samples`.
        warmup: `full` (the paper) or `lazy`; see `fedpace.core.session.Session`.
        warmup_quota: never-seen clients in a cohort when lazy.
        warmup_wait: share of the clients that a full warm-up waits for, where it is charged; the others are known, and
            may be chosen, from when they answer.
        delays: what selectors see: the `expected` delays (the paper), or estimates from those `observed`.
        slow_rare: in [0, 1]: how strictly the slow clients are those that hold the rare data; 0 = independent.
        rare: what makes data rare: `classes` that few samples belong to, or `features` unlike those of most clients.
            Data without classes are always judged by their features.
    """

    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
    warmup_wait: float = 1.0
    delays: DelayKnowledge = "expected"
    slow_rare: float = 0.0
    rare: Literal["classes", "features"] = "classes"

    def __post_init__(self) -> None:
        """Refuse options that make no sense; the session checks the others."""
        checks.one_of(self.delays, ("expected", "observed"), "delays of fleet")
        checks.one_of(self.rare, ("classes", "features"), "rare of fleet")
        if not 0 <= self.slow_rare <= 1:
            raise InputError(f"slow_rare of fleet must lie in [0, 1], but {self.slow_rare} came")


def simulate(
    data: DataConfig,
    model: ModelConfig,
    delays: DelayConfig,
    selector: Selector[Any],
    *,
    training: Training | None = None,
    fleet: Fleet | None = None,
    availability: Availability | None = None,
    clock: Clock | None = None,
    engine: EngineOptions | None = None,
    server: ServerStep[Any] | None = None,
    seed: int = 0,
) -> Iterator[Round]:
    """Run a federation and yield its rounds for as long as they are asked for.

    Data, initial model, delays and absences depend on `seed` alone, never on the selector: runs under one seed are
    paired. Everything that can be wrong with the configuration is found before this returns, not at the first `next`.
    """
    return Simulation(
        data,
        model,
        delays,
        selector,
        training=training,
        fleet=fleet,
        availability=availability,
        clock=clock,
        engine=engine,
        server=server,
        seed=seed,
    ).rounds()


def virtual_time(
    data: FederatedData,
    delays: DelayConfig,
    *,
    fleet: Fleet | None = None,
    availability: Availability | None = None,
    clock: Clock | None = None,
    model_bytes: int,
    seed: int,
) -> VirtualTime:
    """Return the time of a run before its first round. It depends on the data only where `slow_rare` ties them."""
    fleet = fleet or Fleet()
    drawn = delays.build(data.clients, model_bytes=model_bytes, seed=seed)
    present = _availability(drawn, availability or Availability(), data.clients, seed)
    if fleet.slow_rare:
        histograms = data.label_histograms()
        if histograms is None or fleet.rare == "features":
            scores = outlying([client.inputs for client in data.train])
        else:
            scores = rarity(histograms)
        drawn = correlated(drawn, scores, strength=fleet.slow_rare)
    return VirtualTime(drawn, present, clock or Clock(), clients=data.clients)


class Simulation:
    """The pieces of one run. Arguments as for `simulate`."""

    def __init__(
        self,
        data: DataConfig,
        model: ModelConfig,
        delays: DelayConfig,
        selector: Selector[Any],
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
        self.trainer = trainer = Trainer(data.build(seed=seed), model, training or Training(), seed=seed)
        clients = trainer.data.clients
        if (k := getattr(selector, "k", None)) is not None:
            check_k(k, clients, selector.name)  # now, rather than after minutes of other runs
        self.engine_choice = (engine or EngineOptions()).choose(trainer, k)
        self.engine = self.engine_choice.build(trainer)
        histograms = trainer.data.label_histograms()
        self.time = virtual_time(
            trainer.data,
            delays,
            fleet=fleet,
            availability=availability,
            clock=clock,
            model_bytes=trainer.message_bytes,
            seed=seed,
        )
        self.session = Session(
            selector,
            seed=seed,
            shares=fleet.shares,
            warmup=fleet.warmup,
            warmup_quota=fleet.warmup_quota,
            warmup_wait=fleet.warmup_wait,
            learn_delays=fleet.delays == "observed",
            offers=frozenset(Need) if histograms is not None else frozenset(Need) - {Need.LABELS},
        )
        self.session.join(
            range(clients),
            samples=[float(len(samples)) for samples in trainer.data.train],
            delays=self.expected_delays if fleet.delays == "expected" else None,
            labels=histograms,
        )
        self.parameters = trainer.initial
        self._wanted = facts_wanted(selector)
        self._measured: set[int] = set()
        self.awaited = Awaited()
        self.server = server_step(selector, server)
        self.server_state: Any = self.server.init(self._zero())
        self._sketch = UpdateSketch(trainer.initial.numel(), trainer.training.sketch, seed=seed)
        self._variates: ControlVariates | None = None
        if trainer.training.algorithm == "scaffold":
            self._variates = ControlVariates(trainer.initial.numel(), self.session.view().share)

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
            if self.session.step == 0:
                metric, loss = self._evaluate(0)
                yield Round(number=0, clock=0.0, seconds=0.0, overhead=0.0, metric=metric, loss=loss)
            while True:
                yield self._round(evaluate)

    def _round(self, evaluate: Evaluate | None) -> Round:
        before = self.time.now
        tick, rows = self.time.wait(self.session.step)
        here: list[int] = rows.tolist()
        heard = self._hear()
        warmed, probed = self._prepare(tick, here)
        overhead = self.time.now - before
        selection = self.session.select(now=self.time.now, available=here)
        clients = _rows(selection)
        timing = self.time.hold(tick, clients, selection.deadline, enough=selection.enough)
        with one_thread():  # adding models up with several would have them take the workers' cores while they wait
            losses, moved = self._train(selection, timing)
        stepped = step_facts(self.server_state) if moved else {}
        number, clock = self.session.step, self.time.now
        metric, loss = self._evaluate(number) if evaluate is None or evaluate(number, clock) else (None, None)
        why = selection.why
        return Round(
            number=number,
            clock=clock,
            seconds=timing.seconds,
            overhead=overhead,
            metric=metric,
            loss=loss,
            clients=tuple(clients.tolist()),
            weights=tuple(selection.weights.tolist()),
            mode=selection.mode,
            failed=tuple(clients[~timing.finished].tolist()),
            warmed=warmed,
            heard=heard,
            probed=probed,
            stretch=stepped.get("stretch", 1.0),
            carried=stepped.get("carried", 0.0),
            train_loss=float(np.mean(losses)) if losses else None,
            objective=why.objective,
            predicted_seconds=why.predicted_seconds,
            status=why.status,
            facts=why.facts,
        )

    def _prepare(self, tick: int, here: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Run the warm-ups and probes that come before a selection; return who took part in each."""
        warmed: list[int] = []
        while self.session.warmup_due(available=here):
            warmed += self._warm_up(tick, here)
        request = self.session.probe(now=self.time.now, available=here)
        return tuple(warmed), () if request is None else self._answer(request, tick)

    def _warm_up(self, tick: int, here: list[int]) -> list[int]:
        """Everybody that is asked reports as if it had trained; the shared model stays as it is."""
        selection = self.session.select(now=self.time.now, available=here)
        clients = _rows(selection)
        began = self.time.now
        # One model at a time is out with clients that are awaited: while it is, another warm-up waits for all.
        drawn, there = self.time.warm_up(tick, clients, enough=0 if self.awaited.answers else selection.enough)
        self.awaited.add(self.parameters, selection.step, clients[~there], began + drawn[~there], drawn[~there])
        waiting = [Outcome(client, finished=False, awaited=True) for client in clients[~there].tolist()]
        told = self._measure(clients[there].tolist(), drawn[there], self.parameters)
        self.session.observe([*told, *waiting], now=self.time.now)
        rows: list[int] = clients.tolist()
        return rows

    def _hear(self) -> tuple[int, ...]:
        """Take in what clients say that an earlier warm-up did not wait for."""
        model, clients, drawn = self.awaited.due(self.time.now)
        if clients:
            told = self._measure(clients, np.array(drawn), model)
            self.session.hear(told, step=self.awaited.step, now=self.time.now)
        return tuple(clients)

    def _measure(self, clients: list[int], seconds: FloatArray, model: torch.Tensor) -> list[Outcome]:
        """What clients report on `model` without changing it."""
        if self._variates is not None:
            for client, gradient in zip(clients, self.engine.gradients(model, clients), strict=True):
                self._variates.replace(client, gradient)
        updates = {}
        if Need.UPDATE in self._wanted:
            trained = self.engine.train(model, clients, WARM_UP)
            updates = {
                client: self._sketch(result.parameters - model) for client, result in zip(clients, trained, strict=True)
            }
        losses = dict(zip(clients, self.engine.local_losses(model, clients), strict=True))
        return self._outcomes(clients, seconds, losses, updates, model)

    def _answer(self, request: ProbeRequest, tick: int) -> tuple[int, ...]:
        """Give the losses, or the sketches of one full-batch gradient step, that the scheme asks for."""
        clients = np.array(request.clients, dtype=np.int64)
        self.time.probe(tick, clients)
        rows: list[int] = clients.tolist()
        if request.kind == "loss":
            losses = self.engine.local_losses(self.parameters, rows, samples=request.samples, step=request.step)
            self.session.answer(dict(zip(rows, losses, strict=True)))
        else:
            lr = self.trainer.training.lr
            gradients = self.engine.gradients(self.parameters, rows)
            self.session.answer({c: self._sketch(-lr * g) for c, g in zip(rows, gradients, strict=True)})
        return tuple(rows)

    def _zero(self) -> torch.Tensor:
        return torch.zeros(self.trainer.initial.shape, dtype=torch.float64)

    def _train(self, selection: Selection, timing: RoundTiming) -> tuple[list[float], bool]:
        """Train who makes it in time, step, and report everybody; return the losses, and whether the model moved."""
        cohort = _rows(selection)
        weights: list[float] = selection.weights[timing.finished].tolist()
        if (total := sum(weights)) > 0 and selection.mode == "average":
            # Who failed leaves its weight to the others in proportion. In delta mode its step is simply missing.
            weights = [weight / total for weight in weights]
        clients: list[int] = cohort[timing.finished].tolist()
        variates = None if self._variates is None else self._variates.round()
        gather = Gather(self.server, self._zero(), mean=selection.mode == "average")
        losses: dict[int, float] = {}
        updates: dict[int, FloatArray] = {}
        trained = self.engine.train(
            self.parameters, clients, selection.step, None if variates is None else variates.correction
        )
        for client, weight, result in zip(clients, weights, trained, strict=True):
            if variates is not None:
                drift = (self.parameters - result.parameters) / (result.steps * self.trainer.training.lr)
                variates.learn(client, drift)
            gather.add(result.parameters, self.parameters, weight)
            losses[client] = result.loss
            if Need.UPDATE in self._wanted:
                updates[client] = self._sketch(result.parameters - self.parameters)
        told = self._outcomes(cohort.tolist(), timing.observed, losses, updates, self.parameters)
        self.session.observe(told, now=self.time.now)
        if (answers := gather.answers()) is not None:
            model, self.server_state = self.server.apply(self.server_state, self.parameters, answers)
            self.parameters = model.to(self.parameters.dtype)
        return list(losses.values()), answers is not None

    def _outcomes(
        self,
        cohort: list[int],
        seconds: FloatArray,
        losses: Mapping[int, float],
        updates: Mapping[int, FloatArray],
        model: torch.Tensor,
    ) -> list[Outcome]:
        """What everybody of the cohort reports that received `model`; who has no loss did not finish."""
        moments = self._moments(list(losses), model)
        return [
            Outcome(
                client,
                seconds=took,
                loss=losses[client],
                samples=float(self.trainer.samples(client)),
                moment=moments.get(client),
                update=updates.get(client),
            )
            if client in losses
            else Outcome(client, seconds=took, finished=False)
            for client, took in zip(cohort, seconds.tolist(), strict=True)
        ]

    def _moments(self, clients: list[int], model: torch.Tensor) -> dict[int, FloatArray]:
        """The moments at the model that the clients received, unless nobody wants them or they cannot have changed."""
        if Need.MOMENT not in self._wanted:
            return {}
        if not self.trainer.moving_features or wants_first_moments(self.session.selector):
            clients = [client for client in clients if client not in self._measured]
        self._measured.update(clients)
        moments = self.engine.moments(model, clients, targets=Need.TARGETS in self._wanted)
        return dict(zip(clients, moments, strict=True))

    def _evaluate(self, number: int) -> tuple[float, float]:
        metric, loss = self.engine.evaluate(self.parameters)
        if not np.isfinite(loss):
            raise DivergedError(
                f"the shared model diverged in round {number} (test loss {loss}): lower lr = {self.trainer.training.lr}"
            )
        return metric, loss


def _availability(delays: DelayModel, config: Availability, clients: int, seed: int) -> AvailabilityModel:
    """Who is there: as configured, or as a trace recorded it along with the delays."""
    if isinstance(delays, AvailabilityModel) and config == Availability():
        return delays
    return config.build(clients, seed=seed)


def _rows(selection: Selection) -> IntArray:
    return np.array(selection.clients, dtype=np.int64)
