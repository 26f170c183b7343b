"""What bounded the influence of clients in a run: clipped updates, capped weights, updates left out, exclusions.

Rounds record it among their facts (`clipped`, `capped`, `left out`, `excluded`); here it is counted per client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpace.records.round import Round

NAMED = 5
"""Excluded clients that a line names; of more it names these, and says how many there are."""


@dataclass
class Bounded:
    """In how many rounds one client was bounded, and how."""

    clipped: int = 0
    shortest: float = 1.0
    """The least part of an update's length that was left of it."""
    capped: int = 0
    least_weight: float | None = None
    """The least weight that it was capped to; None = it never was."""
    left_out: int = 0
    exclusions: int = 0
    """How often it was excluded: once, unless it was readmitted in between."""

    @property
    def times(self) -> int:
        """All together."""
        return self.clipped + self.capped + self.left_out + self.exclusions


class Influence:
    """What was bounded in the rounds that were added; false where nothing was."""

    def __init__(self, rounds: Iterable[Round] = ()) -> None:
        self.clients: dict[str, Bounded] = {}
        """By name, as the host names them; those of whom something was bounded."""
        self.excluded: dict[str, int] = {}
        """Client -> the round since whose end it is not asked. Readmitted clients are not among them."""
        for current in rounds:
            self.add(current)

    def __bool__(self) -> bool:
        """Whether anything was bounded."""
        return bool(self.clients)

    def add(self, current: Round) -> None:
        """Count what one more round says."""
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
        if "excluded" in facts:  # said where it changes
            now = named(facts["excluded"])
            for name in now:
                if name not in self.excluded:
                    self._of(name).exclusions += 1
            self.excluded = {name: self.excluded.get(name, current.number) for name in now}

    def total(self, kind: str) -> int:
        """Return how often it came to this: `clipped`, `capped` or `left_out`."""
        return sum(getattr(client, kind) for client in self.clients.values())

    def line(self, names: Sequence[str] = ()) -> str:
        """Return it in a line, such as `clipped 3, capped 2, excluded: phone-7`; empty where nothing was bounded.

        Args:
            names: what the data calls the clients, which rounds call by number.
        """
        kinds = {"clipped": "clipped", "capped": "capped", "left_out": "left out"}
        said = [f"{word} {count:,}" for kind, word in kinds.items() if (count := self.total(kind))]
        if self.excluded:
            some = [called(name, names) for name in self.excluded]
            more = f", ... ({len(some):,} in all)" if len(some) > NAMED else ""
            said.append(f"excluded: {', '.join(some[:NAMED])}{more}")
        elif self.clients and any(client.exclusions for client in self.clients.values()):
            said.append("nobody is excluded any more")
        return ", ".join(said)

    def _of(self, name: str) -> Bounded:
        return self.clients.setdefault(name, Bounded())


def called(name: str, names: Sequence[str]) -> str:
    """Return what the data calls a client that rounds call by its number; else the name itself."""
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def named(clients: Any) -> list[str]:
    """Return the clients that a fact lists, by name."""
    return [str(client) for client in clients] if isinstance(clients, list | tuple) else []


def _numbers(fact: Any) -> dict[str, float]:
    """Return a fact that holds a number per client."""
    if not isinstance(fact, Mapping):
        return {}
    return {str(name): float(value) for name, value in fact.items() if isinstance(value, int | float)}
