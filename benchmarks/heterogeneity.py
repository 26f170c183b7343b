"""Time and error of `pairwise_heterogeneity` against NumPy pair by pair; prints one JSON object.

python benchmarks/heterogeneity.py            # the paper's size: 100 clients, 500 features, 100 rows each
python benchmarks/heterogeneity.py --fleet    # also 1000 clients, 512 features, 64 rows each, and an update of 50
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.numerics import pairwise_heterogeneity
from fedpace.numerics.blas import one_blas_thread
from fedpace.numerics.heterogeneity import whiten


def quadratic(clients: int, rows: int, width: int, seed: int = 0) -> list[np.ndarray]:
    """Return factors of the paper's Quadratic data: shared eigenvectors, eigenvalues U[1, 10] a client."""
    rng = stream(seed, "benchmark", clients, width)
    basis, _ = np.linalg.qr(rng.standard_normal((width, width)))
    scale = np.sqrt(rng.uniform(1, 10, (clients, width)))
    return [rng.standard_normal((rows, width)) * own @ basis.T / np.sqrt(rows) for own in scale]


def seconds(work: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Return the least wall-clock time of a few runs, and the last result."""
    best, result = np.inf, None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - begin)
    return best, result


def gemm_rate(dtype: type) -> float:
    """Return the machine's rate of large matrix products, in GFLOP/s."""
    matrix: NDArray[Any] = stream(0, "gemm").standard_normal((2000, 2000)).astype(dtype)
    return 2 * 2000**3 / seconds(lambda: matrix @ matrix, 5)[0] / 1e9


def paper_size(repeats: int) -> dict[str, Any]:
    """Compare with `numpy.linalg.norm(W_i - W_j, 2)`: timed on 100 random pairs and scaled up, error on 300."""
    factors = quadratic(100, 100, 500)
    shares = np.full(100, 0.01)
    clock = time.process_time()
    ours, B = seconds(lambda: pairwise_heterogeneity(factors), repeats)
    ours_cpu = (time.process_time() - clock) / repeats
    whitened = whiten(factors, shares)
    maps = [factor.T @ (factor @ whitened.inverse) for factor in factors]
    first, second = np.triu_indices(100, 1)
    chosen = stream(1, "pairs").choice(len(first), 300, replace=False)
    exact = np.empty(300)

    def pair_by_pair(begin: int, end: int) -> float:
        """Return the median seconds per pair."""
        taken = []
        for place in range(begin, end):
            i, j = first[chosen[place]], second[chosen[place]]
            start = time.perf_counter()
            exact[place] = np.linalg.norm(maps[i] - maps[j], 2)
            taken.append(time.perf_counter() - start)
        return float(np.median(taken))

    # Whichever is better for NumPy on this machine, now: BLAS with all its threads, or with one.
    threaded = pair_by_pair(0, 100)
    with one_blas_thread():
        clock = time.process_time()
        single = pair_by_pair(100, 200)
        single_cpu = (time.process_time() - clock) / 100
        pair_by_pair(200, 300)
    plain = min(threaded, single) * len(first)
    error = np.abs(B[first[chosen], second[chosen]] - exact) / exact
    whitened.norms(first, second, tol=1e-3)
    rate, work = gemm_rate(np.float32), whitened.operations
    return {
        "clients": 100,
        "features": 500,
        "rows": 100,
        "seconds": round(ours, 3),
        "numpy_pair_by_pair_seconds": round(plain, 1),
        "numpy_milliseconds_a_pair": {"all_threads": round(threaded * 1e3, 1), "one_thread": round(single * 1e3, 1)},
        "speed_up": round(plain / ours, 1),
        "cpu_seconds": round(ours_cpu, 2),
        "cpu_speed_up": round(single_cpu * len(first) / ours_cpu, 1),
        "largest_relative_error_of_300": float(f"{error.max():.3g}"),
        "gemm_gflops_float32": round(rate, 1),
        "gflop_in_products": round(work / 1e9, 1),
        "fraction_of_gemm_rate": round(work / ours / 1e9 / rate, 3),
    }


def fleet(clients: int) -> dict[str, Any]:
    """Time a fleet, and the update of a twentieth of it with A frozen; CPU seconds too, for a machine that is busy."""
    factors = quadratic(clients, 64, 512)
    bank = MomentBank(clients, reference="frozen")
    for row, factor in enumerate(factors):
        bank.put(row, factor)
    clock = time.process_time()
    whole, _ = seconds(lambda: bank.heterogeneity(ridge=0.0))
    whole_cpu = time.process_time() - clock
    changed = clients // 20
    for row, factor in enumerate(quadratic(clients, 64, 512, seed=1)[:changed]):
        bank.put(20 * row, factor)
    clock = time.process_time()
    update, B = seconds(lambda: bank.heterogeneity(ridge=0.0))
    update_cpu = time.process_time() - clock
    return {
        "clients": clients,
        "features": 512,
        "rows": 64,
        "updated": changed,
        "seconds": round(whole, 1),
        "cpu_seconds": round(whole_cpu, 1),
        "update_seconds": round(update, 2),
        "update_cpu_seconds": round(update_cpu, 2),
        "update_fraction": round(update / whole, 4),
        "update_cpu_fraction": round(update_cpu / whole_cpu, 4),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "finite": bool(np.isfinite(B).all()),
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", type=int, nargs="?", const=1000, default=0, metavar="CLIENTS")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "heterogeneity",
        "cores": os.cpu_count(),
        "paper": paper_size(options.repeats),
    }
    if options.fleet:
        result["fleet"] = fleet(options.fleet)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
