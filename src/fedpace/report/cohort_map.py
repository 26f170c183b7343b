"""The map of selected clients over rounds, with their weights, for one seed of every scheme; clients sorted by delay.

For large fleets and long runs, a row combines clients with similar delays and a column combines consecutive rounds, so
that the page stays small. A cell holds the weight of its row per round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace.core.types import ClientId
from fedpace.records.run import RunRecord
from fedpace.report import numbers

ROWS = 120
COLUMNS = 200
REASONS = 60_000
"""Letters of reasons that a scheme's map carries; the rounds that come first have theirs."""


@dataclass(frozen=True)
class CohortMap:
    """The cells that are not empty, one entry of each list per cell."""

    rows: list[str]
    """Names of the rows, fastest clients first."""
    ticks: list[str]
    """Delay of each row."""
    per_row: int
    """Clients in a row at the most."""
    per_column: int
    """Rounds in a column."""
    rounds: int
    row: list[int]
    column: list[int]
    weight: list[float]
    failed: list[int]
    """Tasks of the cell that failed or were given up."""
    why: list[int]
    """Position in `reasons`; -1 = none was given."""
    reasons: list[str]


def cohort_map(run: RunRecord) -> CohortMap | None:
    """Return the map of a run; None where nobody was ever chosen."""
    played = [current for current in run.rounds if current.number > 0]
    order = _by_delay(run)
    if not order or not any(current.clients for current in played):
        return None
    per_row, per_column = -(-len(order) // ROWS), -(-len(played) // COLUMNS)
    place = {_key(client): rank // per_row for rank, (client, _) in enumerate(order)}
    cells: dict[tuple[int, int], list[Any]] = {}
    known: dict[str, int] = {}
    room = REASONS
    for number, current in enumerate(played):
        failed = {_key(client) for client in current.failed}
        recorded = current.facts.get("reasons", {})
        work = told if isinstance(told := current.facts.get("work"), Mapping) else {}
        weights = current.weights or [1 / len(current.clients)] * len(current.clients)
        for client, weight in zip(current.clients, weights, strict=True):
            cell = cells.setdefault((place[_key(client)], number // per_column), [0.0, 0, -1])
            if _key(client) in failed:
                cell[1] += 1
                continue
            cell[0] += weight
            reason = recorded.get(str(client)) if isinstance(recorded, Mapping) else None
            if isinstance(work.get(str(client)), int | float):
                trained = f"trained {work[str(client)]:.3g} times as much as usual"
                reason = trained if reason is None else f"{reason}; {trained}"
            if reason is not None and per_row == per_column == 1 and (reason in known or room > len(reason)):
                room -= 0 if reason in known else len(reason)
                cell[2] = known.setdefault(reason, len(known))
    rows = [order[start : start + per_row] for start in range(0, len(order), per_row)]
    return CohortMap(
        rows=[_named(row, run.info.names) for row in rows],
        ticks=["" if row[0][1] is None else numbers.seconds(row[0][1]) for row in rows],
        per_row=per_row,
        per_column=per_column,
        rounds=len(played),
        row=[row for row, _ in cells],
        column=[column for _, column in cells],
        weight=[float(f"{cell[0] / per_column:.3g}") for cell in cells.values()],
        failed=[cell[1] for cell in cells.values()],
        why=[cell[2] for cell in cells.values()],
        reasons=list(known),
    )


def participation(run: RunRecord, groups: int = 10) -> list[float] | None:
    """Return the share of the answers that came from each tenth of the clients by delay; None where it is unknown."""
    order = _by_delay(run)
    if not order or order[0][1] is None:
        return None
    tenths = np.array_split(np.arange(len(order)), min(groups, len(order)))
    where = {_key(order[rank][0]): number for number, ranks in enumerate(tenths) for rank in ranks}
    counts = np.zeros(len(tenths))
    for current in run.rounds:
        failed = {_key(client) for client in current.failed}
        for client in current.clients:
            if _key(client) not in failed:
                counts[where[_key(client)]] += 1
    if not counts.any():
        return None
    shares: list[float] = (counts / counts.sum()).tolist()
    return shares


def _by_delay(run: RunRecord) -> list[tuple[ClientId, float | None]]:
    """Return clients, fastest first; where no delays were recorded, those that were chosen most come first."""
    delays = run.info.expected_delays
    chosen: dict[Any, int] = {}
    names: dict[Any, ClientId] = {}
    for current in run.rounds:
        for client in current.clients:
            chosen[_key(client)] = chosen.get(_key(client), 0) + 1
            names[_key(client)] = client
    if delays and all(isinstance(client, int) and 0 <= client < len(delays) for client in names.values()):
        # Read back from JSON, an infinite delay is null.
        seconds = np.array([np.inf if delay is None else delay for delay in delays], dtype=np.float64)
        return [(int(client), float(seconds[client])) for client in np.argsort(seconds, kind="stable")]
    return [(names[key], None) for key in sorted(names, key=lambda key: (-chosen[key], str(key)))]


def _named(row: Sequence[tuple[ClientId, float | None]], names: Sequence[str]) -> str:
    (first, fast), (last, slow) = row[0], row[-1]
    if isinstance(first, int) and first < len(names):
        first = names[first]
    if len(row) == 1:
        return f"client {first}" + ("" if fast is None else f", {numbers.seconds(fast)}")
    between = "" if fast is None or slow is None else f", {numbers.seconds(fast)} to {numbers.seconds(slow)}"
    return f"{len(row)} clients{between}" if between else f"clients {first} to {last}"


def _key(client: ClientId) -> Any:
    """What a client is known by: ids that are tuples come back from JSON as lists."""
    return tuple(client) if isinstance(client, list) else client
