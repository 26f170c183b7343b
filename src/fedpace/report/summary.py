"""Summarises the comparison in sentences that claim no more than the numbers show."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace.records.influence import Influence
from fedpace.records.run import RunRecord
from fedpace.report import numbers
from fedpace.report.comparison import Comparison, SchemeSummary
from fedpace.report.numbers import LEAST, Estimate, geometric_estimate

BOUNDED = "Bounded influence"


def sentences(comparison: Comparison) -> list[str]:
    """Return the summary, a sentence at a time, as plain text."""
    if comparison.target is None:
        return [*_final(comparison), *_caveats(comparison)]
    return [
        *_fastest(comparison),
        *_against_next(comparison),
        *_against_baseline(comparison),
        *_not_reached(comparison),
        *_caveats(comparison),
    ]


def headline(comparison: Comparison) -> str:
    """Return the result as the title of a picture; empty if the seeds do not show which scheme is the fastest."""
    best = None if comparison.best is None or comparison.target is None else comparison[comparison.best]
    following = _runner_up(comparison)
    unknown = following is not None and (following[1].low is None or _unsettled(following))
    if best is None or best.time_to_target is None or len(comparison.schemes) == 1 or unknown:
        return ""
    said = f"{best.label} holds {comparison.metric} {numbers.given(comparison.target or 0.0)} first"
    said += f", after {numbers.seconds(best.time_to_target.mean)}"
    # The next scheme too: a bad baseline says little.
    faster = [] if following is None or following[0] == comparison.baseline else [(following[1].mean, following[0])]
    if best.speed_up is not None and comparison.baseline != best.label:
        faster.append((best.speed_up.mean, str(comparison.baseline)))
    times = [f"{numbers.digits(ratio)} times as fast as {label}" for ratio, label in faster]
    return ": ".join([said, ", ".join(times)] if times else [said])


def _fastest(comparison: Comparison) -> list[str]:
    target = f"the target {comparison.metric} of {numbers.given(comparison.target or 0.0)}"
    if comparison.best is None:
        if any(scheme.censored for scheme in comparison.schemes):
            return [f"These runs cannot show which scheme is the fastest to {target}."]
        if not any(scheme.reached for scheme in comparison.schemes):
            met = any(scheme.crossed for scheme in comparison.schemes)
            return [f"No scheme {'held' if met else 'reached'} {target} in any run."]
        most = max(scheme.reached / scheme.runs for scheme in comparison.schemes)
        often = [
            f"{scheme.label} ({scheme.reached} of {scheme.runs} runs)"
            for scheme in comparison.schemes
            if scheme.reached / scheme.runs == most
        ]
        return [
            f"No scheme reached {target} in every run, so none is called the fastest; "
            f"most often it was reached by {numbers.listed(often)}."
        ]
    best = comparison[comparison.best]
    reach, reached = ("reach", "reached") if comparison.hold == 1 else ("reach and hold", "reached and held")
    time = best.time_to_target
    assert time is not None
    ranked = [scheme for scheme in comparison.schemes if scheme.always_reached]
    took = f"{numbers.seconds(time.mean)} of {comparison.clock}"
    interval = numbers.between(time)
    if time.count > 1:
        took += f" (geometric mean of {time.count} seeds"
        took += f", 95 % interval {interval} s)" if interval else ")"
    if len(comparison.schemes) == 1:
        return [f"{best.label} {reached} {target} in {took}."]
    if len(ranked) == 1:
        return [f"{best.label} was the only scheme to {reach} {target} in every run: it took {took}."]
    if _unsettled(_runner_up(comparison)):
        # In the first sentence, "the fastest" would be read as a result.
        return [f"No scheme is clearly the fastest to {reach} {target}; {best.label} took the least: {took}."]
    return [f"{best.label} was the fastest to {reach} {target}: it took {took}."]


def _against_next(comparison: Comparison) -> list[str]:
    """Return how far the fastest scheme is ahead of the next, because a bad baseline says little about that."""
    following = _runner_up(comparison)
    if following is None or following[0] == comparison.baseline:
        return []
    label, ratio = following
    interval = numbers.between(ratio)
    paired = "seed by seed " if ratio.count > 1 else ""
    said = f"{label} came next: {paired}it took {numbers.digits(ratio.mean)} times as long"
    return [said + (f" (95 % interval {interval})" if interval else "") + f"{_settled(ratio)}."]


def _runner_up(comparison: Comparison) -> tuple[str, Estimate] | None:
    """Return the second of the ranking, and the ratio of its time to that of the first, seed by seed."""
    ranked = comparison.ranking
    if comparison.best is None or len(ranked) < 2:
        return None
    first = {result.seed: result.seconds for result in comparison[ranked[0]].results}
    late = {result.seed: result.seconds for result in comparison[ranked[1]].results}
    ratio = geometric_estimate([time / start for seed, time in late.items() if time and (start := first.get(seed))])
    return None if ratio is None else (ranked[1], ratio)


def _unsettled(following: tuple[str, Estimate] | None) -> str:
    """Return a remark if the seeds do not show which of the first two schemes is faster; otherwise an empty text."""
    return "" if following is None else _settled(following[1])


def _settled(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None or not ratio.low <= 1 <= ratio.high:
        return ""
    return "; the interval contains 1, so these seeds do not show which of the two is faster"


def _against_baseline(comparison: Comparison) -> list[str]:
    if comparison.baseline is None or len(comparison.schemes) == 1:
        return []
    base = comparison[comparison.baseline]
    if not base.reached:
        if base.censored:
            return []
        return [f"There are no speed-ups, because {base.label}, the baseline, never reached the target."]
    if comparison.best == base.label:
        return [f"No other scheme that always reached the target was faster than {base.label}, the baseline."]
    best = comparison[comparison.best] if comparison.best else None
    if best is None or best.speed_up is None:
        return []
    ratio = best.speed_up
    interval = numbers.between(ratio)
    paired = "Seed by seed, " if best.runs > 1 else ""
    said = f"{paired}{best.label} was {numbers.digits(ratio.mean)} times as fast as {base.label}"
    said += f" (95 % interval {interval})" if interval else ""
    if ratio.count < best.runs:
        said += f", counting the {numbers.counted(ratio.count, 'seed')} in which both reached the target"
    return [f"{said}{_settled(ratio)}."]


def _not_reached(comparison: Comparison) -> list[str]:
    uncensored = [scheme for scheme in comparison.schemes if not scheme.censored]
    never = [scheme for scheme in uncensored if not scheme.reached]
    partly = [scheme for scheme in uncensored if 0 < scheme.reached < scheme.runs]
    said = []
    if stopped := [f"{_runs(s.censored, s)} of {s.label}" for s in comparison.schemes if s.censored]:
        target = numbers.given(comparison.target or 0.0)
        said.append(
            f"{numbers.listed(stopped)} ended with the easier target that they were run for, so it is not known when "
            f"they would have held this one: run `fedpace compare --target {target}`."
        )
    said.extend(_cut(comparison))
    if never and len(never) < len(comparison.schemes):
        said.append(f"{numbers.listed([scheme.label for scheme in never])} did not reach the target in any run.")
    if comparison.best is not None:  # else the first sentence says that no scheme is ranked
        said.extend(
            f"{scheme.label} reached it in {scheme.reached} of {scheme.runs} runs "
            f"{'so far' if scheme.unfinished else 'only'}, so it is not ranked by time."
            for scheme in partly
        )
    return said


def _cut(comparison: Comparison) -> list[str]:
    """Return which runs a limit ended before the target: they may have needed only a little longer."""
    found: dict[str, list[str]] = {}
    for scheme in comparison.schemes:
        limits = [result.limit for result in scheme.results if result.limit]
        for limit in dict.fromkeys(limits):
            found.setdefault(limit, []).append(f"{_runs(limits.count(limit), scheme)} of {scheme.label}")
    return [
        f"`{limit}` ended {numbers.listed(cut)} before the target was held: with a higher limit they may hold it."
        for limit, cut in found.items()
    ]


def _final(comparison: Comparison) -> list[str]:
    if comparison.best is None:
        return ["No target was set, and no scheme has a final value in every run."]
    best = comparison[comparison.best]
    assert best.final is not None
    value = numbers.metric(best.final.mean)
    if len(comparison.schemes) == 1:
        return [f"No target was set; {best.label} ended with {comparison.metric} {value}."]
    extreme = "highest" if comparison.direction == "up" else "lowest"
    tied = [s.label for s in comparison.schemes if s.final is not None and numbers.metric(s.final.mean) == value]
    return [
        f"No target was set; {numbers.listed(tied)} ended with the {extreme} {comparison.metric}, {value} on average."
    ]


def _caveats(comparison: Comparison) -> list[str]:
    said = [
        f"{_runs(scheme.diverged, scheme)} of {scheme.label} diverged."
        for scheme in comparison.schemes
        if scheme.diverged
    ]
    said.extend(
        f"{_runs(scheme.unfinished, scheme)} of {scheme.label} did not run to the end."
        for scheme in comparison.schemes
        if scheme.unfinished
    )
    if all(scheme.runs == 1 for scheme in comparison.schemes):
        said.append("There is one seed only, so nothing is known about how much the times vary.")
    elif all(scheme.runs < LEAST for scheme in comparison.schemes):
        said.append("Two seeds are too few for intervals.")
    return said


def _runs(count: int, scheme: SchemeSummary) -> str:
    return f"{count} of {numbers.counted(scheme.runs, 'run')}"


def influence_sentence(runs: Sequence[RunRecord]) -> str:
    """Return one sentence on the clients whose influence was bounded; empty if there are none."""
    found = [(run, each) for run in runs if (each := Influence(run.rounds))]
    if not found:
        return ""
    if len(runs) == 1:
        ((run, each),) = found
        return f"{BOUNDED}: {each.line(run.info.names)}."
    said = []
    for kind, noun, end in (
        ("clipped", "update", "clipped"),
        ("capped", "weight", "capped"),
        ("left_out", "update", "left out"),
    ):
        if count := sum(each.total(kind) for _, each in found):
            said.append(f"{numbers.counted(count, noun)} {end}")
    if excluded := sum(len(each.excluded) for _, each in found):
        said.append(f"{numbers.counted(excluded, 'client')} excluded")
    return f"{BOUNDED}, {numbers.counted(len(runs), 'run')}: {', '.join(said) or 'no client is excluded any more'}."
