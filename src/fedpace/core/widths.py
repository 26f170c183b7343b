"""How wide moments and sketches are: as most clients report them.

All that is reported of a kind must be of one width. Whoever reports first would decide which, and one wrong width would
lock everybody else out. So each client has one vote, its last: when more clients report another width than are known
with the one in use, what is known is forgotten, and theirs is used.
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
    """Votes for other widths than those in use."""

    def __init__(self) -> None:
        self._others: dict[Kind, dict[ClientId, int]] = {kind: {} for kind in KINDS}

    def forget(self, clients: Collection[ClientId]) -> None:
        """Take the votes of clients back."""
        for votes in self._others.values():
            for client in clients:
                votes.pop(client, None)

    def vote(self, standing: Standing, outcomes: Sequence[Outcome]) -> None:
        """Take in what clients report, and let what is known be forgotten where it is outvoted."""
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
    """Forget everybody's moments: they are due again."""
    ledger.moments = deepcopy(ledger.no_moments)
    ledger.moments.append(len(ledger))
    ledger.columns["moment_step"][:] = -1
    ledger.trust.forget_moments()


def forget_updates(ledger: Ledger) -> None:
    """Forget everybody's sketches of updates."""
    ledger.tables.pop("updates", None)
    ledger.columns["update_step"][:] = -1


def width_of(told: Any, kind: Kind) -> int | None:
    """Return the width of what a client reports; None where it is nothing that could be used."""
    if told is None:
        return None
    try:
        shape = np.shape(told)
    except ValueError:  # rows of different lengths
        return None
    return shape[-1] if len(shape) == (2 if kind == "moment" else 1) and shape[-1] else None


def in_use(standing: Standing, kind: Kind) -> int | None:
    """Return the width that reports must have; None while there is none."""
    known = standing.ledger.moments.width if kind == "moment" else standing.ledger.width("updates")
    return standing.flight.width(kind) if known is None else known


def holders(standing: Standing, kind: Kind) -> set[ClientId]:
    """Return whose reports are of the width in use."""
    ledger = standing.ledger
    known = ledger.moments.known if kind == "moment" else filled(ledger.tables.get("updates"), len(ledger))
    return {*ledger.ids_of(np.flatnonzero(known)), *standing.flight.telling(kind)}
