"""`summarise` computes the numbers of each scheme: time to target, speed-up, cost, cohort size, final metric.

The time to target is the time from which the target is held (`fedpace.records.holding`). The time at which it is first
met is reported too.

Times and client work vary by factors, so they are averaged as geometric means over seeds, and schemes are ranked by
them. Over the same seeds, the ratio of two geometric means is the geometric mean of the ratios seed by seed. So the
table, the summary and the speed-ups agree on which scheme is faster.

A run that never held the target has no time to target. Means are over the runs that reached it, and give their number.
The median counts the other runs as infinitely late. Only schemes that reached the target with every seed are ranked. A
run that stopped at an easier target than the requested one is censored: it counts neither as late nor as a miss, and no
scheme is ranked as faster than a censored one that may have been faster.

Costs are counted until the target is held. If a run does not hold it, costs are counted to the end of the run, so a
scheme that fails early is not cheap. Some records lack costs, and none are shown for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, get_args

import numpy as np

from fedpace._base.checks import one_of
from fedpace._base.errors import InputError
from fedpace.records.holding import Direction, Looks
from fedpace.records.run import RunInfo, RunRecord, plain
from fedpace.report import numbers
from fedpace.report.numbers import Estimate, geometric_estimate, metric_estimate, time_estimate

DEFAULT_BASELINE = "random"


@dataclass(frozen=True)
class SeedCost:
    """Costs of one run until it held its target, or to its end."""

    work: float | None
    """Client-seconds."""
    tasks: int
    """Training tasks that ended."""
    wasted: int | None
    """Training tasks that did not count in a step."""
    bytes_down: int | None
    bytes_up: int | None
    slowest: float | None
    """Metric on the data of the slowest tenth of the clients, at the last evaluation."""


@dataclass(frozen=True)
class SchemeCost:
    """Costs of a scheme over its seeds. None: no run records it."""

    work: Estimate | None
    tasks: float
    wasted: float | None
    """Share of the tasks."""
    bytes_down: float | None
    bytes_up: float | None
    slowest: Estimate | None

    @property
    def known(self) -> bool:
        """Whether any cost is recorded."""
        return any(value is not None for value in (self.work, self.wasted, self.bytes_down, self.slowest))


@dataclass(frozen=True)
class SeedResult:
    """The numbers of one run."""

    seed: int
    status: str
    reached: bool
    censored: bool
    """Whether the run stopped at an easier target before it held the requested one."""
    limit: str
    """Option that ended the run without the target, such as `--max-rounds 60`; empty if none did."""
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
    at: float | None = None
    """Metric at the requested time; None = no time was requested, or nothing was evaluated before it."""


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
    """Geometric mean over the runs that reached the target; None if no run did."""
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
    at: Estimate | None = None
    """Metric at the requested time (`Comparison.at`)."""

    @property
    def always_reached(self) -> bool:
        """Whether every run reached the target."""
        return self.reached == self.runs

    def __repr__(self) -> str:
        """Return the most important numbers."""
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
    """First label of `ranking`, unless a censored scheme may have been faster; without a target, the label with the
    best final metric among those that never diverged."""
    schemes: tuple[SchemeSummary, ...]
    conditions: tuple[str, ...] = ()
    """Conditions that decide how times compare: whether warm-ups are on the clock, and whether delays were known."""
    clock: str = "virtual time"
    """The unit of time: `virtual time` of a simulation, or `real time` of a server."""
    ranking: tuple[str, ...] = ()
    """Labels of the schemes that always reached the target, fastest first, by geometric mean over common seeds."""
    setting: str = ""
    """The data, the number of clients, the model and the delays."""
    at: float | None = None
    """Time in seconds for which the metric of every scheme was requested."""

    def __getitem__(self, label: str) -> SchemeSummary:
        """Return the scheme with this label."""
        return next(scheme for scheme in self.schemes if scheme.label == label)

    def __repr__(self) -> str:
        """Return the schemes, the target and the best scheme."""
        aim = "no target" if self.target is None else f"target {self.metric} {numbers.given(self.target)}"
        return (
            f"<{type(self).__name__} of {', '.join(scheme.label for scheme in self.schemes)}: {aim}, best {self.best}>"
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values, with null for what is not known."""
        content = plain(dataclasses.asdict(self))
        assert isinstance(content, dict)
        return content


def summarise(runs: Sequence[RunRecord], *, baseline: str | None = None, at: float | None = None) -> Comparison:
    """Group `runs` by label, in the order in which labels first appear, and summarise each group.

    Args:
        runs: the runs of one comparison, with the same metric and target, and each label once per seed.
        baseline: label of the scheme that speed-ups are relative to; None = the scheme `random` if there is one.
        at: time in seconds at which to report the metric of every scheme, as its model was then.
    """
    if not runs:
        raise InputError("expected at least one run to summarise, but there is none")
    if at is not None and not (math.isfinite(at) and at >= 0):
        raise InputError(f"--at takes seconds of virtual time, 0 or more, but {at} came")
    groups = group(runs)
    first = runs[0].info
    check_targets(runs)
    base = _baseline(groups, baseline) if first.target is not None else None
    times = _times(groups[base]) if base is not None else {}
    schemes = tuple(_scheme(label, members, times, at) for label, members in groups.items())
    ranking = _ranking(schemes) if first.target is not None else ()
    return Comparison(
        metric=first.metric,
        direction=first.direction,
        target=first.target,
        hold=first.hold,
        baseline=base,
        best=_fastest(schemes, ranking) if first.target is not None else _best_final(schemes, first.direction),
        schemes=schemes,
        conditions=conditions(first),
        clock="real time" if all(run.info.experiment.get("clock") == "server" for run in runs) else "virtual time",
        ranking=ranking,
        setting=setting(runs[0]),
        at=at,
    )


def setting(run: RunRecord) -> str:
    """Return in words what was run: data, number of clients, model, and delays or the framework of the server."""
    table = run.info.experiment
    named = {part: _name_of(table.get(part)) for part in ("data", "model", "delays")}
    clients = len(run.info.expected_delays)
    if not clients:
        clients = len({str(client) for current in run.rounds for client in (*current.clients, *current.warmed)})
    said = [f"{named['data']} data" if named["data"] else "", numbers.counted(clients, "client") if clients else ""]
    said += [
        f"model {named['model']}" if named["model"] else "",
        f"{named['delays']} delays" if named["delays"] else "",
    ]
    said.append(f"on {table['host']}" if isinstance(table.get("host"), str) else "")
    return ", ".join(filter(None, said))


def _name_of(part: Any) -> str:
    name = part.get("name", "") if isinstance(part, dict) else part
    return name if isinstance(name, str) else ""


def conditions(info: RunInfo) -> tuple[str, ...]:
    """Return the conditions that decide how times compare; empty for a run without a virtual clock."""
    clock, fleet = info.experiment.get("clock"), info.experiment.get("fleet")
    if clock is None or fleet is None:
        return ()
    charged = "warm-up on the clock" if clock.get("charge_warmup") else "warm-up free of charge"
    known = "delays learnt" if fleet.get("delays") == "observed" else "expected delays known"
    looks = () if info.looks == "rounds" else ("evaluated on one grid of instants",)
    combined = (f"combined by {info.robust['name']}",) if info.robust.get("name") else ()
    return (charged, known, *looks, *combined)


def _result(run: RunRecord, at: float | None) -> SeedResult:
    reached, crossed = run.reached, run.crossed
    played = [current for current in run.rounds if current.number > 0]
    diverged = run.info.status == "diverged"
    return SeedResult(
        seed=run.info.seed,
        status=run.info.status,
        reached=reached is not None,
        censored=run.censored,
        limit="" if reached is not None else _limit(run),
        seconds=reached.clock if reached else None,
        first_seconds=crossed.clock if crossed else None,
        rounds=reached.number if reached else None,
        ended=run.rounds[-1].clock if run.rounds else 0.0,
        final=run.evaluated[-1].metric if run.evaluated and not diverged else None,
        clients_per_round=_mean([len(set(map(str, current.clients))) for current in played]),
        round_seconds=_mean([current.seconds for current in played]),
        cost=seed_cost(run),
        at=None if at is None else metric_at(run, at),
    )


def _limit(run: RunRecord) -> str:
    """Return the option at which a finished run ended; empty if it is not known."""
    stop = run.info.experiment.get("stop")
    if run.info.status != "finished" or not isinstance(stop, dict) or not run.rounds:
        return ""
    last = run.rounds[-1]
    if last.number >= stop.get("max_rounds", math.inf):
        return f"--max-rounds {stop['max_rounds']}"
    return f"max_seconds = {stop['max_seconds']:g}" if last.clock >= stop.get("max_seconds", math.inf) else ""


def _scheme(label: str, runs: list[RunRecord], baseline: dict[int, float], at: float | None) -> SchemeSummary:
    results = tuple(_result(run, at) for run in runs)
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
        time_to_target=time_estimate(list(times.values())),
        first_crossing=time_estimate([r.first_seconds for r in results if r.first_seconds is not None]),
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
        at=metric_estimate([r.at for r in results if r.at is not None], runs[0].info.metric),
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


def _ranking(schemes: Sequence[SchemeSummary]) -> tuple[str, ...]:
    """Return the schemes that always reached the target, fastest first by geometric mean over their common seeds."""
    times = {s.label: {r.seed: r.seconds or 0.0 for r in s.results} for s in schemes if s.always_reached}
    common = set.intersection(*map(set, times.values())) if times else set()
    means = {label: _log_mean([of[seed] for seed in common or of]) for label, of in times.items()}
    return tuple(sorted(means, key=means.__getitem__))


def _fastest(schemes: Sequence[SchemeSummary], ranking: Sequence[str]) -> str | None:
    """Return the first of the ranking; None if a scheme with censored runs may have been faster."""
    if not ranking:
        return None
    best = next(scheme for scheme in schemes if scheme.label == ranking[0])
    time = _log_mean([result.seconds or 0.0 for result in best.results])
    return best.label if all(_least_time(s) >= time for s in schemes if s.censored) else None


def _best_final(schemes: Sequence[SchemeSummary], direction: Direction) -> str | None:
    sign = -1.0 if direction == "up" else 1.0
    finals = {s.label: sign * s.final.mean for s in schemes if s.final and not s.diverged}
    return min(finals, key=finals.__getitem__, default=None)


def _least_time(scheme: SchemeSummary) -> float:
    """Return the logarithm of the least mean time to target that a scheme with censored runs can have."""
    least = []
    for result in scheme.results:
        if not (result.reached or result.censored):
            return math.inf
        # A run that has met the target but not yet held it may turn out to have held it from there on.
        known = (result.seconds, result.first_seconds, result.ended)
        least.append(next(time for time in known if time is not None))
    return _log_mean(least)


def _log_mean(times: Sequence[float]) -> float:
    return float(np.mean([math.log(time) if time > 0 else -math.inf for time in times]))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def seed_cost(run: RunRecord) -> SeedCost:
    """Return the costs of a run."""
    last = None if run.reached is None else run.reached.number
    counted = [current for current in run.rounds if current.number > 0 and (last is None or current.number <= last)]
    judged = [current.by_speed for current in run.rounds if current.by_speed]
    return SeedCost(
        work=_total([current.work for current in counted]),
        tasks=sum(len(current.clients) for current in counted),
        wasted=_whole([current.wasted for current in counted]),
        bytes_down=_whole([current.bytes_down for current in counted]),
        bytes_up=_whole([current.bytes_up for current in counted]),
        slowest=judged[-1][-1] if judged and run.info.status != "diverged" else None,
    )


def scheme_cost(costs: Sequence[SeedCost], metric: str) -> SchemeCost:
    """Return means over seeds, each over the runs that record the cost."""
    tasks = sum(cost.tasks for cost in costs if cost.wasted is not None)
    wasted = [cost.wasted for cost in costs if cost.wasted is not None]
    return SchemeCost(
        work=time_estimate([cost.work for cost in costs if cost.work is not None]),
        tasks=float(np.mean([cost.tasks for cost in costs])),
        wasted=sum(wasted) / tasks if tasks else None,
        bytes_down=_mean_of_known([cost.bytes_down for cost in costs]),
        bytes_up=_mean_of_known([cost.bytes_up for cost in costs]),
        slowest=metric_estimate([cost.slowest for cost in costs if cost.slowest is not None], metric),
    )


def work_so_far(run: RunRecord) -> list[float] | None:
    """Return client-seconds spent by the end of each round; None where they are not known."""
    spent = [current.work if current.number else current.work or 0.0 for current in run.rounds]
    return None if any(work is None for work in spent) else list(accumulate(work or 0.0 for work in spent))


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None


def _whole(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def check_targets(runs: Sequence[RunRecord]) -> None:
    """Raise if runs cannot be compared, because their metric, their target or its holding differs."""
    first = runs[0].info
    spacing: dict[int, RunRecord] = {}
    for run in runs:
        info = run.info
        if (info.metric, info.direction, info.target) != (first.metric, first.direction, first.target):
            raise InputError(
                f"runs of one comparison share their metric and target, but {first.label!r} has {first.metric} "
                f"{first.target} and {info.label!r} has {info.metric} {info.target}: report them separately"
            )
        paired = spacing.setdefault(info.seed, run).info
        if first.target is not None and (
            (info.hold, info.looks) != (first.hold, first.looks)
            or (info.hold > 1 and info.hold_every != paired.hold_every)
        ):
            raise InputError(
                f"runs of one comparison hold their target over the same instants, but {paired.label!r} has hold = "
                f"{paired.hold} every {paired.hold_every} s and {info.label!r} has hold = {info.hold} every "
                f"{info.hold_every} s: report them separately"
            )


def group(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Return the runs by label; raise if a label stands for two schemes."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        members = groups.setdefault(run.info.label, [])
        for other in members:
            if other.info.seed == run.info.seed:
                raise InputError(f"expected {run.info.label!r} once per seed, but seed {run.info.seed} came twice")
            if (other.info.selector, plain(other.info.options)) != (run.info.selector, plain(run.info.options)):
                raise InputError(
                    f"the label {run.info.label!r} stands for two schemes: {other.info.selector} "
                    f"{dict(other.info.options)} and {run.info.selector} {dict(run.info.options)}; give each its own"
                )
        members.append(run)
    return groups


def retarget(
    runs: Sequence[RunRecord], target: float | None, hold: int | None = None, looks: str | None = None
) -> list[RunRecord]:
    """Return runs as if they had another target, `hold` or `looks`; None = as recorded.

    Nothing is run. A run that ended because it held an easier target is censored if it does not hold a harder one.
    """
    if target is not None and not math.isfinite(target):
        raise InputError(f"--target must be a number, but {target} came")
    if hold is not None and hold < 1:
        raise InputError(f"--hold counts instants and must be at least 1, but {hold} came")
    if looks is not None:
        one_of(looks, get_args(Looks), "--looks")
    changes: dict[str, Any] = {"target": target, "hold": hold, "looks": looks}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        return list(runs)
    return [RunRecord(dataclasses.replace(run.info, **changes), run.rounds) for run in runs]


def metric_at(run: RunRecord, seconds: float) -> float | None:
    """Return the metric of a run at a time, as its model was then; None if nothing was evaluated before."""
    known = [current.metric for current in run.evaluated if current.clock <= seconds]
    return known[-1] if known else None
