"""What the fixed constants of `pace-async` do: time to target with each one halved and doubled.

    python benchmarks/constants.py benchmarks/constants.json            about 15 minutes on one core; resumable
    python benchmarks/constants.py --from benchmarks/constants.json     prints the table of a file, and runs nothing

Four cells of the grid (benchmarks/time_to_target.py) with its tuned step sizes and targets, two development seeds. Two
constants matter only where clients make different numbers of local steps: three held-out federations, three seeds. A
constant that is the part kept by a running average is changed by halving and doubling what it does *not* keep. A run is
given up after four times the time of the present constants, and then counts with that time.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from grid.cells import EMBEDDED, HELD_OUT, LEVELS, Cell, cells, delay_models
from grid.runs import FullJob, Job, full_participation, one_thread, run
from grid.schemes import Scheme
from grid.tuning import FILE, Tuned
from lib.runs import commit

from fedpace.selectors import pace_async
from fedpace.server import _memory, _step_length, nesterov

CELLS = (
    "digits-0.3/nycmesh/independent",
    "digits-2/devices/rare",
    "digits-rotated/synthetic/rare",
    "quadratic/nycmesh/independent",
)
SEEDS = (110, 111)
UNEQUAL = ("table-15/devices", "table-100/devices", "unequal/devices")
"""Federations whose clients make different numbers of local steps."""
MORE_SEEDS = (110, 111, 112)
GIVE_UP = 4.0


class Constant(NamedTuple):
    """A module-level constant."""

    module: ModuleType
    name: str
    keeps: bool = False
    """Whether it is the part that a running average keeps."""
    unequal: bool = False
    """Whether it matters only where clients make different numbers of local steps."""

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Cells and seeds on which it is changed."""
        places, seeds = (UNEQUAL, MORE_SEEDS) if self.unequal else (CELLS, SEEDS)
        return [(name, seed) for name in places for seed in seeds]

    @property
    def label(self) -> str:
        """Module and name."""
        return f"{self.module.__name__.rpartition('.')[2]}.{self.name}"

    def changed(self, factor: float) -> float:
        """Return the value, halved or doubled."""
        now: float = getattr(self.module, self.name)
        return 1 - min(factor * (1 - now), 1.0) if self.keeps else now * factor


CONSTANTS = (
    Constant(pace_async, "PATIENCE"),
    Constant(pace_async, "GROWTH"),
    Constant(pace_async, "REACH"),
    Constant(pace_async, "LATE"),
    Constant(pace_async, "LEAST_WAIT"),
    Constant(_memory, "KEPT", keeps=True),
    Constant(_memory, "LEAST_SHRINKING"),
    Constant(_memory, "JUMP"),
    Constant(_memory, "EVIDENCE"),
    Constant(_memory, "SHORTEST"),
    Constant(_memory, "SIMILAR", unequal=True),
    Constant(_memory, "LEAST_DRIFT", unequal=True),
    Constant(_memory, "LEAST_RESPONSE", unequal=True),
    Constant(nesterov, "SUMS_KEPT", keeps=True),
    Constant(_step_length, "GROWTH"),
    Constant(_step_length, "CURVATURE_KEPT", keeps=True),
    Constant(_step_length, "BUDGET"),
    Constant(_step_length, "DECAY"),
)


@contextmanager
def value(constant: Constant, new: float) -> Iterator[None]:
    """Set a constant for a while."""
    before = getattr(constant.module, constant.name)
    setattr(constant.module, constant.name, new)
    try:
        yield
    finally:
        setattr(constant.module, constant.name, before)


def times(cell: Cell, seed: int, targets: Any, cut: float) -> dict[str, float | None]:
    """Return the seconds to each target; None = not held before the run was given up."""
    cuts = {cell.name: cut} if math.isfinite(cut) else {}
    job = Job(Scheme("pace-async", "pace-async"), (cell,), Tuned(FILE).rate(cell), seed, targets, cuts=cuts)
    (row,) = run(job)
    return {level: row[level]["seconds"] for level in LEVELS}


def fill(path: Path) -> dict[str, Any]:
    """Run what the file lacks, and return all of it."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"commit": commit(), "runs": {}}
    runs = found["runs"]
    for name, seed in dict.fromkeys(place for constant in CONSTANTS for place in constant.runs):
        (cell,) = cells((*EMBEDDED, *HELD_OUT), matching=name, delays=delay_models("synthetic,nycmesh,devices"))
        wanted = [
            (constant, factor)
            for constant in CONSTANTS
            for factor in (0.5, 2.0)
            if (name, seed) in constant.runs and f"{constant.label} {factor} {name} {seed}" not in runs
        ]
        usual = f"usual 1 {name} {seed}"
        if not wanted and usual in runs:
            continue
        rate = Tuned(FILE).reference(cell.task) if cell.task.rates else cell.task.training.lr
        targets = full_participation(FullJob(cell.task, rate, seed))["targets"]
        if usual not in runs:
            runs[usual] = times(cell, seed, targets, math.inf)
        longest = runs[usual]["hard"] or math.inf
        for constant, factor in wanted:
            with value(constant, constant.changed(factor)):
                runs[f"{constant.label} {factor} {name} {seed}"] = times(cell, seed, targets, GIVE_UP * longest)
            path.write_text(json.dumps(found, indent=1))
    return found


def table(runs: dict[str, Any]) -> str:
    """Return the times relative to the present constants as a Markdown table: geometric means, easy / hard."""
    lines = ["| constant | value | halved | doubled |", "|---|---|---|---|"]
    for constant in CONSTANTS:
        shown = [_ratios(runs, constant, factor) for factor in (0.5, 2.0)]
        lines.append(f"| `{constant.label}` | {getattr(constant.module, constant.name):g} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def _ratios(runs: dict[str, Any], constant: Constant, factor: float) -> str:
    shown = []
    for level in LEVELS:
        logs, missed = [], 0
        for name, seed in constant.runs:
            usual, now = runs.get(f"usual 1 {name} {seed}"), runs.get(f"{constant.label} {factor} {name} {seed}")
            if usual is None or now is None or usual[level] is None:
                continue
            missed += now[level] is None
            logs.append(math.log((now[level] or GIVE_UP * usual["hard"]) / usual[level]))
        mean = f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else "-"
        shown.append(mean + (f" ({missed} missed)" if missed else ""))
    return " / ".join(shown)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", nargs="?", default="benchmarks/constants.json")
    parser.add_argument("--from", dest="recorded", default="")
    options = parser.parse_args()
    if options.recorded:
        print(table(json.loads(Path(options.recorded).read_text())["runs"]))
        return
    one_thread()
    print(table(fill(Path(options.json))["runs"]))


if __name__ == "__main__":
    main()
