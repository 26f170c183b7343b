"""`Influence` counts per client how a run bounded it: clipped updates, capped weights, updates left out, exclusions.

Rounds record these among their facts (`clipped`, `capped`, `left out`, `excluded`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpace.records.run import Round

NAMED = 5
"""Most excluded clients that a line names; if there are more, it also gives their number."""


@dataclass
class Bounded:
    """How often one client was bounded, and how."""

    clipped: int = 0
    shortest: float = 1.0
    """Smallest factor by which an update was clipped; 1 = never clipped."""
    capped: int = 0
    least_weight: float | None = None
    """Smallest weight that the client was capped to; None = never capped."""
    left_out: int = 0
    exclusions: int = 0
    """How often the client was excluded; more than once only if it was readmitted in between."""

    @property
    def times(self) -> int:
        """Number of bounds of all kinds."""
        return self.clipped + self.capped + self.left_out + self.exclusions


class Influence:
    """Bounds in the rounds that were added; it is falsy if there were none."""

    def __init__(self, rounds: Iterable[Round] = ()) -> None:
        self.clients: dict[str, Bounded] = {}
        """Client name, as the host uses it -> its bounds. Clients that were never bounded are missing."""
        self.excluded: dict[str, int] = {}
        """Client name -> round in which it was excluded. Clients that were readmitted are missing."""
        for current in rounds:
            self.add(current)

    def __bool__(self) -> bool:
        """Return whether any client was bounded."""
        return bool(self.clients)

    def add(self, current: Round) -> None:
        """Count the bounds of one more round."""
        facts = current.facts
        for name, factor in _numbers(facts.get("clipped")).items():
            client = self._of(name)
            client.clipped, client.shortest = client.clipped + 1, min(client.shortest, factor)
        for name, weight in _numbers(facts.get("capped")).items():
            client = self._of(name)
            least = weight if client.least_weight is None else min(client.least_weight, weight)
            client.capped, client.least_weight = client.capped + 1, least
        for name in set(named(facts.get("left out"))):
            self._of(name).left_out += 1
        if "excluded" in facts:  # recorded only when the list changes
            now = named(facts["excluded"])
            for name in now:
                if name not in self.excluded:
                    self._of(name).exclusions += 1
            self.excluded = {name: self.excluded.get(name, current.number) for name in now}

    def total(self, kind: str) -> int:
        """Return the total count of one kind: `clipped`, `capped` or `left_out`."""
        return sum(getattr(client, kind) for client in self.clients.values())

    def line(self, names: Sequence[str] = ()) -> str:
        """Return one line, such as `clipped 3, capped 2, excluded: phone-7`; empty if no client was bounded.

        Args:
            names: the data set's names of the clients, for rounds that number the clients.
        """
        kinds = {"clipped": "clipped", "capped": "capped", "left_out": "left out"}
        said = [f"{word} {count:,}" for kind, word in kinds.items() if (count := self.total(kind))]
        if self.excluded:
            some = [called(name, names) for name in self.excluded]
            more = f", ... ({len(some):,} in all)" if len(some) > NAMED else ""
            said.append(f"excluded: {', '.join(some[:NAMED])}{more}")
        elif self.clients and any(client.exclusions for client in self.clients.values()):
            said.append("no client is excluded any more")
        return ", ".join(said)

    def _of(self, name: str) -> Bounded:
        return self.clients.setdefault(name, Bounded())


def called(name: str, names: Sequence[str]) -> str:
    """Return the data set's name of a client that rounds call by number; otherwise `name` itself."""
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def named(clients: Any) -> list[str]:
    """Return the names of the clients that a fact lists."""
    return [str(client) for client in clients] if isinstance(clients, list | tuple) else []


def _numbers(fact: Any) -> dict[str, float]:
    """Return a fact as a dict from client to number; empty if it is not one."""
    if not isinstance(fact, Mapping):
        return {}
    return {str(name): float(value) for name, value in fact.items() if isinstance(value, int | float)}
