"""Whether sums together tell something about one client alone.

An update enters the sum in which it is opened. With a memory on the clients, it enters another sum later, as the offset
that the client's next answer replaces, and then with other clients. A server that keeps all sums can combine them; a
combination in which all clients but one cancel tells about that client. `Exposure` finds such combinations by linear
algebra, from the clients in each sum and their factors. It needs no update, so the server itself can avoid them.

Sums of numbers (lengths, squares, products, losses) are simpler: each number belongs to one answer and enters one sum,
so no two sums have a number in common. It is enough that no sum is about one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace._base.checks import FloatArray

if TYPE_CHECKING:
    from fedpace.core.sums import Group

ALONE = 1e-9
"""A combination of unit length is about one client if the others' squared part in it is less than this."""
MOST_SUMS = 256
"""Sums to remember at most; the work per step grows with their square."""
FACTORS = {"weighted": "weight", "late": "new"}
"""Kind of a group -> name of the number that a client's update is multiplied by; "w" for all others."""
SMALLEST = 1e-7
"""Part of a sum, relative to its length, below which it follows from the sums before."""


class Exposure:
    """The sums that a server has seen since it last forgot all clients, as combinations of the clients' updates."""

    def __init__(self) -> None:
        self.basis: FloatArray = np.zeros((0, 0))
        """(r, columns) orthonormal combinations; each column is one update."""
        self.owners: list[Any] = []
        """Client of each column."""
        self._last: dict[Any, int] = {}
        """Client -> the column of the update that its offset is made of."""
        self._alone: list[Any] = []
        """Clients that a sum of numbers is about alone."""

    @property
    def full(self) -> bool:
        """Whether there are too many sums to add more."""
        return len(self.basis) >= MOST_SUMS

    def clear(self) -> None:
        """Start again: after the server forgot all clients, earlier updates enter no other sum."""
        self.basis, self.owners, self._last, self._alone = np.zeros((0, 0)), [], {}, []

    def after(self, groups: Sequence[Group]) -> Exposure:
        """Return the sums after these groups are opened too."""
        found = Exposure()
        found.owners, found._last = list(self.owners), dict(self._last)
        found._alone = self._alone + [client for group in groups for client in found._numbers(group)]
        equations = [row for group in groups for row in found.equations(group)]
        found.basis = np.pad(self.basis, ((0, 0), (0, len(found.owners) - self.basis.shape[1])))
        for equation in equations:
            row = np.zeros(len(found.owners))
            row[list(equation)] = list(equation.values())
            length = float(np.linalg.norm(row))
            if length > 0:
                row /= length
                for _ in range(2):  # once more, because of rounding
                    row -= (found.basis @ row) @ found.basis
                if (rest := float(np.linalg.norm(row))) > SMALLEST:
                    found.basis = np.vstack([found.basis, row / rest])
        return found

    def clients(self) -> list[Any]:
        """Return the clients that a combination of the sums tells something about alone."""
        columns: dict[Any, list[int]] = {}
        for column, owner in enumerate(self.owners):
            columns.setdefault(owner, []).append(column)
        found = list(self._alone)
        for client, own in columns.items():
            part = self.basis[:, own]
            gram = part.T @ part if len(own) < len(part) else part @ part.T
            if gram.size and float(np.linalg.eigvalsh(gram)[-1]) > 1 - ALONE:
                found.append(client)
        return list(dict.fromkeys(found))

    def equations(self, group: Group) -> list[dict[int, float]]:
        """Return the sums of a group, each as column -> factor, and give its updates their columns."""
        updates: dict[int, float] = {}
        offsets: dict[int, float] = {}
        for member, ask in zip(group.members, group.asks, strict=True):
            column, before = len(self.owners), self._last.get(member.client)
            self.owners.append(member.client)
            self._last[member.client] = column
            updates[column] = ask[FACTORS.get(group.kind, "w")]
            if "old_version" in ask and before is not None:
                if group.kind == "fresh":
                    offsets[before] = ask["w"] * ask["scale"]
                else:
                    old = ask["old"] if group.kind == "late" else ask["w"] * ask["scale"]
                    updates[before] = updates.get(before, 0.0) - old
        return [row for row in (updates, offsets) if row]

    def _numbers(self, group: Group) -> list[Any]:
        """Return the clients whose number alone is a sum of numbers: each number enters one sum, and no other."""
        told: dict[str, set[Any]] = {"all": {member.client for member in group.members}}
        for member, ask in zip(group.members, group.asks, strict=True):
            if "old_version" in ask:
                told.setdefault("offsets", set()).add(member.client)
            if ask.get("change", 0.0) > 0:
                told.setdefault("changes", set()).add(member.client)
        if group.kind != "fresh":  # only there are squares of offsets summed
            told.pop("offsets", None)
        return [client for clients in told.values() if len(clients) == 1 for client in clients]

    def saved(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {"basis": self.basis.tolist(), "owners": self.owners, "last": list(self._last.items())}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `saved`."""
        self.owners, self._last = list(saved["owners"]), dict(map(tuple, saved["last"]))
        self.basis = np.array(saved["basis"], dtype=np.float64).reshape(len(saved["basis"]), len(self.owners))
