"""Whether a scheme runs away where few fast clients set the pace and slow clients hold the data.

    python benchmarks/runaway.py                               pace-async, a minute; prints one JSON object
    python benchmarks/runaway.py --schemes pace-async,fedbuff --seeds 10,11

Federations: tables of 15 and 60 clients with 13 to 1,846 rows under the delays of real phones, which grow with the rows
(`lib/hard_federations.py`), and linear models with speeds of 1 : 10 : 100 and 1 : 1,000 : 10,000, where the fastest
clients hold 0.1 % of the data or as much as the others. Step sizes go from small to about three times the best one. A
run has 120 steps (tables) or 50. Reported: the largest loss of a run over its first one, and the last loss over the
first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from lib.hard_federations import NaturalTable, ThreeSpeeds

from fedpace import make_selector
from fedpace._base.errors import FedpaceError
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.trace import delays_from_array
from fedpace.models.builtin import Linear
from fedpace.sim.fleet import Fleet
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

TABLES = ((15, 0.003), (15, 0.01), (15, 0.05), (60, 0.003), (60, 0.02))
"""Clients and step size."""
SPEEDS = ((1.0, 10.0, 100.0), (1.0, 1000.0, 10000.0))
RATES = (0.02, 0.1, 0.3)


def federations(scheme: str, seed: int) -> Iterator[tuple[str, Simulation, int]]:
    """Yield name, simulation and steps of every run."""
    for clients, lr in TABLES:
        training = Training(epochs=5, batch=32, lr=lr, arithmetic="numpy")
        yield f"table {clients} lr {lr}", _run(NaturalTable(clients), DevicesDelays(), training, scheme, seed), 120
    for speeds in SPEEDS:
        seconds = [pace * (1 + 0.1 * i) for pace, n in zip(speeds, ThreeSpeeds.groups, strict=True) for i in range(n)]
        for sizes in ((2, 300, 900), (40, 40, 40)):
            for lr in RATES:
                training = Training(epochs=5, batch=8, lr=lr, arithmetic="numpy")
                run = _run(ThreeSpeeds(sizes), delays_from_array(seconds), training, scheme, seed)
                yield f"speeds {speeds[1]:g} {speeds[2]:g} sizes {sizes} lr {lr}", run, 50


def _run(data: Any, delays: Any, training: Training, scheme: str, seed: int) -> Simulation:
    fleet = Fleet(shares="samples")
    return Simulation(data, Linear(), delays, make_selector(scheme), training=training, fleet=fleet, seed=seed)


def main() -> None:
    """Run everything and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", default="pace-async")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--matching", default="", help="part of the names of federations")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for scheme in options.schemes.split(","):
        rows = []
        for seed in map(int, options.seeds.split(",")):
            for name, simulation, steps in federations(scheme, seed):
                if options.matching not in name:
                    continue
                losses: list[float] = []
                try:
                    rounds = islice(simulation.rounds(), steps + 1)
                    losses.extend(each.metric if each.metric is not None else float("inf") for each in rounds)
                except FedpaceError:  # the model is not finite any more
                    losses.append(float("inf"))
                losses = [each if each < float("inf") else float("inf") for each in losses]  # NaN, too, has run away
                highest, last = max(losses) / losses[0], losses[-1] / losses[0]
                rows.append((round(highest, 3), round(last, 4), f"{name} seed {seed}"))
        highest_of_all = np.array([row[0] for row in rows])
        found[scheme] = {
            "runs": len(rows),
            "above twice the first loss": int((highest_of_all > 2).sum()),
            "ended above the first loss": int(sum(row[1] > 1 for row in rows)),
            "worst": sorted(rows, reverse=True)[:5],
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
