"""Summarises the comparison in a paragraph that claims no more than the numbers show."""

from __future__ import annotations

from fedpace.report import numbers
from fedpace.report.estimates import LEAST, Estimate, geometric_estimate
from fedpace.report.tables import Comparison, SchemeSummary


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


def _fastest(comparison: Comparison) -> list[str]:
    target = f"the target {comparison.metric} of {numbers.given(comparison.target or 0.0)}"
    if comparison.best is None:
        if any(scheme.censored for scheme in comparison.schemes):
            return [f"Who is the fastest to {target} cannot be said from these runs."]
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
        took += f" on average over {time.count} seeds"
    if interval:
        took += f" (95 % interval {interval} s)"
    if len(comparison.schemes) == 1:
        return [f"{best.label} {reached} {target} in {took}."]
    if len(ranked) == 1:
        return [f"{best.label} was the only scheme to {reach} {target} in every run: it took {took}."]
    if _unsettled(_runner_up(comparison)):
        # Said first and in the largest letters, "the fastest" would be taken for a result.
        return [f"No scheme is clearly the fastest to {reach} {target}; {best.label} took the least: {took}."]
    return [f"{best.label} was the fastest to {reach} {target}: it took {took}."]


def _against_next(comparison: Comparison) -> list[str]:
    """How far ahead of the next: what a choice between good schemes is about, where the baseline is a bad one."""
    following = _runner_up(comparison)
    if following is None or following[0] == comparison.baseline:
        return []
    label, ratio = following
    interval = numbers.between(ratio)
    said = f"{label} came next: seed by seed it took {numbers.digits(ratio.mean)} times as long"
    return [said + (f" (95 % interval {interval})" if interval else "") + f"{_settled(ratio)}."]


def _runner_up(comparison: Comparison) -> tuple[str, Estimate] | None:
    """Return who comes next by mean time, and how many times as long it takes, seed by seed."""
    times = {s.label: s.time_to_target.mean for s in comparison.schemes if s.always_reached and s.time_to_target}
    ranked = sorted(times, key=times.__getitem__)
    if comparison.best is None or len(ranked) < 2:
        return None
    first = {result.seed: result.seconds for result in comparison[ranked[0]].results}
    late = {result.seed: result.seconds for result in comparison[ranked[1]].results}
    ratio = geometric_estimate([time / start for seed, time in late.items() if time and (start := first.get(seed))])
    return None if ratio is None else (ranked[1], ratio)


def _unsettled(following: tuple[str, Estimate] | None) -> str:
    """Return what is to be said where the seeds do not settle who of the first two is faster; else nothing."""
    return "" if following is None else _settled(following[1])


def _settled(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None or not ratio.low <= 1 <= ratio.high:
        return ""
    return "; the interval contains 1, so these seeds do not settle which of the two is faster"


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
    said = f"Seed by seed, {best.label} was {numbers.digits(ratio.mean)} times as fast as {base.label}"
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
            f"{numbers.listed(stopped)} ended with the easier target that they were run for, so when they would have "
            f"held this one is not known: `fedpace compare --target {target}` would tell."
        )
    if never and len(never) < len(comparison.schemes):
        said.append(f"{numbers.listed([scheme.label for scheme in never])} did not reach the target in any run.")
    if comparison.best is not None:  # else the first sentence says that nobody is ranked
        said.extend(
            f"{scheme.label} reached it in {scheme.reached} of {scheme.runs} runs "
            f"{'so far' if scheme.unfinished else 'only'}, so it is not ranked by time."
            for scheme in partly
        )
    return said


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
