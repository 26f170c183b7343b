"""What choosing costs: seconds of one selection, of every registered scheme, in fleets of 100 and 1,000 clients.

    python benchmarks/selectors.py                                  one JSON object
    python benchmarks/selectors.py --only oort,divfl --clients 100

A fleet of which everything is known: long-tailed delays, losses, label histograms of 10 classes, update sketches of
256 numbers, the lateness of 256 answers, and the second moments of 16 features. A scheme has its default options.
Choosing is `probe` + `select`; what the probed clients do meanwhile is not counted. The first selection, which may
build caches, stands apart: it is measured once, with caches empty, and the others are the median of repetitions within
the budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import platform
import statistics
import time
from typing import Any

import numpy as np

from fedpace._base import registry
from fedpace._base.errors import FedpaceError
from fedpace.core.types import Need, View
from fedpace.moments.bank import MomentBank

SKETCH, CLASSES, FEATURES = 256, 10, 16
FIRST_STEP = 41
"""Late enough that schemes with pilot rounds are past them."""


def fleet(clients: int, seed: int = 0) -> dict[str, Any]:
    """Return what is known of `clients` clients, as the fields of a View."""
    rng = np.random.default_rng(seed)
    samples = rng.integers(20, 500, clients).astype(float)
    return {
        "now": 0.0,
        "available": np.ones(clients, bool),
        "share": samples / samples.sum(),
        "delay": rng.lognormal(4, 1, clients),
        "loss": rng.uniform(0.1, 2.0, clients),
        "participations": rng.integers(1, 20, clients),
        "labels": rng.dirichlet(np.full(CLASSES, 0.3), clients) * samples[:, None],
        "updates": rng.standard_normal((clients, SKETCH)),
        "update_step": rng.integers(30, FIRST_STEP, clients),
        "accumulated": {
            "recent_weight": rng.dirichlet(np.ones(clients)),
            "lateness": np.column_stack([rng.lognormal(0, 0.3, 256), rng.random(256) < 0.1]),
        },
    }


def moments(clients: int, seed: int = 0) -> MomentBank:
    """Return a bank with one factor per client."""
    rng = np.random.default_rng([seed, 1])
    bank = MomentBank()
    bank.append(clients)
    for row in range(clients):
        scale = rng.uniform(0.7, 1.3, FEATURES)
        bank.put(row, rng.standard_normal((FEATURES, FEATURES)) * scale / np.sqrt(FEATURES))
    return bank


def measure(selector: Any, known: dict[str, Any], bank: MomentBank | None, budget: float) -> dict[str, float]:
    """Return milliseconds of the first selection and the median of those that follow."""
    choose = getattr(selector, "decide", None) or selector.select  # a policy, with nobody at work yet
    state = selector.init()
    times: list[float] = []
    for step in range(FIRST_STEP, FIRST_STEP + 200):
        # A quarter has answered the probe of this step: power-of-choice recognises its candidates by that.
        fresh = np.where(np.arange(known["share"].size) % 4 == 0, step, step - 1)
        view = View(step=step, loss_step=fresh, moments=bank, **known)
        rng = np.random.default_rng(step)
        began = time.perf_counter()
        selector.probe(state, view, rng)
        _, state = choose(state, view, rng)
        times.append(time.perf_counter() - began)
        if len(times) > 1 and sum(times) > budget:
            break
    later = times[1:] or times
    return {
        "first_ms": round(1e3 * times[0], 3),
        "median_ms": round(1e3 * statistics.median(later), 3),
        "selections": len(times),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="100,1000", help="sizes of the fleets")
    parser.add_argument("--only", default="", help="names of schemes; empty = all")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for a scheme and fleet")
    options = parser.parse_args()
    sizes = [int(size) for size in options.clients.split(",")]
    names = options.only.split(",") if options.only else registry.selectors.names()
    for module in ("scipy.cluster.hierarchy", "scipy.optimize", "scipy.spatial.distance"):
        importlib.import_module(module)  # schemes do when they need it, which is no part of choosing
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for size in sizes:
        known = fleet(size)
        for name in names:
            kind = registry.selectors[name]
            bank = moments(size) if Need.MOMENT in kind.needs else None
            try:
                found[name][str(size)] = measure(kind(), known, bank, options.budget)
            except FedpaceError as cause:
                found[name][str(size)] = {"error": str(cause)}
    options_of = {name: dataclasses.asdict(registry.selectors[name]()) for name in names}
    print(
        json.dumps(
            {
                "benchmark": "selectors",
                "python": platform.python_version(),
                "numpy": np.__version__,
                "cpus": os.cpu_count(),
                "sketch": SKETCH,
                "schemes": {name: {"clients": found[name], "options": options_of[name]} for name in names},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
