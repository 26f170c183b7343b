"""The loop: select, train, aggregate, evaluate, report; one `Round` at a time.

`simulate` is a generator without an end. Stopping (`stopping.py`), records and progress bars consume it, so none of
them is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fedpace.core import checks
from fedpace.core.checks import FloatArray, IntArray
from fedpace.core.errors import InfeasibleError, InputError
from fedpace.core.session import Session, ShareRule, Warmup
from fedpace.core.types import (
    DelayConfig,
    DelayModel,
    Need,
    Outcome,
    ProbeRequest,
    Selection,
    Selector,
    facts_wanted,
)
from fedpace.data.federated import DataConfig
from fedpace.delays.availability import Availability, AvailabilityModel
from fedpace.delays.correlation import correlated, outlying, rarity
from fedpace.models.base import ModelConfig
from fedpace.selectors._cohorts import check_k
from fedpace.sim.clock import Clock, RoundTiming, settle
from fedpace.sim.round import Round
from fedpace.sim.scaffold import ControlVariates
from fedpace.sim.sketch import UpdateSketch
from fedpace.sim.trainer import DivergedError, Trainer, Training, aggregate

DelayKnowledge = Literal["expected", "observed"]

LONGEST_WAIT = 1000
"""Rounds without a single available client after which the configuration is taken to be wrong."""

WARM_UP = 2**31
"""Stands for the step in the streams of warm-up training, so that it shares none with a round."""


@dataclass(frozen=True)
class Fleet:
    """How the session meets the clients.

    Args:
        shares: what a client weighs in the objective: `uniform` (the paper) or its `samples`.
        warmup: `full` (the paper) or `lazy`; see `fedpace.core.session.Session`.
        warmup_quota: never-seen clients in a cohort when lazy.
        delays: what selectors see: the `expected` delays (the paper), or estimates from those `observed`.
        slow_rare: in [0, 1]: how strictly the slow clients are those that hold the rare data; 0 = independent.
        rare: what makes data rare: `classes` that few samples belong to, or `features` unlike those of most clients.
            Data without classes are always judged by their features.
    """

    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
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
        seed=seed,
    ).rounds()


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
        seed: int = 0,
    ) -> None:
        fleet = fleet or Fleet()
        self.trainer = trainer = Trainer(data.build(seed=seed), model, training or Training(), seed=seed)
        clients = trainer.data.clients
        if (k := getattr(selector, "k", None)) is not None:
            check_k(k, clients, selector.name)  # now, rather than after minutes of other runs
        histograms = trainer.data.label_histograms()
        self.delays = delays.build(clients, model_bytes=trainer.message_bytes, seed=seed)
        self.availability = _availability(self.delays, availability or Availability(), clients, seed)
        if fleet.slow_rare:
            if histograms is None or fleet.rare == "features":
                scores = outlying([client.inputs for client in trainer.data.train])
            else:
                scores = rarity(histograms)
            self.delays = correlated(self.delays, scores, strength=fleet.slow_rare)
        self.clock = clock or Clock()
        self.session = Session(
            selector,
            seed=seed,
            shares=fleet.shares,
            warmup=fleet.warmup,
            warmup_quota=fleet.warmup_quota,
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
        self.now = 0.0
        self._skipped = 0
        self._wanted = facts_wanted(selector)
        self._measured: set[int] = set()
        self._sketch = UpdateSketch(trainer.initial.numel(), trainer.training.sketch, seed=seed)
        self._variates: ControlVariates | None = None
        if trainer.training.algorithm == "scaffold":
            self._variates = ControlVariates(trainer.initial.numel(), self.session.view().share)

    @property
    def expected_delays(self) -> FloatArray:
        """Mean seconds of each client."""
        return checks.delays(self.delays.expected(), count=self.trainer.data.clients)

    def rounds(self) -> Iterator[Round]:
        """Yield the initial model as round 0, then one round after the other."""
        metric, loss = self._evaluate(0)
        yield Round(number=0, clock=0.0, seconds=0.0, overhead=0.0, metric=metric, loss=loss)
        while True:
            yield self._round()

    def _round(self) -> Round:
        before = self.now
        here = self._wait_for_somebody()
        tick = self.session.step + 1 + self._skipped
        self._prepare(tick, here)
        overhead = self.now - before
        selection = self.session.select(now=self.now, available=here)
        clients = _rows(selection)
        timing = settle(
            self._drawn(tick)[clients],
            min(selection.deadline, self.clock.deadline),
            crashed=self.availability.crashes(tick)[clients],
            enough=selection.enough,
        )
        self.now += timing.seconds
        losses = self._train(selection, timing)
        metric, loss = self._evaluate(self.session.step)
        why = selection.why
        return Round(
            number=self.session.step,
            clock=self.now,
            seconds=timing.seconds,
            overhead=overhead,
            metric=metric,
            loss=loss,
            clients=tuple(clients.tolist()),
            weights=tuple(selection.weights.tolist()),
            mode=selection.mode,
            failed=tuple(clients[~timing.finished].tolist()),
            train_loss=float(np.mean(losses)) if losses else None,
            objective=why.objective,
            predicted_seconds=why.predicted_seconds,
            status=why.status,
            facts=why.facts,
        )

    def _wait_for_somebody(self) -> list[int]:
        """Return who is there; while nobody is, rounds that could not be held pass at the median client's pace."""
        for _ in range(LONGEST_WAIT):
            here = np.flatnonzero(self.availability.available(self.session.step + 1 + self._skipped))
            if here.size:
                return [int(client) for client in here]
            self._skipped += 1
            self.now += float(np.median(self.expected_delays))
        raise InfeasibleError(
            f"no client was available in {LONGEST_WAIT} rounds running: raise `on` or lower `off` of [availability]"
        )

    def _prepare(self, tick: int, here: list[int]) -> None:
        """Run the warm-ups and probes that come before a selection."""
        while self.session.warmup_due(available=here):
            self._warm_up(tick, here)
        request = self.session.probe(now=self.now, available=here)
        if request is not None:
            self._answer(request, tick)

    def _warm_up(self, tick: int, here: list[int]) -> None:
        """Everybody that is asked reports as if it had trained; the shared model stays as it is."""
        selection = self.session.select(now=self.now, available=here)
        clients = _rows(selection)
        # Round 0 of the delays belongs to the warm-up, so that rounds meet the same draws with and without one.
        drawn = self._drawn(tick - 1)[clients]
        outcomes = []
        for client, seconds in zip(clients.tolist(), drawn.tolist(), strict=True):
            if self._variates is not None:
                self._variates.replace(client, self.trainer.gradient(self.parameters, client))
            trained = self.parameters
            if Need.UPDATE in self._wanted:
                trained = self.trainer.train(self.parameters, client, WARM_UP).parameters
            loss = self.trainer.local_loss(self.parameters, client)
            outcomes.append(self._outcome(client, seconds, loss, trained))
        self.now += self.clock.warmup_seconds(drawn)
        self.session.observe(outcomes, now=self.now)

    def _answer(self, request: ProbeRequest, tick: int) -> None:
        """Give the losses, or the sketches of one full-batch gradient step, that the scheme asks for."""
        clients = np.array(request.clients, dtype=np.int64)
        self.now += self.clock.probe_seconds(self._drawn(tick)[clients])
        if request.kind == "loss":
            draw = {"samples": request.samples, "step": request.step}
            self.session.answer({c: self.trainer.local_loss(self.parameters, c, **draw) for c in clients.tolist()})
        else:
            lr = self.trainer.training.lr
            self.session.answer(
                {c: self._sketch(-lr * self.trainer.gradient(self.parameters, c)) for c in clients.tolist()}
            )

    def _train(self, selection: Selection, timing: RoundTiming) -> list[float]:
        """Train who makes it in time, aggregate, and report everybody; return the training losses."""
        results: list[torch.Tensor] = []
        weights: list[float] = []
        losses: list[float] = []
        outcomes: list[Outcome] = []
        variates = None if self._variates is None else self._variates.round()
        for position, client in enumerate(_rows(selection).tolist()):
            seconds = float(timing.observed[position])
            if not timing.finished[position]:
                outcomes.append(Outcome(client, seconds=seconds, finished=False))
                continue
            correction = None if variates is None else variates.correction(client)
            result = self.trainer.train(self.parameters, client, selection.step, correction)
            if variates is not None:
                drift = (self.parameters - result.parameters) / (result.steps * self.trainer.training.lr)
                variates.learn(client, drift)
            results.append(result.parameters)
            weights.append(float(selection.weights[position]))
            losses.append(result.loss)
            outcomes.append(self._outcome(client, seconds, result.loss, result.parameters))
        self.session.observe(outcomes, now=self.now)
        total = sum(weights)
        if results and (selection.mode == "delta" or total > 0):
            if selection.mode == "average":
                # Who failed leaves its weight to the others in proportion. In delta mode its step is simply missing.
                weights = [weight / total for weight in weights]
            self.parameters = aggregate(self.parameters, results, weights, selection.mode)
        return losses

    def _outcome(self, client: int, seconds: float, loss: float, trained: torch.Tensor) -> Outcome:
        return Outcome(
            client,
            seconds=seconds,
            loss=loss,
            samples=float(len(self.trainer.data.train[client])),
            moment=self._moment(client),
            update=self._sketch(trained - self.parameters) if Need.UPDATE in self._wanted else None,
        )

    def _drawn(self, tick: int) -> FloatArray:
        return checks.delays(self.delays.draw(tick), count=self.trainer.data.clients)

    def _moment(self, client: int) -> FloatArray | None:
        """The client's moment at the model it received, unless nobody wants it or it cannot have changed."""
        if Need.MOMENT not in self._wanted or (client in self._measured and not self.trainer.moving_features):
            return None
        self._measured.add(client)
        return self.trainer.moment(self.parameters, client, targets=Need.TARGETS in self._wanted)

    def _evaluate(self, number: int) -> tuple[float, float]:
        metric, loss = self.trainer.evaluate(self.parameters)
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
