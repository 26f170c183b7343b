"""Do clients that lie ruin the model in the end? Accuracies over long runs, ten times as long as the target takes.

    python benchmarks/liars_long.py --seeds 60,61,62 --json benchmarks/liars_long.json

The experiment and the liars are those of `liars.py`, the defences are on, and a run goes on for so many steps whatever
it has reached. Printed is the mean accuracy over the ten steps before each of some, beside that with honest clients.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
from liars import SCHEMES, embedded, federation, liars
from lib.lying import LIES, corrupt

from fedpace.config.experiment import Experiment

SHOWN = (50, 150, 300, 600)
LAST = 10


def accuracies(experiment: Experiment, scheme: str, lie: str, seed: int) -> list[float]:
    """Return the accuracy before each of the steps that are shown."""
    simulation = federation(experiment, scheme, seed, trust=True)
    corrupt(simulation, liars("20%", simulation.expected_delays, seed), LIES[lie])
    metrics: list[float] = []
    wanted = {number - back for number in SHOWN for back in range(LAST)}
    for current in simulation.rounds(lambda number, clock: number in wanted):
        if current.number in wanted and current.metric is not None:
            metrics.append(current.metric)
        if current.number >= SHOWN[-1]:
            break
    return [round(float(np.mean(part)), 4) for part in np.split(np.array(metrics), len(SHOWN))]


def main() -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="60,61,62")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--lies", default="honest;update x -1", help="separated by semicolons")
    parser.add_argument("--json", help="write the accuracies into this file")
    options = parser.parse_args()
    experiment = embedded()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found: dict[str, dict[str, list[float]]] = {}
    print(
        "| scheme | 20 % | " + " | ".join(f"step {number}" for number in SHOWN) + " |\n|---|---|" + "---|" * len(SHOWN)
    )
    for scheme, lie in product(options.schemes.split(","), options.lies.split(";")):
        runs = {}
        for seed in seeds:
            runs[str(seed)] = accuracies(experiment, scheme, lie, seed)
            print(scheme, lie, seed, runs[str(seed)], file=sys.stderr, flush=True)
        found[f"{scheme} | {lie}"] = runs
        columns = zip(*runs.values(), strict=True)
        cells = [f"{np.mean(column):.3f} ({min(column):.3f})" for column in columns]
        print(f"| {scheme} | {lie} | " + " | ".join(cells) + " |", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"steps": SHOWN, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
