"""Helpers of server rules with a table of clients: which clients count, and how a robust rule combines the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace.core.server_rule import Answers, ShareOf


def still_counting(
    clients: Sequence[object], shares: Sequence[float], share_of: ShareOf | None
) -> tuple[list[int], tuple[float, ...]]:
    """Return the positions of clients that still count in the objective, and their current shares.

    Args:
        clients: the remembered clients.
        shares: each client's share when it last answered. Used as it is if `share_of` is None.
        share_of: returns a client's current share, or None if the client no longer counts.
    """
    if share_of is None:
        return list(range(len(clients))), tuple(shares)
    now = [share_of(client) for client in clients]
    counted = {place: share for place, share in enumerate(now) if share is not None}
    return list(counted), tuple(counted.values())


def robust_step(
    answers: Answers, table: Mapping[object, tuple[Any, float, int]]
) -> tuple[FloatArray | None, BoolArray]:
    """Return the step that a robust rule makes of the answers and the table, and which answers it used.

    The step is None without a robust rule, and all answers are used then. Every client votes with its share: several
    answers of one client divide it, and they replace the client's entry in the table.

    Args:
        answers: of the step, with one source each.
        table: client -> its remembered update, its share, and a number that plays no part here.
    """
    if answers.combine is None:
        return None, np.ones(len(answers.rows), dtype=np.bool_)
    times = Counter(source.client for source in answers.sources)
    others = [entry for client, entry in table.items() if client not in times]
    rows = np.array([np.asarray(row) for row in (*answers.rows, *(entry[0] for entry in others))])
    votes = [source.share / times[source.client] for source in answers.sources]
    shares = np.array([*votes, *(entry[1] for entry in others)])
    combined = answers.combine(rows, shares / shares.sum())
    return combined.step, combined.weights[: len(answers.rows)] > 0
