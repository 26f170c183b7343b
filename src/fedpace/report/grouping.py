"""Groups runs by label, and checks that they can be compared: same metric and target, one scheme per label."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace._base.errors import InputError
from fedpace.records.run import RunRecord, plain


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
