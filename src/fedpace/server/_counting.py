"""Whose memories still count: clients that have left, or are excluded, must not move the model for ever."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace.core.stepping import ShareOf


def still_counting(
    clients: Sequence[object], shares: Sequence[float], share_of: ShareOf | None
) -> tuple[list[int], tuple[float, ...]]:
    """Return the places of clients that count in the objective, and what each of them weighs in it now.

    Args:
        clients: of whom something is remembered.
        shares: what each weighed when it was heard; it stays so where the host does not say `share_of`.
        share_of: what a client weighs now; None where it does not count any more.
    """
    if share_of is None:
        return list(range(len(clients))), tuple(shares)
    now = [share_of(client) for client in clients]
    counted = {place: share for place, share in enumerate(now) if share is not None}
    return list(counted), tuple(counted.values())
