"""How far `pace-async` is from a limit: exact steps, at the pace of the fastest client.

    python benchmarks/limit.py --seeds 0,1,2 --recorded benchmarks/grid/results.json > benchmarks/limit.json

No scheme can know what this oracle knows. It gets every client's true update of the current model free of charge, and
it steps as often as the fastest client answers. Its server step is that of `pace-async` (Nesterov momentum and FedExP's
length), its step size and targets are those of the cell. So its time is a bound for schemes with this server step that
hear at least one client per step. The ratio of `pace-async` to it says how much is left: for what slow clients hold,
somebody must wait.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grid.cells import EMBEDDED, LEVELS, Cell, cells, delay_models
from grid.runs import _NO_DELAYS, HOLD, FullJob, full_participation, one_thread, prepare, time_in
from grid.tuning import Tuned

from fedpace.records.holding import Holding
from fedpace.selectors.random import Random
from fedpace.server.nesterov import Nesterov
from grid import recorded

STEPS = 600
"""Steps of the oracle, after which its model counts as final."""


def curves(group: Sequence[Cell], rate: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the oracle's seconds to each target, for cells of one task that share a step size."""
    task = group[0].task
    everybody = Random(k=task.data.clients)
    simulation = prepare(Cell(task, _NO_DELAYS, rare=False), everybody, rate, seed, server=Nesterov(1.0))
    metrics = [each.metric for each in itertools.islice(simulation.rounds(), STEPS + 1)]
    targets = full_participation(FullJob(task, Tuned().reference(task), seed))["targets"]
    for cell in group:
        time = time_in(cell, simulation, seed)
        fastest, middle = float(time.expected.min()), float(np.median(time.expected))
        found: dict[str, Any] = {"cell": cell.name, "seed": seed, "fastest": fastest, "median": middle}
        for level in LEVELS:
            direction = "up" if task.data.metric == "accuracy" else "down"
            holding = Holding(targets[level], direction, hold=HOLD, every=middle)  # type: ignore[arg-type]
            for step in itertools.count():
                holding.add(step * fastest, metrics[min(step, STEPS)])
                if holding.held is not None or step * fastest > STEPS * fastest + 2 * HOLD * middle:
                    break
            found[level] = None if holding.held is None else {"steps": holding.held, "seconds": holding.held * fastest}
        yield found


def main() -> None:
    """Run the oracle in every cell, and set recorded runs beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="", help="parts of the cells' names")
    parser.add_argument("--delays", default="synthetic,nycmesh,devices")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--recorded", default="", metavar="FILE", help="results of time_to_target.py to compare with")
    parser.add_argument("--scheme", default="pace-async")
    options = parser.parse_args()
    one_thread()
    tuned, rows = Tuned(), list[Any]()
    every = cells(EMBEDDED, matching=options.cells, delays=delay_models(options.delays))
    for (name, rate), group in itertools.groupby(
        sorted(every, key=lambda cell: (cell.task.name, tuned.rate(cell))),
        key=lambda cell: (cell.task.name, tuned.rate(cell)),
    ):
        together = list(group)
        for seed in map(int, options.seeds.split(",")):
            rows += curves(together, rate, seed)
            print(name, rate, seed, rows[-1], file=sys.stderr, flush=True)
    known = {}
    for row in recorded.read(Path(options.recorded)) if options.recorded else []:
        if row["scheme"] == options.scheme and row["mode"] == "charged":
            known[row["cell"], row["seed"]] = row
    found = {}
    for cell in every:
        for level in LEVELS:
            mine = [row for row in rows if row["cell"] == cell.name and row[level]]
            pairs = [
                (known[cell.name, row["seed"]][level]["seconds"], row[level]["seconds"])
                for row in mine
                if (cell.name, row["seed"]) in known and known[cell.name, row["seed"]][level]["seconds"]
            ]
            logs = [np.log(ours / limit) for ours, limit in pairs if limit > 0]
            found[f"{cell.name}/{level}"] = {
                "oracle_steps": float(np.mean([row[level]["steps"] for row in mine])) if mine else None,
                "oracle_seconds": float(np.mean([row[level]["seconds"] for row in mine])) if mine else None,
                "ratio": round(float(np.exp(np.mean(logs))), 2) if logs else None,
            }
    print(
        json.dumps({"benchmark": "limit", "seeds": options.seeds, "scheme": options.scheme, "cells": found}, indent=1)
    )


if __name__ == "__main__":
    main()
