"""Choosing among up to a million clients, and what sketches lose against the exact answer; prints one JSON object.

python benchmarks/scale.py                    # 10^4, 10^5, 10^6 sketches, then quality at 2000 clients
python benchmarks/scale.py --sizes 10000 --quality-clients 500
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import Any

import numpy as np

from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.numerics.prefix import solution_of_set

RIDGE = 0.1
KINDS = ("clustered", "continuous", "near-identical")


def sketches(clients: int, dimension: int) -> np.ndarray:
    """Return sketches of 500 groups of clients with a continuous spread inside each."""
    rng = stream(0, "scale", clients)
    centres = rng.standard_normal((500, dimension)).astype(np.float32) / np.sqrt(dimension)
    points = rng.standard_normal((clients, dimension), dtype=np.float32) * np.float32(0.3 / np.sqrt(dimension))
    points += centres[rng.integers(500, size=clients)]
    return points


def delays(clients: int) -> np.ndarray:
    """Return long-tailed delays in seconds."""
    return stream(1, "scale", "delay", clients).lognormal(mean=3.0, sigma=1.0, size=clients)


def growth(sizes: list[int], dimension: int) -> list[dict[str, Any]]:
    """Time loading, clustering and choosing, for each size."""
    rows = []
    for clients in sizes:
        points, delay = sketches(clients, dimension), delays(clients)
        begin = time.perf_counter()
        bank = MomentBank.sketched(clients, ridge=RIDGE, dimension=dimension)
        bank.put_sketches(np.arange(clients), points)
        loaded = time.perf_counter()
        found = bank.best_prefix(delay, ridge=RIDGE)
        first = time.perf_counter()
        changed = stream(2, "scale", clients).choice(clients, 100, replace=False)
        bank.put_sketches(changed, points[changed] + np.float32(0.01))
        bank.best_prefix(delay * 1.01, ridge=RIDGE)
        again = time.perf_counter()
        rows.append(
            {
                "clients": clients,
                "seconds": round(first - begin, 2),
                "of_which_loading": round(loaded - begin, 2),
                "next_round_seconds": round(again - first, 2),
                "microseconds_a_client": round((first - begin) / clients * 1e6, 2),
                "chosen": len(found.clients),
                "predicted_seconds_a_round": round(found.delay, 3),
                "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
            }
        )
        del bank, points
    return rows


def factors(kind: str, clients: int, width: int = 12, rows: int = 24) -> list[np.ndarray]:
    """Return moments of three kinds: 20 groups, all different, nearly all the same."""
    rng = stream(0, "quality", kind)
    if kind == "clustered":
        groups = rng.standard_normal((20, rows, width)) * np.sqrt(rng.uniform(0.3, 3, (20, 1, width)))
        return [groups[rng.integers(20)] + 0.1 * rng.standard_normal((rows, width)) for _ in range(clients)]
    if kind == "continuous":
        return [rng.standard_normal((rows, width)) * np.sqrt(rng.uniform(0.3, 3, width)) for _ in range(clients)]
    base = rng.standard_normal((rows, width))
    return [base + 0.05 * rng.standard_normal((rows, width)) for _ in range(clients)]


def quality(kind: str, clients: int, prototypes: int) -> dict[str, Any]:
    """Compare the sketched answer with the exact one, both valued by the exact objective."""
    moments, shares = factors(kind, clients), np.full(clients, 1 / clients)
    exact_bank = MomentBank(clients)
    bank = MomentBank.sketched(clients, ridge=RIDGE, prototypes=prototypes)
    for row, factor in enumerate(moments):
        exact_bank.put(row, factor)
        bank.put(row, factor)
    begin = time.perf_counter()
    B = exact_bank.heterogeneity(ridge=RIDGE)
    matrix_seconds = time.perf_counter() - begin
    result: dict[str, Any] = {
        "kind": kind,
        "clients": clients,
        "prototypes": prototypes,
        "exact_matrix_seconds": round(matrix_seconds, 1),
        "sketch_relative_error": round(bank.calibration.relative_error, 3),
    }
    # The target moves the answer from one client to hundreds; 0 leaves B as it is.
    for target in (0.0, 0.3, 0.6):
        for name, delay in (("long-tailed", delays(clients)), ("uniform", stream(3, "u").uniform(15, 100, clients))):
            exact = exact_bank.best_prefix(delay, ridge=RIDGE, target=target)
            found = bank.best_prefix(delay, ridge=RIDGE, target=target)
            valued = solution_of_set(B * exact.scale, delay, shares, found.clients)
            objective = valued.delay / (1 - valued.bound) if valued.bound < 1 else float("inf")
            result[f"target {target}, {name}"] = {
                "exact_clients": len(exact.clients),
                "sketched_clients": len(found.clients),
                "exact_objective": round(exact.objective, 4),
                "sketched_objective": round(objective, 4),
                "loss": round(objective / exact.objective - 1, 5),
            }
    result["largest_loss"] = max(value["loss"] for value in result.values() if isinstance(value, dict))
    return result


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--quality-clients", type=int, default=2000)
    parser.add_argument("--prototypes", type=int, default=500, help="clusters in the quality comparison")
    options = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "scale", "cores": os.cpu_count()}
    result["growth"] = growth(options.sizes, options.dimension)
    if options.quality_clients:
        result["quality"] = [quality(kind, options.quality_clients, options.prototypes) for kind in KINDS]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
