"""The common width of moments and of update sketches, decided by a vote of the clients.

All moments must have the same width, and so must all sketches. If the first report decided, one client with a wrong
width would lock out all others. So the last report of each client is its vote. When more clients report another width
than hold the width in use, the stored facts are deleted and the new width is used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedpace.core.facts import filled
from fedpace.core.messages import ClientId, Outcome

if TYPE_CHECKING:
    from fedpace.core.ledger import Ledger
    from fedpace.core.standing import Standing

Kind = Literal["moment", "update"]
KINDS: tuple[Kind, ...] = ("moment", "update")


class Widths:
    """The votes for widths other than those in use."""

    def __init__(self) -> None:
        self._others: dict[Kind, dict[ClientId, int]] = {kind: {} for kind in KINDS}

    def forget(self, clients: Collection[ClientId]) -> None:
        """Delete the votes of clients."""
        for votes in self._others.values():
            for client in clients:
                votes.pop(client, None)

    def vote(self, standing: Standing, outcomes: Sequence[Outcome]) -> None:
        """Count the widths in reports, and delete the stored facts of a kind if their width is outvoted."""
        for kind in KINDS:
            votes = self._others[kind]
            for outcome in outcomes:
                came = width_of(getattr(outcome, kind), kind)
                if came is None:
                    continue
                if came == in_use(standing, kind):
                    votes.pop(outcome.client, None)
                    continue
                votes[outcome.client] = came
                others = sum(width == came for width in votes.values())
                if others > len(holders(standing, kind) - {outcome.client}):
                    standing.forget_moments() if kind == "moment" else standing.forget_updates()
                    self._others[kind] = votes = {}


def forget_moments(ledger: Ledger) -> None:
    """Delete all feature moments; clients are asked for them again."""
    ledger.moments = deepcopy(ledger.no_moments)
    ledger.moments.append(len(ledger))
    ledger.columns["moment_step"][:] = -1
    ledger.trust.forget_moments()


def forget_updates(ledger: Ledger) -> None:
    """Delete all update sketches."""
    ledger.tables.pop("updates", None)
    ledger.columns["update_step"][:] = -1


def width_of(told: Any, kind: Kind) -> int | None:
    """Return the width of a reported moment or sketch; None if it is missing or has the wrong number of axes."""
    if told is None:
        return None
    try:
        shape = np.shape(told)
    except ValueError:  # rows of different lengths
        return None
    return shape[-1] if len(shape) == (2 if kind == "moment" else 1) and shape[-1] else None


def in_use(standing: Standing, kind: Kind) -> int | None:
    """Return the width in use, from the ledger or from answers in hand; None if there is none."""
    known = standing.ledger.moments.width if kind == "moment" else standing.ledger.width("updates")
    return standing.flight.width(kind) if known is None else known


def holders(standing: Standing, kind: Kind) -> set[ClientId]:
    """Return the clients with a moment or sketch of the width in use, in the ledger or in hand."""
    ledger = standing.ledger
    known = ledger.moments.known if kind == "moment" else filled(ledger.tables.get("updates"), len(ledger))
    return {*ledger.ids_of(np.flatnonzero(known)), *standing.flight.telling(kind)}
