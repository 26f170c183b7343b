"""`summarise` computes the numbers of each scheme: time to target, speed-up, cohort size, final metric.

The time to target is the time from which the target is held (`fedpace.records.holding`). The time at which it is first
met is reported too.

A run that never held the target has no time to target. Means are over the runs that reached it, and give their number.
The median counts the other runs as infinitely late. Only schemes that reached the target with every seed are ranked. A
run that stopped at an easier target than the requested one is censored: it counts neither as late nor as a miss, and no
scheme is ranked as faster than a censored one that may have been faster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace._base.errors import InputError
from fedpace.records.holding import Direction
from fedpace.records.run import RunInfo, RunRecord, plain
from fedpace.report import numbers
from fedpace.report.costs import SchemeCost, SeedCost, scheme_cost, seed_cost
from fedpace.report.estimates import Estimate, geometric_estimate, metric_estimate, positive_estimate
from fedpace.report.grouping import check_targets, group

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_BASELINE = "random"


@dataclass(frozen=True)
class SeedResult:
    """The numbers of one run."""

    seed: int
    status: str
    reached: bool
    censored: bool
    """Whether the run stopped at an easier target before it held the requested one."""
    seconds: float | None
    """Virtual seconds until the target is held; None = not reached."""
    first_seconds: float | None
    """Virtual seconds until the target is first met, held or not; None = never."""
    rounds: int | None
    """Rounds to the target; None = not reached."""
    ended: float
    """Virtual seconds at the end of the run."""
    final: float | None
    """Metric at the last evaluation; None if the run diverged, because an earlier value is not its result."""
    clients_per_round: float | None
    round_seconds: float | None
    cost: SeedCost


@dataclass(frozen=True, repr=False)
class SchemeSummary:
    """The numbers of one scheme over its seeds. Every `Estimate` has its number of runs."""

    label: str
    selector: str
    seeds: tuple[int, ...]
    runs: int
    reached: int
    censored: int
    """Number of runs that stopped at an easier target before they held this one."""
    diverged: int
    unfinished: int
    """Number of runs that were interrupted or are still running."""
    time_to_target: Estimate | None
    """Time to target over the runs that reached it; None if no run did."""
    first_crossing: Estimate | None
    """Seconds until the target is first met, over the runs that met it, held or not."""
    crossed: int
    """Number of runs that met the target, held or not."""
    min_time: float | None
    median_time: float | None
    """Over all runs, those that did not reach the target counted as infinitely late; None = infinite, or not known
    because runs are censored."""
    rounds_to_target: float | None
    """Over the runs that reached the target."""
    clients_per_round: float | None
    round_seconds: float | None
    final: Estimate | None
    """Over the runs that did not diverge."""
    speed_up: Estimate | None
    """Geometric mean of the baseline's time / this scheme's time, over the seeds in which both reached the target."""
    results: tuple[SeedResult, ...]
    cost: SchemeCost

    @property
    def always_reached(self) -> bool:
        """Whether every run reached the target."""
        return self.reached == self.runs

    def __repr__(self) -> str:
        """Return what one wants to read of it; its fields hold the rest."""
        said = [numbers.counted(self.runs, "run")]
        if self.time_to_target is not None:
            interval = numbers.between(self.time_to_target)
            took = numbers.seconds(self.time_to_target.mean) + (f" ({interval})" if interval else "")
            said.append(f"{took} to the target")
        if self.time_to_target is not None and not self.always_reached:
            said.append(f"which {self.reached} reached")
        if self.speed_up is not None:
            said.append(f"speed-up {numbers.digits(self.speed_up.mean)}")
        if self.final is not None:
            said.append(f"final metric {numbers.metric(self.final.mean)}")
        return f"<{type(self).__name__} {self.label}: {', '.join(said)}>"


@dataclass(frozen=True, repr=False)
class Comparison:
    """The summaries of all schemes of a comparison."""

    metric: str
    direction: Direction
    target: float | None
    hold: int
    """Number of instants over which the mean must meet the target; 1 = meeting it once is enough."""
    baseline: str | None
    """Label of the scheme that speed-ups are relative to."""
    best: str | None
    """Label with the least mean time to target among those that always reached it, unless a censored one may have been
    faster; without a target, with the best final metric among those that never diverged."""
    schemes: tuple[SchemeSummary, ...]
    conditions: tuple[str, ...] = ()
    """What decides how times compare: whether warm-ups are on the clock, and whether delays were known."""
    clock: str = "virtual time"
    """What seconds are: virtual ones of a simulation, or a server's `real time`."""

    def __getitem__(self, label: str) -> SchemeSummary:
        """Return the scheme with this label."""
        return next(scheme for scheme in self.schemes if scheme.label == label)

    def __repr__(self) -> str:
        """Name the schemes."""
        aim = "no target" if self.target is None else f"target {self.metric} {numbers.given(self.target)}"
        return (
            f"<{type(self).__name__} of {', '.join(scheme.label for scheme in self.schemes)}: {aim}, best {self.best}>"
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values, with null for what is not known."""
        content = plain(dataclasses.asdict(self))
        assert isinstance(content, dict)
        return content


def summarise(runs: Sequence[RunRecord], *, baseline: str | None = None) -> Comparison:
    """Group `runs` by label, in the order in which labels first appear, and summarise each group.

    Args:
        runs: the runs of one comparison, with the same metric and target, and each label once per seed.
        baseline: label of the scheme that speed-ups are relative to; None = the scheme `random` if there is one.
    """
    if not runs:
        raise InputError("expected at least one run to summarise, but there is none")
    groups = group(runs)
    first = runs[0].info
    check_targets(runs)
    base = _baseline(groups, baseline) if first.target is not None else None
    times = _times(groups[base]) if base is not None else {}
    schemes = tuple(_scheme(label, members, times) for label, members in groups.items())
    return Comparison(
        metric=first.metric,
        direction=first.direction,
        target=first.target,
        hold=first.hold,
        baseline=base,
        best=_best(schemes, first.target, first.direction),
        schemes=schemes,
        conditions=conditions(first),
        clock="real time" if all(run.info.experiment.get("clock") == "server" for run in runs) else "virtual time",
    )


def conditions(info: RunInfo) -> tuple[str, ...]:
    """Return in words what decides how times compare; nothing of a run that had no virtual clock."""
    clock, fleet = info.experiment.get("clock"), info.experiment.get("fleet")
    if clock is None or fleet is None:
        return ()
    charged = "warm-up on the clock" if clock.get("charge_warmup") else "warm-up free of charge"
    known = "delays learnt" if fleet.get("delays") == "observed" else "expected delays known"
    looks = () if info.looks == "rounds" else ("looked at on one grid of instants",)
    combined = (f"combined by {info.robust['name']}",) if info.robust.get("name") else ()
    return (charged, known, *looks, *combined)


def render_table(comparison: Comparison, width: int | None = None) -> Table:
    """Return the comparison as a table for the terminal, of which `width` columns can be seen."""
    from fedpace.report.terminal import build_table  # rich belongs to the extra `sim`: numbers need none of it

    return build_table(comparison, width)


def render_costs(comparison: Comparison, width: int | None = None) -> Table | None:
    """Return the table of costs other than time for the terminal; None if no run records them."""
    from fedpace.report.terminal import build_costs

    return build_costs(comparison, width)


def _result(run: RunRecord) -> SeedResult:
    reached, crossed = run.reached, run.crossed
    played = [current for current in run.rounds if current.number > 0]
    diverged = run.info.status == "diverged"
    return SeedResult(
        seed=run.info.seed,
        status=run.info.status,
        reached=reached is not None,
        censored=run.censored,
        seconds=reached.clock if reached else None,
        first_seconds=crossed.clock if crossed else None,
        rounds=reached.number if reached else None,
        ended=run.rounds[-1].clock if run.rounds else 0.0,
        final=run.evaluated[-1].metric if run.evaluated and not diverged else None,
        clients_per_round=_mean([len(current.clients) for current in played]),
        round_seconds=_mean([current.seconds for current in played]),
        cost=seed_cost(run),
    )


def _scheme(label: str, runs: list[RunRecord], baseline: dict[int, float]) -> SchemeSummary:
    results = tuple(_result(run) for run in runs)
    times = _times(runs)
    censored = sum(result.censored for result in results)
    median = float(np.median([result.seconds if result.seconds is not None else math.inf for result in results]))
    # A target that the initial model meets takes no time, and a ratio of nothing to nothing says nothing.
    pairs = [seed for seed, time in times.items() if time > 0 and baseline.get(seed, 0.0) > 0]
    return SchemeSummary(
        label=label,
        selector=runs[0].info.selector,
        seeds=tuple(result.seed for result in results),
        runs=len(runs),
        reached=len(times),
        censored=censored,
        diverged=sum(result.status == "diverged" for result in results),
        unfinished=sum(result.status in ("running", "interrupted") for result in results),
        time_to_target=positive_estimate(list(times.values())),
        first_crossing=positive_estimate([r.first_seconds for r in results if r.first_seconds is not None]),
        crossed=sum(result.first_seconds is not None for result in results),
        min_time=min(times.values(), default=None),
        median_time=median if math.isfinite(median) and not censored else None,
        rounds_to_target=_mean([result.rounds for result in results if result.rounds is not None]),
        clients_per_round=_mean([r.clients_per_round for r in results if r.clients_per_round is not None]),
        round_seconds=_mean([r.round_seconds for r in results if r.round_seconds is not None]),
        final=metric_estimate([r.final for r in results if r.final is not None], runs[0].info.metric),
        speed_up=geometric_estimate([baseline[seed] / times[seed] for seed in pairs]),
        results=results,
        cost=scheme_cost([result.cost for result in results], runs[0].info.metric),
    )


def _times(runs: list[RunRecord]) -> dict[int, float]:
    """Return the times to target of the seeds that reached it."""
    return {run.info.seed: reached.clock for run in runs if (reached := run.reached) is not None}


def _baseline(groups: dict[str, list[RunRecord]], wanted: str | None) -> str | None:
    if wanted is not None:
        if wanted not in groups:
            raise InputError(f"expected the baseline to be one of {', '.join(groups)}, but {wanted!r} came")
        return wanted
    if DEFAULT_BASELINE in groups:
        return DEFAULT_BASELINE
    return next((label for label, runs in groups.items() if runs[0].info.selector == DEFAULT_BASELINE), None)


def _best(schemes: tuple[SchemeSummary, ...], target: float | None, direction: Direction) -> str | None:
    if target is not None:
        timed = {s.label: s.time_to_target.mean for s in schemes if s.always_reached and s.time_to_target}
        best = min(timed, key=timed.__getitem__, default=None)
        return best if best is None or all(_least(s) >= timed[best] for s in schemes if s.censored) else None
    sign = -1.0 if direction == "up" else 1.0
    finals = {s.label: sign * s.final.mean for s in schemes if s.final and not s.diverged}
    return min(finals, key=finals.__getitem__, default=None)


def _least(scheme: SchemeSummary) -> float:
    """Return the least mean time to target that a scheme with censored runs can have."""
    least = 0.0
    for result in scheme.results:
        if result.reached or result.censored:
            # A run that has met the target but not yet held it may turn out to have held it from there on.
            least += next(time for time in (result.seconds, result.first_seconds, result.ended) if time is not None)
        else:
            return math.inf
    return least / scheme.runs


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
