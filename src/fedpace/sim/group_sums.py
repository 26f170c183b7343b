"""Group sums in the simulator: clients train, contribute to sums, and keep their own memory.

`SimulatedGroups` plays both sides that the server does not see: the clients, and the protocol or trusted aggregator
between them. Only `GroupSum` leaves this module. The sums are computed in the clear and in double precision; real
protocols work with fixed-point numbers (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import Vector
from fedpace.core.sums import Group, GroupSum, Member, Sums, add_up, weighted_contribution, with_training
from fedpace.core.tasks import Step, Task
from fedpace.core.types import ClientId
from fedpace.server._client_memory import OwnMemory
from fedpace.sim.clients import Clients
from fedpace.sim.trainers import Trainer

NOTHING = OwnMemory()


class SimulatedGroups:
    """The clients' side of group sums; the `Opener` of a simulation.

    Args:
        clients: trains the clients' tasks.
        models: version -> model that clients received.
        trainer: knows which entries of a model are buffers.
    """

    def __init__(self, clients: Clients, models: Mapping[int, Vector], trainer: Trainer) -> None:
        self._clients, self._models, self._trainer = clients, models, trainer
        self._tasks: dict[int, Task] = {}
        self._own: dict[ClientId, OwnMemory] = {}
        """Client -> what only this client knows."""

    def prepare(self, step: Step) -> None:
        """Note the tasks of the step that is due."""
        self._tasks = {task.id: task for task, _ in step.answers}

    def open(self, group: Group, minimum: int) -> GroupSum | None:
        """Train the members of a group and return the sums of what they contribute."""
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

    def publish(self, version: int, reference: Vector) -> None:
        """Send the reference of a model version to all clients that wait for it."""
        known = np.asarray(reference, dtype=np.float64)
        self._own = {client: own.received(version, known) for client, own in self._own.items()}

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
        ordered = group.kind in ("late", "late-new")  # several answers of a client follow each other
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

    def saved(self) -> tuple[dict[str, list[float]], dict[str, FloatArray]]:
        """Return the clients' memories as name -> numbers and name -> vector."""
        numbers = {str(client): [own.version, own.length, own.drift] for client, own in self._own.items()}
        vectors = {str(client): own.offset for client, own in self._own.items() if own.offset is not None}
        return numbers, vectors

    def load(self, numbers: Mapping[str, Sequence[float]], vectors: Mapping[str, Vector]) -> None:
        """Restore what `saved` returned."""
        self._own = {
            int(client): OwnMemory(
                np.asarray(vectors[client], dtype=np.float64) if client in vectors else None,
                None,
                int(version),
                length,
                drift,
            )
            for client, (version, length, drift) in numbers.items()
        }
