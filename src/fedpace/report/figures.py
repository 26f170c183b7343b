"""The charts of a comparison, each described once: `picture` draws them with matplotlib, `plotly_figures` for the page.

A `Chart` has two axes and a list of `Series`; curves of several seeds are merged into one (`Curve`). `cohort_map` holds
the clients that took part in each step, for one seed of every scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.types import ClientId
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.comparison import Comparison, SchemeSummary, group, work_so_far
from fedpace.report.style import BAR, Look, scheme_looks

Over = Literal["time", "rounds", "work"]
MAX_POINTS = 600
"""Most points of a curve: more than a screen shows, and few enough to keep the page small."""
MAX_NAMED = 10
"""Most marks with their names beside them; above it the legend tells them apart."""
LONG_SPAN = 30.0
"""Ratio of the slowest to the fastest scheme above which a linear axis shows the fastest as a vertical line."""
UNEVEN = 4
"""Ratio of the most rounds to the usual number of rounds above which the axis is logarithmic."""
STOPPED = "triangle-right-open"
"""Mark of a run that was stopped at an easier target: its time lies to the right, at an unknown distance."""


@dataclass(frozen=True)
class Axis:
    """An axis: its title, and how its values are spaced and labelled."""

    title: str
    log: bool = False
    zero: bool = False
    """Whether a linear axis starts at 0."""
    span: tuple[float, float] | None = None
    """First and last value; None = as the data need."""
    ticks: tuple[tuple[float, str], ...] = ()
    """Values and labels of ticks; empty = chosen by the library."""
    percent: bool = False
    whole: bool = False
    """Whether values are counts, of which there are no halves."""


@dataclass(frozen=True)
class Series:
    """Points that are drawn in one style."""

    x: FloatArray
    y: FloatArray
    shape: Literal["steps", "line", "marks", "area"] = "line"
    scheme: str = ""
    """Label of the scheme; empty = belongs to no scheme."""
    legend: str = ""
    """Text in the chart's own legend; empty = not listed."""
    colour: str = ""
    """Empty = the colour of the text."""
    dash: str = "solid"
    symbol: str = ""
    """Mark at every point, by plotly's name; empty = none."""
    size: float = 9
    opacity: float = 1.0
    low: FloatArray | None = None
    high: FloatArray | None = None
    """Ends of the band around the line."""
    name: str = ""
    """Text beside a mark, or beside a line where it covers least."""
    hover: str = ""
    """Text at the mouse, as plotly's template; empty = none."""
    seeds: tuple[int, ...] = ()
    """Seed of each point, for `hover`."""


@dataclass(frozen=True)
class Chart:
    """A chart, independent of the library that draws it."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rule: tuple[float, str] | None = None
    """Value of a horizontal line, and its text."""
    note: str = ""
    """What the marks mean."""
    height: int = 400
    """Pixels on the page."""


@dataclass(frozen=True)
class Curve:
    """A step curve: `mean[i]` holds from `x[i]` until `x[i + 1]`."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray

    def at(self, x: float | None) -> tuple[float, float]:
        """Return the point of the curve at `x`; None = its end."""
        if x is None:
            return float(self.x[-1]), float(self.mean[-1])
        return x, float(self.mean[max(0, int(np.searchsorted(self.x, x, side="right")) - 1)])


# -- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Over:
    """What a metric is drawn over."""

    title: str
    hover: str
    position: Callable[[RunRecord], FloatArray | None]
    """Position of every round; None = not recorded."""
    arrival: Callable[[SchemeSummary], float | None]
    """Where a scheme that always reached its target held it."""


_OVER: dict[Over, _Over] = {
    "time": _Over(
        "{clock} in seconds", "%{x:,.4~r} s", lambda run: np.array([r.clock for r in run.rounds], dtype=np.float64),
        lambda scheme: None if scheme.time_to_target is None else scheme.time_to_target.mean,
    ),
    "rounds": _Over(
        "rounds", "round %{x:.0f}", lambda run: np.array([r.number for r in run.rounds], dtype=np.float64),
        lambda scheme: scheme.rounds_to_target,
    ),
    "work": _Over(
        "client work in seconds, all clients together", "%{x:,.4~r} s of client work",
        lambda run: None if (spent := work_so_far(run)) is None else np.array(spent),
        lambda scheme: None if scheme.cost.work is None else scheme.cost.work.mean,
    ),
}  # fmt: skip


def metric_chart(runs: Sequence[RunRecord], comparison: Comparison, over: Over = "time") -> Chart | None:
    """Return the metric over time, rounds or client work; the training loss if no run was evaluated.

    None if no run records what the chart needs.
    """
    axis = _OVER[over]
    value = "metric" if any(run.evaluated for run in runs) else "train_loss"
    curves = [(scheme, merged(members, axis.position, value)) for scheme, members in by_scheme(runs, comparison)]
    drawn = [curve for _, curve in curves if curve is not None]
    if not drawn:
        return None
    log = over != "rounds" and log_time(runs, comparison) and any((curve.x > 0).any() for curve in drawn)
    edge = left_edge(drawn) if log else 0.0
    target = comparison.target if value == "metric" else None
    look = looks(comparison)
    lines: list[Series] = []
    ends: list[Series] = []
    for scheme, curve in curves:
        if curve is None:
            continue
        style = look[scheme.label]
        line = _step_line(scheme, curve, style, f"%{{y:.4~r}} at {axis.hover}", edge)
        lines.append(replace(line, name=numbers.shortened(scheme.label, 24)))
        arrived = target is not None and scheme.always_reached
        x, y = curve.at(axis.arrival(scheme) if arrived else None)
        symbol = "circle" if arrived or target is None else STOPPED if scheme.censored else "x"
        ends.append(
            Series(
                np.array([max(x, edge)]), np.array([y]), "marks", scheme.label, colour=style.colour, symbol=symbol,
                size=9 if target is not None else 6,
            )
        )  # fmt: skip
    marks = ["dot: target held"]
    if any(scheme.censored for scheme in comparison.schemes):
        marks.append("triangle: stopped at an easier target")
    if any(not (scheme.always_reached or scheme.censored) for scheme in comparison.schemes):
        marks.append("cross: not held in every run")
    name = comparison.metric if value == "metric" else "training loss"
    return Chart(
        f"{name.capitalize()} over {comparison.clock if over == 'time' else axis.title.partition(' in ')[0]}",
        Axis(axis.title.format(clock=comparison.clock), log=log, zero=not log),
        Axis(name),
        (*lines, *ends),
        rule=None if target is None else (target, f"target {numbers.given(target)}"),
        note="" if target is None else " · ".join(marks),
    )


def times_chart(comparison: Comparison) -> Chart:
    """Return the time to target of every seed, a row per scheme, and where runs ended without reaching it."""
    look = looks(comparison)
    series: list[Series] = []
    shown: list[float] = []
    for row, scheme in enumerate(comparison.schemes):
        colour = look[scheme.label].colour
        crossed = [(r, r.first_seconds) for r in scheme.results if r.first_seconds is not None and comparison.hold > 1]
        reached = [(r, r.seconds) for r in scheme.results if r.seconds is not None]
        late = [(r, r.ended) for r in scheme.results if r.seconds is None and not r.censored]
        stopped = [(r, r.ended) for r in scheme.results if r.censored]
        for results, symbol, size, said in (
            (crossed, "line-ns-open", 8, "first met at"),
            (reached, "circle", 11, "reached at"),
            (late, "x", 11, "not reached until"),
            (stopped, STOPPED, 11, "stopped at an easier target, at"),
        ):
            if results:
                x = [seconds for _, seconds in results]
                shown += x
                series.append(
                    Series(
                        np.array(x), np.full(len(x), float(row)), "marks", scheme.label, colour=colour, symbol=symbol,
                        size=size, opacity=0.85, hover=f"seed %{{customdata}}: {said} %{{x:,.4~r}} s",
                        seeds=tuple(result.seed for result, _ in results),
                    )
                )  # fmt: skip
    rows = len(comparison.schemes)
    log = bool(shown) and min(shown) > 0 and max(shown) > 10 * min(shown)
    ticks = tuple((float(row), numbers.shortened(s.label, 30)) for row, s in enumerate(comparison.schemes))
    return Chart(
        "Time to target, seed by seed",
        Axis(f"{comparison.clock} in seconds", log=log, zero=not log),
        Axis("", span=(rows - 0.5, -0.5), ticks=ticks),
        tuple(series),
        height=130 + 46 * rows,
    )


def work_chart(comparison: Comparison, *, seeds: bool = True) -> Chart | None:
    """Return client work against time: a large mark per scheme and, with `seeds`, a small one per seed.

    Both are counted until the target is held, or to the end of a run that does not hold it: then the mark is hollow.
    None if no run records its work, or if there is one run only: a single mark shows nothing.
    """
    look = looks(comparison)
    series: list[Series] = []
    until = "to the target" if comparison.target is not None else "of the run"
    hollow = False
    for scheme in comparison.schemes:
        work = scheme.cost.work
        if work is None:
            continue
        style = look[scheme.label]
        held = scheme.always_reached or comparison.target is None
        hollow = hollow or not held
        known = [(r, r.ended if r.seconds is None else r.seconds, r.cost.work) for r in scheme.results if r.cost.work]
        x, y = (np.array([point[place] for point in known], dtype=np.float64) for place in (1, 2))
        if seeds and len(known) > 1:
            series.append(
                Series(
                    x, y, "marks", scheme.label, colour=style.colour, symbol=style.symbol, size=6, opacity=0.45,
                    hover="seed %{customdata}: %{x:,.4~r} s, %{y:,.4~r} s of client work",
                    seeds=tuple(result.seed for result, _, _ in known),
                )
            )  # fmt: skip
        series.append(
            Series(
                _mean_time(x), np.array([work.mean]), "marks", scheme.label, colour=style.colour,
                symbol=style.symbol + ("" if held else "-open"), size=14, name=numbers.shortened(scheme.label, 24),
                hover="%{x:,.4~r} s, %{y:,.4~r} s of client work",
            )
        )  # fmt: skip
    if sum(len(each.x) for each in series) < 2:
        return None
    spaced = [_spaced(np.concatenate([getattr(each, name) for each in series])) for name in "xy"]
    return Chart(
        "What it cost",
        Axis(f"{comparison.clock} {until} in seconds", log=spaced[0], zero=not spaced[0]),
        Axis(f"client work {until} in seconds", log=spaced[1], zero=not spaced[1]),
        tuple(series),
        note="better: down and left" + (" · hollow: not held in every run" if hollow else ""),
    )


def cohort_chart(runs: Sequence[RunRecord], comparison: Comparison) -> Chart | None:
    """Return the number of different clients in each round or step; None if there was no round."""
    look = looks(comparison)
    series = [
        replace(
            _step_line(scheme, curve, look[scheme.label], "%{y:.4~r} clients in step %{x:.0f}", 0.0),
            name=numbers.shortened(scheme.label, 24),
        )
        for scheme, members in by_scheme(runs, comparison)
        if (curve := cohort_over_rounds(members)) is not None
    ]
    if not series:
        return None
    lengths = sorted(float(each.x[-1]) for each in series)
    log = lengths[-1] > UNEVEN * max(lengths[len(lengths) // 2], 1)  # else short rounds leave the others no room
    y = Axis("clients per step", zero=True, whole=True)
    return Chart("How many clients took part", Axis("step of the server", log=log), y, tuple(series))


def speed_chart(runs: Sequence[RunRecord], comparison: Comparison, of: Literal["share", "metric"]) -> Chart | None:
    """Return, per tenth of the clients by speed, the `share` of the replies or the `metric`; None if not recorded."""
    look = looks(comparison)
    series = []
    for scheme, members in by_scheme(runs, comparison):
        found = [values for run in members if (values := participation(run) if of == "share" else _by_speed(run))]
        if len({len(values) for values in found}) != 1:
            continue
        mean = np.mean(found, axis=0)
        style = look[scheme.label]
        series.append(
            Series(
                np.arange(1.0, len(mean) + 1), mean, "line", scheme.label, colour=style.colour, dash=style.dash,
                symbol=style.symbol, size=6, hover="%{y:.3~r} in tenth %{x}", name=numbers.shortened(scheme.label, 24),
            )
        )  # fmt: skip
    if not series:
        return None
    title = "share of the replies" if of == "share" else f"final {comparison.metric}"
    y = Axis(title, zero=of == "share", percent=of == "share")
    return Chart("Fast and slow clients", Axis("tenth of the clients, fastest first", whole=True), y, tuple(series))


def delays_chart(runs: Sequence[RunRecord]) -> Chart | None:
    """Return the histogram of the clients' delays under the first seed; None if they are not recorded."""
    delays = delays_of(runs)
    if not len(delays):
        return None
    counts, edges, log = histogram(delays)
    middle, late = (float(value) for value in np.quantile(delays, [0.5, 0.9]))
    marks = {f"median {numbers.seconds(middle)}": middle, f"90 % of clients within {numbers.seconds(late)}": late}
    pad = float(edges[1] - edges[0]) if len(counts) == 1 else 0.0
    span = (float(edges[0]) - pad, float(edges[1]) + pad) if pad else None
    x = Axis("mean seconds of a client's round", log=log, span=span)
    return histogram_chart("Delays of the clients", counts, edges, marks, x, Axis("clients", zero=True, whole=True))


def histogram_chart(
    title: str, counts: FloatArray, edges: FloatArray, marks: dict[str, float], x: Axis, y: Axis
) -> Chart:
    """Return a histogram with vertical lines at `marks` (legend text -> value)."""
    top = 1.06 * float(counts.max())
    # One outline: bars have no widths of their own on a logarithmic axis.
    outline = np.concatenate([[0.0], np.repeat(counts, 2), [0.0]])
    series = [Series(np.repeat(edges, 2), outline, "area", colour=BAR)]
    for (text, value), dash in zip(marks.items(), ("solid", "dash", "dot"), strict=False):
        series.append(Series(np.array([value, value]), np.array([0.0, top]), "line", legend=text, dash=dash))
    return Chart(title, x, y, tuple(series))


def _step_line(scheme: SchemeSummary, curve: Curve, look: Look, hover: str, edge: float) -> Series:
    several = scheme.runs > 1
    return Series(
        np.maximum(curve.x, edge), curve.mean, "steps", scheme.label, colour=look.colour, dash=look.dash, hover=hover,
        low=curve.low if several else None, high=curve.high if several else None,
        symbol="circle" if len(curve.x) == 1 else "",  # a line through one point cannot be seen
    )  # fmt: skip


# -- seeds merged into curves ----------------------------------------------------------------------------------------


def merged(
    runs: Sequence[RunRecord], position: Callable[[RunRecord], FloatArray | None], value: str = "metric"
) -> Curve | None:
    """Return the mean of a value of the rounds over the seeds of a scheme; None if no run records it."""
    found = []
    for run in _sound(runs, value):
        x = position(run)
        if x is not None:
            y = [getattr(current, value) for current in run.rounds]
            known = np.array([each is not None for each in y])
            found.append((x[known], np.array([each for each in y if each is not None], dtype=np.float64)))
    if not found:
        return None
    # A run that has ended keeps its last value, because its model can be used.
    grid = _thinned(np.unique(np.concatenate([x for x, _ in found])))
    values = np.vstack([y[np.maximum(np.searchsorted(x, grid, side="right") - 1, 0)] for x, y in found])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def cohort_over_rounds(runs: Sequence[RunRecord]) -> Curve | None:
    """Return how many different clients took part in each round, over the runs that had that round."""
    sizes = [[len(set(map(str, r.clients))) for r in run.rounds if r.number > 0] for run in runs]
    longest = max((len(size) for size in sizes), default=0)
    if longest == 0:
        return None
    rounds = _thinned(np.arange(longest, dtype=np.float64)).astype(np.int64)
    at = [np.array([size[i] for size in sizes if i < len(size)], dtype=np.float64) for i in rounds]
    return Curve(
        x=rounds.astype(np.float64) + 1,
        mean=np.array([values.mean() for values in at]),
        low=np.array([values.min() for values in at]),
        high=np.array([values.max() for values in at]),
    )


def by_scheme(runs: Sequence[RunRecord], comparison: Comparison) -> list[tuple[SchemeSummary, list[RunRecord]]]:
    """Return the schemes in the order of the comparison, each with its runs."""
    groups = group(runs)
    return [(scheme, groups[scheme.label]) for scheme in comparison.schemes]


def looks(comparison: Comparison) -> dict[str, Look]:
    """Return how each scheme of a comparison is drawn."""
    return scheme_looks((scheme.label, scheme.selector) for scheme in comparison.schemes)


def _sound(runs: Sequence[RunRecord], value: str) -> list[RunRecord]:
    """Leave diverged runs out of a mean, unless all diverged: their last good value is not their result."""
    known = [run for run in runs if any(getattr(current, value) is not None for current in run.rounds)]
    return [run for run in known if run.info.status != "diverged"] or known


def _by_speed(run: RunRecord) -> list[float] | None:
    judged = [current.by_speed for current in run.rounds if current.by_speed]
    return list(judged[-1]) if judged and run.info.status != "diverged" else None


def _mean_time(times: FloatArray) -> FloatArray:
    """Return the geometric mean as an array of one value; the arithmetic mean if a time is 0."""
    return np.array([np.exp(np.log(times).mean()) if (times > 0).all() else times.mean()])


def _thinned(grid: FloatArray) -> FloatArray:
    """Return at most MAX_POINTS of the grid, with both ends; dense where rounds are dense."""
    if len(grid) <= MAX_POINTS:
        return grid
    return grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(np.int64)]


# -- axes ------------------------------------------------------------------------------------------------------------


def left_edge(curves: Sequence[Curve]) -> float:
    """Return a positive value that stands for 0 on a logarithmic axis: somewhat before the first event."""
    firsts = [float(curve.x[curve.x > 0].min()) for curve in curves if (curve.x > 0).any()]
    return min(firsts) / 1.5 if firsts else 1.0


def delays_of(runs: Sequence[RunRecord]) -> FloatArray:
    """Return the clients' mean delays under the first seed, without those of clients that never answer."""
    # Read back from JSON, an infinite delay is null.
    recorded = [np.nan if delay is None else delay for delay in runs[0].info.expected_delays]
    delays = np.array(recorded, dtype=np.float64)
    return delays[np.isfinite(delays)]


def long_tailed(delays: FloatArray) -> bool:
    """Return whether slow clients are so much slower than the usual one that a linear axis hides the usual one."""
    positive = delays[delays > 0]
    if len(positive) < 2:
        return False
    median = float(np.median(positive))
    return bool(np.quantile(positive, 0.95) > 4 * median or positive.max() > 20 * median)


def log_time(runs: Sequence[RunRecord], comparison: Comparison) -> bool:
    """Return whether time needs a logarithmic axis."""
    ends = [result.ended for scheme in comparison.schemes for result in scheme.results if result.ended > 0]
    spread = bool(ends) and max(ends) > LONG_SPAN * min(ends)
    return bool(ends) and (spread or long_tailed(delays_of(runs)))


def histogram(delays: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
    """Return counts, edges and whether the edges are spaced logarithmically."""
    log = long_tailed(delays) and bool((delays > 0).all())
    bins = int(np.clip(2 * np.sqrt(len(delays)), 8, 40))
    low, high = float(delays.min()), float(delays.max())
    if high - low <= 1e-9 * max(abs(high), 1e-300):
        # All alike: one bar of a visible width around the value.
        pad = 0.05 * abs(high) or 0.5
        edges = np.array([low - pad, high + pad])
        log = False
    elif log:
        edges = np.geomspace(low, high, bins + 1)
    else:
        edges = np.linspace(low, high, bins + 1)
    # Rounding may put the extremes outside of edges that were made from them.
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    counts, _ = np.histogram(delays, bins=edges)
    return counts.astype(np.float64), edges, log


def _spaced(values: FloatArray) -> bool:
    """Return whether values need a logarithmic axis."""
    return bool((values > 0).all() and values.max() > 5 * values.min())


# -- which clients took part -----------------------------------------------------------------------------------------

# For large fleets and long runs, a row combines clients with similar delays and a column consecutive rounds, so that
# the page stays small. A cell holds the weight of its row per round.

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
    """Return the map of a run; None if no client was ever chosen."""
    played = [current for current in run.rounds if current.number > 0]
    order = _by_delay(run)
    if not order or not any(current.clients for current in played):
        return None
    per_row, per_column = -(-len(order) // ROWS), -(-len(played) // COLUMNS)
    place = {_client_key(client): rank // per_row for rank, (client, _) in enumerate(order)}
    cells: dict[tuple[int, int], list[Any]] = {}
    known: dict[str, int] = {}
    room = REASONS
    for number, current in enumerate(played):
        failed = {_client_key(client) for client in current.failed}
        recorded = current.facts.get("reasons", {})
        work = told if isinstance(told := current.facts.get("work"), Mapping) else {}
        weights = current.weights or [1 / len(current.clients)] * len(current.clients)
        for client, weight in zip(current.clients, weights, strict=True):
            cell = cells.setdefault((place[_client_key(client)], number // per_column), [0.0, 0, -1])
            if _client_key(client) in failed:
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
        rows=[_row_name(row, run.info.names) for row in rows],
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


def participation(run: RunRecord) -> list[float] | None:
    """Return the share of the answers that came from each tenth of the clients by delay; None where it is unknown."""
    order = _by_delay(run)
    if not order or order[0][1] is None:
        return None
    tenths = np.array_split(np.arange(len(order)), min(10, len(order)))
    where = {_client_key(order[rank][0]): number for number, ranks in enumerate(tenths) for rank in ranks}
    counts = np.zeros(len(tenths))
    for current in run.rounds:
        failed = {_client_key(client) for client in current.failed}
        for client in current.clients:
            if _client_key(client) not in failed:
                counts[where[_client_key(client)]] += 1
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
            chosen[_client_key(client)] = chosen.get(_client_key(client), 0) + 1
            names[_client_key(client)] = client
    if delays and all(isinstance(client, int) and 0 <= client < len(delays) for client in names.values()):
        # Read back from JSON, an infinite delay is null.
        seconds = np.array([np.inf if delay is None else delay for delay in delays], dtype=np.float64)
        return [(int(client), float(seconds[client])) for client in np.argsort(seconds, kind="stable")]
    return [(names[key], None) for key in sorted(names, key=lambda key: (-chosen[key], str(key)))]


def _row_name(row: Sequence[tuple[ClientId, float | None]], names: Sequence[str]) -> str:
    (first, fast), (last, slow) = row[0], row[-1]
    if isinstance(first, int) and first < len(names):
        first = names[first]
    if len(row) == 1:
        return f"client {first}" + ("" if fast is None else f", {numbers.seconds(fast)}")
    between = "" if fast is None or slow is None else f", {numbers.seconds(fast)} to {numbers.seconds(slow)}"
    return f"{len(row)} clients{between}" if between else f"clients {first} to {last}"


def _client_key(client: ClientId) -> Any:
    """What a client is known by: ids that are tuples come back from JSON as lists."""
    return tuple(client) if isinstance(client, list) else client
