"""Group sums in the simulator: clients train, contribute to sums, and keep their own memory.

`SimulatedGroups` plays both sides that the server does not see: the clients, and the protocol or trusted aggregator
between them. Only `GroupSum` leaves this module. The sums are computed in the clear and in double precision; real
protocols work with fixed-point numbers (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream
from fedpace.core.budget import PrivacyBudget, clipped
from fedpace.core.server_rule import Vector
from fedpace.core.sums import UPDATE, Group, GroupSum, Member, Sums, add_up, weighted_contribution, with_training
from fedpace.core.tasks import Step, Task
from fedpace.core.types import ClientId
from fedpace.server._own_memory import OwnMemory
from fedpace.sim.clients import Clients
from fedpace.sim.trainers import Trainer

NOTHING = OwnMemory()


class SimulatedGroups:
    """The clients' side of group sums; the `Opener` of a simulation.

    Args:
        clients: trains the clients' tasks.
        models: version -> model that clients received.
        trainer: knows which entries of a model are buffers.
        budget: differential privacy of the sums; None = no noise.
        seed: of the noise. Real noise must come from the operating system; this is a simulation.
    """

    def __init__(
        self,
        clients: Clients,
        models: Mapping[int, Vector],
        trainer: Trainer,
        budget: PrivacyBudget | None = None,
        seed: int = 0,
    ) -> None:
        self._clients, self._models, self._trainer = clients, models, trainer
        self.budget, self._seed, self._step = budget, seed, 0
        self._tasks: dict[int, Task] = {}
        self._own: dict[ClientId, OwnMemory] = {}
        """Client -> what only this client knows."""

    def prepare(self, step: Step) -> None:
        """Note the tasks of the step that is due."""
        self._tasks, self._step = {task.id: task for task, _ in step.answers}, step.number

    def open(self, group: Group, minimum: int) -> GroupSum | None:
        """Train the members of a group and return the sums of what they contribute."""
        if self.budget is not None:
            return self._noisy(group, minimum, self.budget)
        absent: set[int] = set()
        kept: list[Member] = []
        held: dict[ClientId, OwnMemory] = {}

        def contributions() -> Iterator[Sums]:
            for member, ask, update, loss, buffers in self._trained(group):
                own = self._contribution(group, member, ask, update, held)
                if own is None or not np.isfinite(update).all():
                    absent.add(member.task)
                    continue
                kept.append(member)
                yield with_training(own, member.weight, loss, buffers)

        vectors, scalars = add_up(contributions())
        clients = len({member.client for member in kept})
        if clients < minimum:
            return None
        self._own |= held
        return GroupSum(clients, vectors, scalars, frozenset(absent))

    def _noisy(self, group: Group, minimum: int, budget: PrivacyBudget) -> GroupSum | None:
        """Return the sum of clipped updates with noise, and nothing else; clients without budget stay out."""
        kept = [member for member in group.members if budget.affordable(member.client)]
        clients = len({member.client for member in kept})
        if clients < minimum:
            return None
        left = {member.task for member in kept}
        places = [place for place, member in enumerate(group.members) if member.task in left]
        some = Group(group.kind, tuple(kept), tuple(group.asks[place] for place in places))
        total = np.zeros(self._trainer.trainable)
        for _, ask, update, _, _ in self._trained(some):
            total += ask["weight"] * clipped(update, budget.privacy.clip)
        total = budget.release(total, kept, stream(self._seed, "privacy noise", self._step).standard_normal)
        absent = frozenset(member.task for member in group.members if member.task not in left)
        return GroupSum(clients, {UPDATE: total}, {}, absent)

    def publish(self, version: int, reference: Vector) -> None:
        """Send the reference of a model version to all clients that wait for it."""
        known = np.asarray(reference, dtype=np.float64)
        self._own = {client: own.received(version, known) for client, own in self._own.items()}

    lost_memory = False

    def forget(self) -> None:
        """Forget all clients; they keep nothing of use."""
        self._own.clear()

    def _contribution(
        self,
        group: Group,
        member: Member,
        ask: Mapping[str, float],
        update: FloatArray,
        held: dict[ClientId, OwnMemory],
    ) -> Sums | None:
        """Return what a client adds to the sums, and put its new memory into `held`; None = it drops out."""
        if group.kind == "weighted":
            return weighted_contribution(update, ask["weight"])
        own = held.get(member.client) or self._own.get(member.client, NOTHING)
        reference = group.references.get(member.version)
        found = own.contribution(group.kind, update, member, ask, reference)
        if found is None:
            return None
        held[member.client] = found[2]
        return found[0], found[1]

    def _trained(
        self, group: Group
    ) -> Iterator[tuple[Member, Mapping[str, float], FloatArray, float, FloatArray | None]]:
        """Yield each member with its numbers, its update, its loss and its buffers."""
        places = {member.task: place for place, member in enumerate(group.members)}
        cut, buffered = self._trainer.trainable, len(self._trainer.initial) > self._trainer.trainable
        ordered = group.kind == "late"  # several answers of a client follow each other
        found: list[tuple[int, tuple[Member, Mapping[str, float], FloatArray, float, FloatArray | None]]] = []
        for task, result in self._clients.train(self._tasks[member.task] for member in group.members):
            trained, sent = np.asarray(result.parameters)[:cut], np.asarray(self._models[task.step])[:cut]
            update = trained.astype(np.float64) - sent
            buffers = np.asarray(self._trainer.buffers(result.parameters), dtype=np.float64) if buffered else None
            place = places[task.id]
            entry = group.members[place], group.asks[place], update, result.loss, buffers
            if ordered:
                found.append((place, entry))
            else:
                yield entry
        for _, entry in sorted(found, key=lambda pair: pair[0]):
            yield entry

    # -- checkpoints -----------------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Return the clients' memories and budgets as name -> numbers and name -> vector."""
        numbers: dict[str, Any] = {str(client): own.version for client, own in self._own.items()}
        vectors = {str(client): own.offset for client, own in self._own.items() if own.offset is not None}
        budget, noise = ({}, {}) if self.budget is None else self.budget.saved()
        return {"memories": numbers, "budget": budget}, {**vectors, **noise}

    def load(self, private: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
        """Restore what `saved` returned."""
        if self.budget is not None:
            self.budget.load(private["budget"], vectors)
        self._own = {
            int(client): OwnMemory(
                np.asarray(vectors[client], dtype=np.float64) if client in vectors else None,
                None,
                int(version),
            )
            for client, version in private["memories"].items()
        }
