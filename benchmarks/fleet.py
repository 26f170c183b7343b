"""A thousand and ten thousand FEMNIST-like clients on real phones; prints one JSON object.

    python benchmarks/fleet.py                                  1,000 clients: virtual time to the target, and the
                                                                server's seconds per decision
    python benchmarks/fleet.py --clients 10000 --schemes random,pace --max-rounds 60

Clients are clones of FEMNIST's writers (`partition = "cloned"`): 40 images each, turned by an angle of the clone's own,
14x14 pixels, a perceptron. FEDPACE_DATA names the folder of the data. A decision is everything that the server does
between two rounds except adding models up: who is there, the view, the choice, tasks and the ledger.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np
import torch

from fedpace import make_selector
from fedpace.data.femnist import Femnist
from fedpace.delays.devices import DevicesDelays
from fedpace.models.builtin import Mlp
from fedpace.records.holding import Holding
from fedpace.runner import SharedData
from fedpace.sim.clock import Clock
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {"k": 20}),
    "over-selection": ("random", {"k": 20, "overcommit": 2.0}),
    "fed-cs": ("fed-cs", {"k": 40, "quantile": 0.5}),
    "oort": ("oort", {"k": 20}),
    "fedbuff": ("fedbuff", {"buffer": 20, "in_flight": 60}),
    "pace": ("pace", {}),
    "pace-50": ("pace", {"max_clients": 50}),
    "pace-async": ("pace-async", {}),
    "pace-async-60": ("pace-async", {"in_flight": 60}),
}
HOLD = 10


def main() -> None:
    """Run every scheme at every size, and print what came out."""
    options = arguments()
    torch.set_num_threads(1)
    rows = []
    for clients in options.clients:
        data = SharedData(Femnist(clients=clients, partition="cloned", samples=40, shrink=2))
        for label in options.schemes.split(","):
            rows.append(run(data, label, options))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    facts = {
        "benchmark": "fleet",
        "cores": os.cpu_count(),
        "target": options.target,
        "delays": "devices",
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(json.dumps({**facts, "runs": rows}, indent=1))


def run(data: SharedData, label: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what one scheme took: virtual seconds, CPU seconds, and the server's part of those."""
    began = time.process_time()
    name, settings = SCHEMES[label]
    simulation = Simulation(
        data,  # type: ignore[arg-type]
        Mlp(hidden=64),
        DevicesDelays(),
        make_selector(name, **settings),
        training=Training(epochs=2, batch=20, lr=options.lr),
        fleet=Fleet(warmup_wait=0.25),
        clock=Clock(charge_warmup=True),
        engine=EngineOptions("inline"),
        seed=options.seed,
    )
    deciding = Deciding(simulation)
    expected = simulation.expected_delays
    held = Holding(options.target, "up", hold=HOLD, every=float(np.median(expected)))
    clocks, sizes, best, built = [], [], 0.0, time.process_time() - began
    for current in simulation.rounds():
        assert current.metric is not None
        clocks.append(current.clock)
        sizes.append(len(current.clients))
        best = max(best, current.metric)
        held.add(current.clock, current.metric)
        deciding.next_round()
        if held.held is not None or current.number >= options.max_rounds:
            break
    spent = time.process_time() - began
    return {
        "clients": len(expected),
        "scheme": label,
        "options": settings,
        "seed": options.seed,
        "virtual_seconds_to_target": None if held.held is None else round(clocks[held.held], 1),
        "first_crossing": None if held.crossed is None else round(clocks[held.crossed], 1),
        "rounds_played": len(clocks) - 1,
        "virtual_seconds_played": round(clocks[-1], 1),
        "best_accuracy": round(best, 4),
        "clients_per_round": round(float(np.mean(sizes[1:])), 1),
        "cpu_seconds": round(spent, 1),
        "cpu_seconds_to_build": round(built, 1),
        **deciding.facts(),
    }


class Deciding:
    """The clock of the server's decisions: CPU seconds inside the coordinator, round by round."""

    def __init__(self, simulation: Simulation) -> None:
        self._rounds: list[float] = []
        self._spent = 0.0
        coordinator = simulation.coordinator
        for name in ("due", "receive", "stepped", "lost"):
            setattr(coordinator, name, self._timed(getattr(coordinator, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.process_time()
            try:
                return method(*arguments, **keywords)
            finally:
                self._spent += time.process_time() - began

        return timed

    def next_round(self) -> None:
        """Begin the next one."""
        self._rounds.append(self._spent)
        self._spent = 0.0

    def facts(self) -> dict[str, float]:
        """The first round has the warm-up, so it is told apart."""
        later = np.array(self._rounds[2:] or [0.0])
        return {
            "first_decision_seconds": round(self._rounds[1], 4),
            "median_decision_seconds": round(float(np.median(later)), 4),
            "longest_later_decision_seconds": round(float(later.max()), 4),
        }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1000])
    parser.add_argument("--schemes", default=",".join(SCHEMES), help=f"some of {', '.join(SCHEMES)}")
    parser.add_argument("--target", type=float, default=0.6, help="accuracy to hold (default 0.6)")
    parser.add_argument("--lr", type=float, default=0.2, help="step size of the clients (default 0.2)")
    parser.add_argument("--max-rounds", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
