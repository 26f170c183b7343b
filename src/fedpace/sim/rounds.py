"""The loop: select, train, aggregate, evaluate, report; one `Round` at a time.

`simulate` is a generator without an end. Stopping (`stopping.py`), records and progress bars consume it, so none of
them is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from fedpace.core import checks
from fedpace.core.checks import BoolArray, FloatArray, IntArray
from fedpace.core.session import Session, ShareRule, Warmup
from fedpace.core.types import DelayConfig, DelayModel, Need, Outcome, ProbeRequest, Selection, Selector
from fedpace.data.federated import DataConfig
from fedpace.models.base import ModelConfig
from fedpace.selectors._cohorts import check_k
from fedpace.sim.clock import Clock, settle
from fedpace.sim.trainer import DivergedError, Trainer, Training, aggregate

DelayKnowledge = Literal["expected", "observed"]

OFFERS = frozenset({Need.DELAY, Need.LOSS, Need.LABELS, Need.MOMENT})
"""What this host reports."""


@dataclass(frozen=True)
class Fleet:
    """How the session meets the clients.

    Args:
        shares: what a client weighs in the objective: `uniform` (the paper) or its `samples`.
        warmup: `full` (the paper) or `lazy`; see `fedpace.core.session.Session`.
        warmup_quota: never-seen clients in a cohort when lazy.
        delays: what selectors see: the `expected` delays (the paper), or estimates from those `observed`.
    """

    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
    delays: DelayKnowledge = "expected"

    def __post_init__(self) -> None:
        """Refuse options that make no sense; the session checks the others."""
        checks.one_of(self.delays, ("expected", "observed"), "delays of fleet")


@dataclass(frozen=True)
class Round:
    """What happened in one round. Number 0 is the initial model, before anybody trained."""

    number: int
    clock: float
    """Virtual seconds at the end of the round."""
    seconds: float
    """How long the round itself took."""
    overhead: float
    """Charged warm-ups and probes before it."""
    metric: float
    """Accuracy or loss of the shared model on the test data, after the round."""
    loss: float
    clients: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    mode: str = "average"
    failed: tuple[int, ...] = ()
    train_loss: float | None = None
    objective: float | None = None
    predicted_seconds: float | None = None
    status: str = "ok"
    facts: Mapping[str, Any] = field(default_factory=dict)


def simulate(
    data: DataConfig,
    model: ModelConfig,
    delays: DelayConfig,
    selector: Selector[Any],
    *,
    training: Training | None = None,
    fleet: Fleet | None = None,
    clock: Clock | None = None,
    seed: int = 0,
) -> Iterator[Round]:
    """Run a federation and yield its rounds for as long as they are asked for.

    Data, initial model and delays depend on `seed` alone, never on the selector: runs under one seed are paired.
    Everything that can be wrong with the configuration is found before this returns, not at the first `next`.
    """
    return Simulation(data, model, delays, selector, training=training, fleet=fleet, clock=clock, seed=seed).rounds()


class Simulation:
    """The pieces of one run; `parameters` and `now` are its only mutable state beside the session."""

    def __init__(
        self,
        data: DataConfig,
        model: ModelConfig,
        delays: DelayConfig,
        selector: Selector[Any],
        *,
        training: Training | None = None,
        fleet: Fleet | None = None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        fleet = fleet or Fleet()
        self.trainer = trainer = Trainer(data.build(seed=seed), model, training or Training(), seed=seed)
        if (k := getattr(selector, "k", None)) is not None:
            check_k(k, trainer.data.clients, selector.name)  # now, rather than after minutes of other runs
        self.delays: DelayModel = delays.build(trainer.data.clients, model_bytes=trainer.model_bytes, seed=seed)
        self.clock = clock or Clock()
        self.session = Session(
            selector,
            seed=seed,
            shares=fleet.shares,
            warmup=fleet.warmup,
            warmup_quota=fleet.warmup_quota,
            learn_delays=fleet.delays == "observed",
            offers=OFFERS,
        )
        self.session.join(
            range(trainer.data.clients),
            samples=[float(len(samples)) for samples in trainer.data.train],
            delays=self.expected_delays if fleet.delays == "expected" else None,
            labels=trainer.data.label_histograms(),
        )
        self.parameters = trainer.initial
        self.now = 0.0
        self._wants_moments = Need.MOMENT in selector.needs
        self._measured: set[int] = set()

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
        number = self.session.step + 1
        overhead = self._prepare(number)
        selection = self.session.select(now=self.now)
        clients = _rows(selection)
        drawn = self._drawn(number)[clients]
        timing = settle(drawn, selection.deadline)
        losses = self._train(selection, drawn, timing.finished)
        self.now += timing.seconds
        metric, loss = self._evaluate(number)
        why = selection.why
        return Round(
            number=number,
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

    def _prepare(self, number: int) -> float:
        """Run the warm-ups and probes that come before selection `number`; return what they cost."""
        before = self.now
        while self.session.warmup_due():
            self._warm_up(number)
        request = self.session.probe(now=self.now)
        if request is not None:
            self._answer(request, number)
        return self.now - before

    def _warm_up(self, number: int) -> None:
        """Everybody that is asked trains and reports; the shared model stays as it is."""
        selection = self.session.select(now=self.now)
        clients = _rows(selection)
        # Round 0 of the delays belongs to the warm-up, so that rounds meet the same draws with and without one.
        drawn = self._drawn(number - 1)[clients]
        outcomes = [
            Outcome(
                client,
                seconds=float(seconds),
                loss=self.trainer.local_loss(self.parameters, client),
                samples=float(len(self.trainer.data.train[client])),
                moment=self._moment(client),
            )
            for client, seconds in zip(clients.tolist(), drawn, strict=True)
        ]
        self.now += self.clock.warmup_seconds(drawn)
        self.session.observe(outcomes, now=self.now)

    def _answer(self, request: ProbeRequest, number: int) -> None:
        clients = np.array(request.clients, dtype=np.int64)
        self.now += self.clock.probe_seconds(self._drawn(number)[clients])
        self.session.answer({int(c): self.trainer.local_loss(self.parameters, int(c)) for c in clients})

    def _train(self, selection: Selection, drawn: FloatArray, finished: BoolArray) -> list[float]:
        """Train who makes it in time, aggregate, and report everybody; return the training losses."""
        results: list[torch.Tensor] = []
        weights: list[float] = []
        losses: list[float] = []
        outcomes: list[Outcome] = []
        limit = selection.deadline
        for position, client in enumerate(_rows(selection).tolist()):
            if not finished[position]:
                outcomes.append(Outcome(client, seconds=limit, finished=False))
                continue
            result = self.trainer.train(self.parameters, client, selection.step)
            results.append(result.parameters)
            weights.append(float(selection.weights[position]))
            losses.append(result.loss)
            outcomes.append(
                Outcome(
                    client,
                    seconds=float(drawn[position]),
                    loss=result.loss,
                    samples=float(len(self.trainer.data.train[client])),
                    moment=self._moment(client),
                )
            )
        self.session.observe(outcomes, now=self.now + float(np.minimum(drawn, limit).max()))
        total = sum(weights)
        if results and (selection.mode == "delta" or total > 0):
            if selection.mode == "average":
                # Who failed leaves its weight to the others in proportion.
                weights = [weight / total for weight in weights]
            self.parameters = aggregate(self.parameters, results, weights, selection.mode)
        return losses

    def _drawn(self, number: int) -> FloatArray:
        return checks.delays(self.delays.draw(number), count=self.trainer.data.clients)

    def _moment(self, client: int) -> FloatArray | None:
        """The client's moment at the model it received, unless nobody wants it or it cannot have changed."""
        if not self._wants_moments or (client in self._measured and not self.trainer.moving_features):
            return None
        self._measured.add(client)
        return self.trainer.moment(self.parameters, client)

    def _evaluate(self, number: int) -> tuple[float, float]:
        metric, loss = self.trainer.evaluate(self.parameters)
        if not np.isfinite(loss):
            raise DivergedError(
                f"the shared model diverged in round {number} (test loss {loss}): lower lr = {self.trainer.training.lr}"
            )
        return metric, loss


def _rows(selection: Selection) -> IntArray:
    return np.array(selection.clients, dtype=np.int64)
