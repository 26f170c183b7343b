"""What the defences do to honest clients: answers left out, clients held off, by scheme and by how data differ.

    python benchmarks/honest_clients.py --seeds 100,101,102 --steps 80 --json benchmarks/honest_clients.json

The experiment is the embedded one (60 clients, handwritten digits, long-tailed delays) with other Dirichlet parameters,
for so many steps of each scheme, with the defences on. `left out`: answers that pointed against the others of their
step. `refused`: those that were too long. `not asked`: clients that were held off at any time, and `for good`: those
that were taken for clients that turn their updates round.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from liars import SCHEMES, embedded, federation

from fedpace.config.experiment import Experiment
from fedpace.core.hearing import AGAINST
from fedpace.core.trust import LEAST

ALPHAS = (0.05, 0.1, 0.3, 2.0)


def watched(experiment: Experiment, scheme: str, alpha: float, seed: int, steps: int) -> dict[str, int]:
    """Run one federation of honest clients; count what was held against them."""
    data: Any = replace(experiment.data, alpha=alpha)  # type: ignore[type-var]
    simulation = federation(replace(experiment, data=data), scheme, seed, trust=True)
    coordinator = simulation.coordinator
    trust, screen = coordinator.ledger.trust, coordinator.screen
    found = dict.fromkeys(("answers", "left out", "refused"), 0)
    held_off = np.zeros(len(coordinator), dtype=bool)

    def spying(updates: Any) -> dict[int, str]:
        why = screen(updates)
        assert coordinator._step is not None
        found["answers"] += len(coordinator._step.answers)
        found["left out"] += sum(reason == AGAINST for reason in why.values())
        found["refused"] += sum(reason != AGAINST for reason in why.values())
        return why

    coordinator.screen = spying  # type: ignore[method-assign]
    for current in simulation.rounds(lambda number, clock: False):
        held_off |= trust.weight() < LEAST
        if current.number >= steps:
            break
    return {
        **found,
        "clients": len(coordinator),
        "not asked": int(held_off.sum()),
        "for good": int(trust.columns["turned"].sum()),
    }


def main() -> None:
    """Run all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="100,101,102")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--alphas", default=",".join(map(str, ALPHAS)))
    parser.add_argument("--json", help="write the counts into this file")
    options = parser.parse_args()
    experiment = embedded()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    totals: dict[str, dict[str, int]] = {}
    for alpha, scheme in product(map(float, options.alphas.split(",")), options.schemes.split(",")):
        runs = [watched(experiment, scheme, alpha, seed, options.steps) for seed in seeds]
        totals[f"{alpha} | {scheme}"] = {name: sum(run[name] for run in runs) for name in runs[0]}
        print(alpha, scheme, totals[f"{alpha} | {scheme}"], file=sys.stderr, flush=True)
    names = list(next(iter(totals.values())))
    print("| Dirichlet | scheme | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
    for key, counts in totals.items():
        print(f"| {key} | " + " | ".join(f"{counts[name]:,}" for name in names) + " |")
    if options.json:
        content = {"seeds": seeds, "steps": options.steps, "counts": totals}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
