"""The common width of feature moments and of update sketches, decided by a vote of the clients.

All moments must have the same width, and so must all sketches. If the first report decided, one client with a wrong
width would lock out all others. So the last report of each client is its vote. When more clients report another width
than hold the width in use, the stored facts are deleted and the new width is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from fedpace._base.codec import ClientId
from fedpace.core.facts import KINDS, WideKind, width_of
from fedpace.core.ledger import Ledger, filled
from fedpace.core.task_table import TaskTable
from fedpace.core.types import Outcome


class Widths:
    """The widths in use, and the votes for other widths.

    Args:
        ledger: holds the facts that clients have reported.
        table: returns the current tasks; their answers hold facts that are not in the ledger yet.
    """

    def __init__(self, ledger: Ledger, table: Callable[[], TaskTable]) -> None:
        self._ledger, self._table = ledger, table
        self._others: dict[WideKind, dict[ClientId, int]] = {kind: {} for kind in KINDS}

    def leave(self, clients: Collection[ClientId]) -> None:
        """Delete the votes of clients that leave."""
        for votes in self._others.values():
            for client in clients:
                votes.pop(client, None)

    def vote(self, outcomes: Iterable[Outcome]) -> None:
        """Count the widths in reports, and forget the facts of a width that is outvoted."""
        for outcome in outcomes:
            for kind in KINDS:
                if (told := getattr(outcome, kind)) is not None and (came := width_of(told, kind)) is not None:
                    self._count(outcome.client, kind, came)

    def _count(self, client: ClientId, kind: WideKind, came: int) -> None:
        votes = self._others[kind]
        if came == self.in_use(kind):
            votes.pop(client, None)
            return
        votes[client] = came
        if sum(width == came for width in votes.values()) > len(self.holders(kind) - {client}):
            self.forget(kind)
            votes.clear()

    def in_use(self, kind: WideKind) -> int | None:
        """Return the width in use, from the ledger or from answers in hand; None if there is none."""
        known = self._ledger.moments.width if kind == "moment" else self._ledger.width("updates")
        return self._table().width(kind) if known is None else known

    def holders(self, kind: WideKind) -> set[ClientId]:
        """Return the clients with a moment or sketch of the width in use, in the ledger or in hand."""
        ledger = self._ledger
        known = ledger.moments.known if kind == "moment" else filled(ledger.tables.get("updates"), len(ledger))
        return {*ledger.ids_of(np.flatnonzero(known)), *self._table().telling(kind)}

    def forget(self, kind: WideKind) -> None:
        """Forget all moments or sketches, also in answers not yet used; clients are asked for moments again."""
        if kind == "moment":
            self._ledger.forget_moments()
        else:
            self._ledger.forget_updates()
        self._table().forget(kind)
