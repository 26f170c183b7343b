"""Filters server memories: clients that left or are excluded must not influence the model any more."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace.core.stepping import ShareOf


def still_counting(
    clients: Sequence[object], shares: Sequence[float], share_of: ShareOf | None
) -> tuple[list[int], tuple[float, ...]]:
    """Return the positions of clients that still count in the objective, and their current shares.

    Args:
        clients: the remembered clients.
        shares: each client's share when it was last heard. Used as it is if `share_of` is None.
        share_of: returns a client's current share, or None if the client no longer counts.
    """
    if share_of is None:
        return list(range(len(clients))), tuple(shares)
    now = [share_of(client) for client in clients]
    counted = {place: share for place, share in enumerate(now) if share is not None}
    return list(counted), tuple(counted.values())
