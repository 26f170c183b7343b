"""What the ledger does with reports before and while it takes them in: refuse, screen, bring moments to size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedpace._base.checks import FloatArray, float_array, of_ordinary_size, real
from fedpace._base.errors import InputError
from fedpace.core.claims import ENOUGH
from fedpace.core.facts import LONGEST, REPORTED, WIDE, same_width, valid_seconds
from fedpace.core.messages import ClientId, Outcome
from fedpace.core.protocols import RIDGE, MomentStore
from fedpace.core.screening import compared
from fedpace.core.tasks import Task
from fedpace.core.trust import Trust
from fedpace.core.widths import Kind, width_of

if TYPE_CHECKING:
    from fedpace.core.ledger import Ledger


def check_outcomes(
    outcomes: Sequence[Outcome],
    names: Callable[[int], str],
    moment_width: int | None,
    update_width: int | None,
    *,
    learn_delays: bool,
) -> None:
    """Refuse reports that cannot be folded.

    Args:
        outcomes: the reports.
        names: what errors call the client of the i-th.
        moment_width: of the moments that are known already.
        update_width: of the sketches that are known already.
        learn_delays: whether a client that finished must say how long it took.
    """
    # Where none is known it is what most of them have: who differs is named, and not who came after it.
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
    """Whether nothing can be wrong with its numbers. Nearly always: sentences are only made where something may be."""
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


def screened(
    trust: Trust, rows: Sequence[int], outcomes: Sequence[Outcome], step: int, judged: Collection[ClientId]
) -> Sequence[Outcome]:
    """Return the outcomes without sketches of updates that no server would use.

    Where the updates themselves came, they were `judged` already.
    """
    if not trust.on:
        return outcomes
    sketches = {
        place: np.asarray(outcome.update, dtype=np.float64)
        for place, outcome in enumerate(outcomes)
        if outcome.finished and outcome.update is not None and outcome.client not in judged
    }
    versions = [step] * len(sketches)
    whose, width = [rows[place] for place in sketches], min(map(len, sketches.values()), default=0)
    lengths, cosines = compared(lambda: iter(sketches.values()), versions, trust.believed(whose, versions, width))
    times, _ = trust.judge(whose, lengths, versions, cosines, step, coordinates=width)
    refused = {place for place, time in zip(sketches, times.tolist(), strict=True) if time}
    if not refused:
        return outcomes
    trust.refuse([rows[place] for place in refused])
    return [replace(o, update=None) if place in refused else o for place, o in enumerate(outcomes)]


def compare_shapes(ledger: Ledger, shares: Callable[[], FloatArray], first: FloatArray | None = None) -> None:
    """Hold moments that are new against the updates of clients that trained from one model, where there are enough.

    Args:
        ledger: what is known of clients.
        shares: what says what they weigh in the objective.
        first: sketches of all that were heard on the first model, NaN = none; None = the ledger's, of any model.
    """
    updates, trust = ledger.tables.get("updates") if first is None else first, ledger.trust
    if not trust.on or updates is None or not updates.shape[1]:
        return
    ready = ledger.moments.known & ~np.isnan(updates).any(axis=1)
    new = ready & ~(trust.columns["shape"] >= 0)
    steps, points = ledger.columns["update_step"] if first is None else np.zeros(len(updates)), None
    for step in np.unique(steps[new]):
        rows = np.flatnonzero(ready & (steps == step))
        if rows.size < ENOUGH:
            continue
        # With the schemes' own ridge, unless they were told otherwise, the points are made once for both.
        points = ledger.moments.directions(ridge=RIDGE, shares=shares()) if points is None else points
        trust.compare_shapes(rows, updates[rows], points[rows])


def note_beginning(ledger: Ledger, settled: Sequence[tuple[Task, Outcome]], *, rounds: bool) -> None:
    """Note what clients did to the first model, and what they weigh in the steps since (`fedpace.core.beginning`).

    Without rounds the policy is held up where they are judged, since training may begin again. In rounds, as after a
    warm-up, who works against most others is found here and asked no more: a cohort of such clients alone agrees.
    """
    trust = ledger.trust
    if not trust.on or trust.beginning.over:
        return
    for task, outcome in settled:
        row = ledger.row(task.client)
        trust.beginning.led[row] += abs(task.weight) if outcome.finished else 0.0
        if task.step == 0 and outcome.finished and outcome.update is not None:
            trust.hear_first({row: outcome.update})
    found = trust.judge_beginning() if rounds else None
    if found is not None and found.any():  # nor is anything to be learnt from what they sent
        ledger.tables["updates"][found] = math.nan
        ledger.columns["update_step"][found] = -1


def fold_moments(trust: Trust, store: MomentStore, reported: Mapping[int, FloatArray]) -> None:
    """Keep moments, each in the size that the fleet's allow; others' change where the fleet's median did."""
    if not reported:
        return
    factors = {row: np.asarray(factor, dtype=np.float64) for row, factor in reported.items()}
    before = trust.columns["scale"]
    for row, scale in trust.weigh(factors).items():
        if row in factors:
            store.put(row, factors[row] * math.sqrt(scale))
        elif (stored := getattr(store, "factor", lambda _: None)(row)) is not None:
            store.put(row, stored * math.sqrt(scale / before[row]))
