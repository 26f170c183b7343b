"""Simulated clients that lie: about their delays, about their data, or in the models that they send."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpace._base.checks import FloatArray, IntArray
from fedpace.core.tasks import Task
from fedpace.sim.clients import Clients
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import LocalResult


@dataclass(frozen=True)
class Lie:
    """What a liar says and does.

    Args:
        delay: what it multiplies its seconds by, in what it claims beforehand and in what it reports.
        moment: `another`'s, or the `mean` of all clients'; empty = its own.
        scale: what it multiplies its moment by.
        update: what it multiplies its update by.
        gone: it does not lie, it is not there: what is lost with a client whatever is done about it.
    """

    delay: float = 1.0
    moment: str = ""
    scale: float = 1.0
    update: float = 1.0
    gone: bool = False


LIES: dict[str, Lie] = {
    "honest": Lie(),
    "delay / 10": Lie(delay=0.1),
    "delay / 100": Lie(delay=0.01),
    "another's moment": Lie(moment="another"),
    "mean moment": Lie(moment="mean"),
    "mean moment, delay / 100": Lie(delay=0.01, moment="mean"),
    "moment x 10": Lie(scale=10.0),
    "moment x 1e3": Lie(scale=1e3),
    "moment x 1e6": Lie(scale=1e6),
    "update x -10": Lie(update=-10.0),
    "update x -3": Lie(update=-3.0),
    "update x -1": Lie(update=-1.0),
    "not there": Lie(gone=True),
}


def corrupt(simulation: Simulation, liars: IntArray, lie: Lie) -> None:
    """Let some clients of a simulation that has not begun lie."""
    if lie == Lie():
        return
    if lie.gone:
        _remove(simulation, liars)
        return
    claimed = simulation.expected_delays[liars] * lie.delay
    if not simulation.coordinator.settings.learn_delays:
        simulation.coordinator.ledger.set_delays(liars, claimed.tolist())
    clients = simulation.clients
    clients.__class__ = LyingClients
    assert isinstance(clients, LyingClients)
    clients.begin_lying(set(liars.tolist()), lie, simulation)


def _remove(simulation: Simulation, clients: IntArray) -> None:
    """Let clients never have been there."""
    wait = simulation.time.wait

    def without(step: int) -> Any:
        tick, rows = wait(step)
        return tick, np.setdiff1d(rows, clients)

    simulation.coordinator.leave(clients.tolist())
    simulation.time.wait = without  # type: ignore[method-assign]


class LyingClients(Clients):
    """Clients some of which lie."""

    def begin_lying(self, liars: set[int], lie: Lie, simulation: Simulation) -> None:
        """Lie from now on."""
        self.liars, self.lie = liars, lie
        trainer, model = simulation.trainer, simulation.parameters
        everybody = list(range(trainer.data.clients))
        self.claims: dict[bool, dict[int, FloatArray]] = {}
        if lie.moment or lie.scale != 1:
            for targets in (False, True):
                own = dict(zip(everybody, self._engine.moments(model, everybody, targets=targets), strict=True))
                self.claims[targets] = {client: self._claim(client, own) for client in liars}
        if lie.update != 1:
            poison(self._engine, liars, lie.update)

    def _claim(self, client: int, own: Mapping[int, FloatArray]) -> FloatArray:
        told = own[client]
        if self.lie.moment == "another":
            told = own[(client + len(own) // 2) % len(own)]
        elif self.lie.moment == "mean":
            told = np.vstack(list(own.values())) / np.sqrt(len(own))
        return told * np.sqrt(self.lie.scale)

    def _report(self, tasks: list[Task], losses: Any, updates: Any, model: torch.Tensor) -> None:
        """Report as honest clients do, and then change what liars reported."""
        super()._report(tasks, losses, updates, model)
        for task in tasks:
            client = int(task.client)  # type: ignore[call-overload]
            if client not in self.liars or task.id not in self._outcomes:
                continue
            told = self._outcomes[task.id]
            changed: dict[str, Any] = {"seconds": told.seconds * self.lie.delay}
            if told.moment is not None and self.claims:
                width = told.moment.shape[1]
                changed["moment"] = next(c[client] for c in self.claims.values() if c[client].shape[1] == width)
            self._outcomes[task.id] = dataclasses.replace(told, **changed)


def poison(engine: Any, liars: set[int], factor: float) -> None:
    """Let an engine return models of liars whose updates are multiplied."""
    train, train_apart = engine.train, engine.train_apart

    def changed(
        received: Sequence[torch.Tensor], clients: Sequence[int], results: Iterable[LocalResult]
    ) -> Iterator[LocalResult]:
        for model, client, result in zip(received, clients, results, strict=True):
            if client in liars:
                bent = model + factor * (result.parameters - model)
                result = dataclasses.replace(result, parameters=bent)
            yield result

    def train_liars(parameters: torch.Tensor, clients: Sequence[int], *rest: Any) -> Iterator[LocalResult]:
        return changed([parameters] * len(clients), clients, train(parameters, clients, *rest))

    def train_liars_apart(received: Sequence[torch.Tensor], clients: Sequence[int], *rest: Any) -> Any:
        return changed(received, clients, train_apart(received, clients, *rest))

    engine.train, engine.train_apart = train_liars, train_liars_apart
