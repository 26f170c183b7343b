"""What bounded influence costs honest runs: seconds to hold a target with it, over those without, on cells of the grid.

    python benchmarks/bounds_cost.py --json benchmarks/bounds_cost.json        what is there is not run again
    python benchmarks/bounds_cost.py --part 0/2 & python benchmarks/bounds_cost.py --part 1/2
    python benchmarks/bounds_cost.py --from benchmarks/bounds_cost.json        nothing is run: the table

The cells are those of the embedded tasks (quadratic, digits-0.3, digits-2, digits-rotated) under both delay models,
with delays independent of the data or with the slow clients holding the rare data, at the step sizes that were tuned
without bounds. Targets come from full participation under the same seed. The seeds are used by no other benchmark.
Delays are given beforehand, as on the grid, or observed, as on servers (`--delays observed`).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from grid.cells import EMBEDDED, LEVELS, Cell, cells
from grid.runs import HOLD, FullJob, full_participation, one_thread
from grid.schemes import WAIT
from lib.runs import Found, Runs, table

from fedpace import make_selector
from fedpace._base.errors import FedpaceError
from fedpace.records.holding import Direction, held_from
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Simulation

SCHEMES = ("pace", "pace-async")
DELAYS = ("expected", "observed")
SEEDS = "400,401,402"
MOST = 400
"""Steps after which a run is given up."""
TUNED = Path(__file__).parent / "grid" / "tuned.json"

Run = tuple[str, str, int, Literal["expected", "observed"], bool]
"""Cell, scheme, seed, delays and whether clients are bounded."""


def targets(cell: Cell, rate: float, seed: int) -> dict[str, float]:
    """Return the easy and the hard target of a cell."""
    found: dict[str, float] = full_participation(FullJob(cell.task, rate, seed))["targets"]
    return found


def seconds(cell: Cell, run: Run, rate: float, wanted: dict[str, float]) -> Found:
    """Return the virtual seconds from which on each target is held, and how often a bound was met."""
    _, scheme, seed, delays, bounded = run
    fleet = replace(cell.fleet(WAIT), delays=delays, trust=bounded)
    simulation = Simulation(
        cell.task.data,
        cell.task.model,
        cell.delays,
        make_selector(scheme),
        training=cell.task.at(rate),
        fleet=fleet,
        clock=Clock(charge_warmup=True),
        seed=seed,
    )
    every = float(np.median(simulation.expected_delays))
    direction: Direction = "up" if cell.task.data.metric == "accuracy" else "down"
    played: list[tuple[float, float | None]] = []
    counts = {"clipped": 0, "capped": 0}
    try:
        for current in simulation.rounds():
            played.append((current.clock, current.metric))
            for name in counts:
                counts[name] += len(current.facts.get(name) or ())
            hard = held_from(played, wanted["hard"], direction, hold=HOLD, every=every)[1]
            if current.number >= MOST or (hard is not None and current.clock > played[hard][0] + HOLD * every):
                break
    except FedpaceError as error:
        return {"problem": str(error), **counts}
    held = {level: held_from(played, wanted[level], direction, hold=HOLD, every=every)[1] for level in LEVELS}
    return {level: None if place is None else played[place][0] for level, place in held.items()} | counts


def key(cell: str, scheme: str, seed: int, delays: str, bounded: bool) -> str:
    """Name a run."""
    return f"{cell} | {scheme} | {seed} | {delays} | {'bounded' if bounded else 'off'}"


def markdown(done: dict[str, Found]) -> str:
    """Return the table: geometric means of the ratios, by scheme and target, over runs that hold it on both sides."""
    lines = []
    for delays, scheme, level in product(DELAYS, SCHEMES, LEVELS):
        ratios, lost = [], 0
        clipped = capped = 0
        for name, off in done.items():
            cell, whose, seed, known, side = name.split(" | ")
            on = done.get(key(cell, whose, int(seed), known, True))
            if (side, whose, known) != ("off", scheme, delays) or on is None:
                continue
            clipped, capped = clipped + on["clipped"], capped + on["capped"]
            if off.get(level) and on.get(level):
                ratios.append(on[level] / off[level])
            elif off.get(level):
                lost += 1
        if len(ratios) < 2:
            continue
        logs = np.log(ratios)
        mean, error = math.exp(logs.mean()), logs.std(ddof=1) / math.sqrt(logs.size)
        same = sum(ratio == 1.0 for ratio in ratios)
        shown = [delays, scheme, level, str(len(ratios)), f"{mean:.3f} ± {error:.3f}", f"{max(ratios):.2f}", str(same)]
        lines.append([*shown, str(lost), str(clipped), str(capped)])
    head = (
        "delays",
        "scheme",
        "target",
        "pairs",
        "time with bounds / without",
        "largest",
        "the same to the second",
        "lost",
    )
    return table((*head, "clipped", "capped"), lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/bounds-cost", help="folder of the runs")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--cells", default="", help="pieces of their names; all where left out")
    parser.add_argument("--delays", default=",".join(DELAYS), help="how the server knows them")
    parser.add_argument("--part", default="0/1", help="of the runs, so that several processes can share them")
    parser.add_argument("--from", dest="source", help="show the runs in this file, and run nothing")
    parser.add_argument("--json", help="write all runs into this file")
    options = parser.parse_args()
    if options.source:
        print(markdown(json.loads(Path(options.source).read_text())))
        return
    one_thread()
    rates = {name: rate for task in json.loads(TUNED.read_text()).values() for name, rate in task["cells"].items()}
    runs = Runs(options.out, options.part)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for seed, cell in runs.mine(product(seeds, cells(EMBEDDED, matching=options.cells))):
        places: list[Run] = [
            (cell.name, scheme, seed, delays, bounded)
            for delays, scheme, bounded in product(options.delays.split(","), SCHEMES, (False, True))
        ]
        missing = [place for place in places if key(*place) not in runs.done]
        wanted = targets(cell, rates[cell.name], seed) if missing else {}
        for place in missing:
            runs.add(key(*place), seconds(cell, place, rates[cell.name], wanted))
    print(markdown(runs.done))
    if options.json:
        Path(options.json).write_text(json.dumps(dict(sorted(runs.done.items())), indent=0) + "\n")


if __name__ == "__main__":
    main()
