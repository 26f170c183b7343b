"""How well `pace-async` knows the error of its own steps: what it takes it for, beside what it is.

    python benchmarks/step_errors.py                                       a table on stderr, a JSON object
    python benchmarks/step_errors.py --cells digits-0.3/nycmesh --seeds 100 --seconds 1000 --steps

Whether a step is worth making is decided by its expected squared error rho, in units of the squared length of the step
that everybody would make together. A simulation can be asked what nobody knows in a federation: before each step all
clients are trained from the shared model, on the side, and the step is compared with the average of their updates.
Printed per cell: geometric means over steps of what was expected and of what it was, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from grid.cells import Cell
from grid.runs import one_thread, prepare
from grid.tuning import FILE, Tuned

from fedpace._base.checks import FloatArray
from fedpace.selectors.pace_async import PaceAsync
from fedpace.server import memory_corrected
from fedpace.server._memory import Memory
from grid import cells as grid_cells

ASIDE = 2**30
"""Names the minibatches of those that are trained on the side."""


class Watched(Memory):
    """Keeps the step that was made, before momentum."""

    made: FloatArray

    def step(self, *given: Any) -> Any:
        """Return what `Memory.step` does."""
        made = super().step(*given)
        Watched.made = made[0]
        return made


def steps_of(cell: Cell, seed: int, rate: float, seconds: float) -> Iterator[dict[str, float]]:
    """Yield what is expected of each step, and what it is."""
    simulation = prepare(cell, PaceAsync(), rate, seed)
    trainer, share = simulation.trainer, simulation.coordinator.view().share
    everybody = list(range(trainer.data.clients))
    rounds = simulation.rounds()
    next(rounds)
    while True:
        model = deepcopy(simulation.parameters)
        current = next(rounds)
        trained = trainer.train_many(model, everybody, ASIDE + current.number)
        together = sum(
            w * (np.asarray(result.parameters, np.float64) - np.asarray(model, np.float64))
            for w, result in zip(share, trained, strict=True)
        )
        wanted = np.asarray(together)
        error = Watched.made - wanted
        yield {
            "seconds": current.clock,
            "answers": len(current.clients),
            "expected": float(current.facts.get("rho", np.nan)),
            "true": float(error @ error) / float(wanted @ wanted),
        }
        if current.clock > seconds:
            return


def main() -> None:
    """Look at the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="digits-0.3,digits-rotated,quadratic", help="parts of the cells' names")
    parser.add_argument("--held-out", action="store_true", help="cells of the held-out federations")
    parser.add_argument("--images", action="store_true", help="cells of MNIST and FashionMNIST, where they are present")
    parser.add_argument("--seeds", default="100")
    parser.add_argument("--seconds", type=float, default=1000.0, help="virtual ones (default 1000)")
    parser.add_argument("--steps", action="store_true", help="print every step")
    options = parser.parse_args()
    one_thread()
    memory_corrected.Memory = Watched  # type: ignore[attr-defined]
    tuned, found = Tuned(FILE), {}
    tasks: tuple[grid_cells.Task, ...] = grid_cells.PUBLIC if options.images else grid_cells.EMBEDDED
    if options.held_out:
        tasks = grid_cells.HELD_OUT
    for cell in grid_cells.cells(tasks, matching=options.cells):
        rows = []
        for seed in options.seeds.split(","):
            for row in steps_of(cell, int(seed), tuned.rate(cell), options.seconds):
                rows.append(row)
                if options.steps:
                    print(json.dumps({"cell": cell.name, "seed": int(seed), **row}), file=sys.stderr)
        expected, true = (np.array([row[name] for row in rows]) for name in ("expected", "true"))
        counted = (expected > 0) & (true > 0)
        means = {"expected": _mean(expected[counted]), "true": _mean(true[counted])}
        means["expected_over_true"] = means["expected"] / means["true"]
        found[cell.name] = {"steps": len(rows), **{name: round(value, 3) for name, value in means.items()}}
        print(cell.name, found[cell.name], file=sys.stderr)
    print(json.dumps({"benchmark": "step_errors", "seeds": options.seeds, "seconds": options.seconds, "cells": found}))


def _mean(values: FloatArray) -> float:
    return float(np.exp(np.log(values).mean()))


if __name__ == "__main__":
    main()
