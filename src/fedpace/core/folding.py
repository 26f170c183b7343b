"""Helpers of the ledger for reports of clients: they validate reports and bound their claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray, float_array, of_ordinary_size, real
from fedpace._base.errors import InputError
from fedpace.core.facts import LONGEST, REPORTED, WIDE, same_width, valid_seconds
from fedpace.core.messages import ClientId, Cohort, Outcome
from fedpace.core.protocols import MomentStore
from fedpace.core.widths import Kind, width_of
from fedpace.trust.bounds import SKETCH, Trust


def check_outcomes(
    outcomes: Sequence[Outcome],
    names: Callable[[int], str],
    moment_width: int | None,
    update_width: int | None,
    *,
    learn_delays: bool,
) -> None:
    """Raise InputError if a report is invalid.

    Args:
        outcomes: the reports.
        names: index of a report -> name of its client in error messages.
        moment_width: width of the known moments; None = unknown.
        update_width: width of the known sketches; None = unknown.
        learn_delays: whether every client that finished must report its seconds.
    """
    # An unknown width is the most common width of these reports, so the error names the client that differs.
    moment_width = moment_width or _usual(outcomes, "moment")
    update_width = update_width or _usual(outcomes, "update")
    for place, outcome in enumerate(outcomes):
        if not _plain(outcome):
            _check_numbers(outcome, names(place), learn_delays=learn_delays)
        if outcome.moment is None and outcome.update is None:
            continue
        who = names(place)
        if outcome.moment is not None:
            factor = float_array(outcome.moment, f"the moment factor of {who}", ndim=2)
            if factor.shape[1] == 0:
                raise InputError(f"the moment factor of {who} has no columns: its shape is {factor.shape}")
            moment_width = same_width(moment_width, factor.shape[1], f"the moment of {who}", "features")
            of_ordinary_size(factor, f"the moment factor of {who}")
        if outcome.update is not None:
            update = WIDE["updates"].check(outcome.update, who, update_width)
            update_width = update.size
            of_ordinary_size(update, f"the update sketch of {who}")


def _plain(outcome: Outcome) -> bool:
    """Return whether all numbers are valid; a fast test that lets nearly all reports skip `_check_numbers`."""
    return (
        type(outcome.finished) is bool
        and type(outcome.late) is bool
        and type(outcome.seconds) is float
        and 0.0 <= outcome.seconds <= LONGEST
        and type(outcome.measured) is float
        and (0.0 <= outcome.measured <= LONGEST or outcome.measured != outcome.measured)
        and all(fact.plain(getattr(outcome, fact.name)) for fact in REPORTED)
    )


def _check_numbers(outcome: Outcome, who: str, *, learn_delays: bool) -> None:
    if not isinstance(outcome.finished, bool | np.bool_) or not isinstance(outcome.late, bool | np.bool_):
        raise InputError(f"finished and late of {who} must be True or False, but {outcome.finished!r} came")
    if not math.isnan(real(outcome.seconds, f"the seconds of {who}")):
        valid_seconds(outcome.seconds, who)
    elif outcome.finished and learn_delays:
        raise InputError(f"{who} finished, but its delay is missing: report the seconds that it took")
    if not math.isnan(real(outcome.measured, f"the measured seconds of {who}")):
        valid_seconds(outcome.measured, who)
    for fact in REPORTED:
        fact.check(getattr(outcome, fact.name), who)


def _usual(outcomes: Sequence[Outcome], kind: Kind) -> int | None:
    told = [each for outcome in outcomes if (each := getattr(outcome, kind)) is not None]
    counts = Counter(width for each in told if (width := width_of(each, kind)) is not None)
    return counts.most_common(1)[0][0] if counts else None


def clipped_sketches(
    trust: Trust, rows: Sequence[int], outcomes: Sequence[Outcome], bounded: Collection[ClientId], step: int
) -> Sequence[Outcome]:
    """Return the outcomes with long update sketches clipped, except for `bounded` clients.

    `Coordinator.bound` has clipped the updates of `bounded` clients, and the server computed their sketches itself.
    """
    if not trust.on:
        return outcomes
    sketches = {
        place: np.asarray(outcome.update, dtype=np.float64)
        for place, outcome in enumerate(outcomes)
        if outcome.finished and outcome.update is not None and outcome.client not in bounded
    }
    with np.errstate(over="ignore"):
        lengths = [float(np.linalg.norm(sketch)) for sketch in sketches.values()]
    factors = trust.clip_factors([rows[place] for place in sketches], lengths, SKETCH, step=step)
    long = {place: factor for place, factor in zip(sketches, factors.tolist(), strict=True) if factor < 1}
    if not long:
        return outcomes
    shorter = {place: factor * sketches[place] if factor else None for place, factor in long.items()}
    return [replace(o, update=shorter[place]) if place in shorter else o for place, o in enumerate(outcomes)]


def corrected_claims(cohort: Cohort, claimed: FloatArray, trust: Trust) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the corrections of clients' claims, as facts and as row -> reason of a decision.

    Args:
        cohort: its reasons are kept in front of the new ones.
        claimed: (n,) delays that clients claim.
        trust: has the corrections of delays and moments.
    """
    slowdown, scale = trust.slowdown(), trust.columns["moment_scale"]
    rows = np.flatnonzero((slowdown != 1) | (scale != 1)).tolist()
    reasons: dict[int, str] = {}
    for row in rows:
        said = [cohort.why.reasons[row]] if row in cohort.why.reasons else []
        if slowdown[row] != 1:
            said.append(f"claims {claimed[row]:.3g} s, but takes {slowdown[row]:.3g} times as long")
        if scale[row] != 1:
            said.append(f"its moment is {1 / scale[row]:.3g} times as large as it may be, and is clipped")
        reasons[row] = "; ".join(said)
    table = tuple((row, float(slowdown[row]), float(scale[row])) for row in rows)
    return ({"corrected": table} if rows else {}), reasons


def fold_moments(trust: Trust, store: MomentStore, reported: Mapping[int, FloatArray]) -> None:
    """Store the reported moments, scaled as trust demands, and rescale stored moments if their scale has changed."""
    if not reported:
        return
    factors = {row: np.asarray(factor, dtype=np.float64) for row, factor in reported.items()}
    before = trust.columns["moment_scale"]
    for row, scale in trust.scale_moments(factors).items():
        if row in factors:
            store.put(row, factors[row] * math.sqrt(scale))
        elif (stored := getattr(store, "factor", lambda _: None)(row)) is not None:
            store.put(row, stored * math.sqrt(scale / before[row]))
