"""`Edges`: aggregators between the devices of a simulated fleet and the root.

Each group of devices belongs to one edge, such as that of its region, and its devices answer this edge. An edge adds up
the updates of the same group that started from the same version of the model, and every few seconds sends its sums to
the root. Admission policies weigh answers by group and lag alone, so the root can weigh such a sum as it would weigh
the single updates. Until a sum arrives, the root counts its devices as in flight.

A dead edge answers no check-in, and tasks of its devices that end meanwhile are lost. It has saved the answers that it
had acknowledged before, and sends them when it is back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedpace._base.checks import at_least, finite
from fedpace._base.errors import InputError
from fedpace.population.fleet import Group


@dataclass(frozen=True)
class Edges:
    """Edge aggregators of a fleet; see `simulate`.

    Args:
        groups: group -> name of its edge.
        seconds: seconds between two messages of an edge to the root; 0 = it passes every answer on at once.
        slow: edge -> its own seconds between two messages.
        outages: edge -> the (start, end) seconds in which it is dead.
    """

    groups: Mapping[str, str]
    seconds: float = 10.0
    slow: Mapping[str, float] = field(default_factory=dict)
    outages: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        if not self.groups:
            raise InputError("edges must say which edge each group belongs to, but no group came")
        for name, seconds in [("every edge", self.seconds), *self.slow.items()]:
            finite(seconds, f"seconds between messages of {name}")
            at_least(seconds, 0, f"seconds between messages of {name}")
        known = set(self.groups.values())
        if unknown := [name for name in (*self.slow, *self.outages) if name not in known]:
            raise InputError(f"no group belongs to the edge {unknown[0]!r}; known edges: {', '.join(sorted(known))}")
        for name, times in self.outages.items():
            check_outages(times, f"an outage of {name}")

    @classmethod
    def of_zones(cls, groups: Sequence[Group], seconds: float = 10.0) -> Edges:
        """Return one edge per time zone, named by its hours such as `+8 h`."""
        return cls({group.name: f"{group.zone:+g} h" for group in groups}, seconds)

    def every(self, name: str) -> float:
        """Return the seconds between two messages of an edge."""
        return self.slow.get(name, self.seconds)

    def dead(self, name: str, now: float) -> bool:
        """Return whether an edge is dead at a time."""
        return any(start <= now < end for start, end in self.outages.get(name, ()))


def check_outages(times: Sequence[tuple[float, float]], name: str) -> None:
    """Raise InputError if these are not (start, end) seconds."""
    try:
        right = all(0 <= start < end for start, end in times)
    except (TypeError, ValueError):
        right = False
    if not right:
        raise InputError(f"{name} is a start and a later end in seconds, but {times!r} came")


class PartialSum(NamedTuple):
    """What an edge adds up to one vector: the answers of one group to one version of the model."""

    group: int
    version: int
    numbers: list[int]
    """The devices, as the simulator numbers those of a version."""


class HeldSums:
    """The sums that edges have not sent yet.

    Args:
        edges: the edges.
        names: the groups, in the order of their rows.
    """

    def __init__(self, edges: Edges, names: Sequence[str]) -> None:
        if missing := [name for name in names if name not in edges.groups]:
            raise InputError(f"edges must say which edge each group belongs to, but {missing[0]!r} is missing")
        self.edges = edges
        self._edge_of = [edges.groups[name] for name in names]
        self._sums: dict[str, dict[tuple[int, int], PartialSum]] = {name: {} for name in self._edge_of}
        self._next = {name: edges.every(name) for name in self._sums}
        self._versions: Counter[int] = Counter()
        """Version -> number of its sums that are held."""

    def dead(self, now: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(groups,) whether the edge of a group is dead."""
        return np.array([self.edges.dead(name, now) for name in self._edge_of])

    def passes_on(self, group: int) -> bool:
        """Return whether the edge of a group passes every answer on at once."""
        return self.edges.every(self._edge_of[group]) == 0

    def add(self, group: int, version: int, number: int) -> None:
        """Add an answer to the sum of its group and version."""
        sums = self._sums[self._edge_of[group]]
        if (group, version) not in sums:
            sums[group, version] = PartialSum(group, version, [])
            self._versions[version] += 1
        sums[group, version].numbers.append(number)

    def due(self, now: float) -> Iterator[PartialSum]:
        """Yield the sums that arrive at the root by now; a dead edge sends when it is back."""
        for name, sums in self._sums.items():
            if now < self._next[name] or self.edges.dead(name, now):
                continue
            every = self.edges.every(name)
            self._next[name] = (now // every + 1) * every if every else now
            for group, version in list(sums):
                self._versions[version] -= 1
                yield sums.pop((group, version))

    def holds(self, version: int) -> bool:
        """Return whether an answer to a version has not been sent yet."""
        return self._versions[version] > 0
