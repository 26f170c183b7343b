"""Virtual seconds to the target on Flower's simulation: fedpace against Flower's own random sampling, same seeds.

python compare.py --seeds 3
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from local import Federation

CASES: dict[str, dict[str, Any]] = {
    "flower": {"selector": "flower"},
    "pace/rolling": {"selector": "pace", "warmup": "full", "warmup-wait": 0.5},
    "pace/full": {"selector": "pace", "warmup": "full", "warmup-wait": 1.0},
    "pace/lazy": {"selector": "pace", "warmup": "lazy"},
}
"""Scheme / how nodes are met; the first is what the others are compared with."""
REACHED = re.compile(r"DIGITS target \S+ reached: accuracy (\S+) after (\d+) rounds and (\S+) s")


def main() -> None:
    """Run every case under every seed, and print seconds and speed-ups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--k", type=int, default=4, help="nodes in a cohort, where the scheme has that option")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    times: dict[str, list[float]] = {case: [] for case in options.cases}
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder)) as federation:
        federation.superlink(simulation=options.nodes)
        for seed in range(options.seeds):
            for case in options.cases:
                config = {"seed": seed, "k": options.k, **CASES[case]}
                output = federation.run(f"{case.replace('/', '-')}-{seed}", **config)
                found = REACHED.search(output)
                times[case].append(float(found[3]) if found else float("inf"))
                words = f"{found[2]} rounds, {float(found[3]):,.0f} s" if found else f"not reached\n{output[-2000:]}"
                print(f"seed {seed}, {case}: {words}", flush=True)
    first = options.cases[0]
    for case, seconds in times.items():
        if float("inf") in times[first] + seconds:
            print(f"{case}: the target was not reached under every seed")
            continue
        ratio = statistics.geometric_mean(base / own for base, own in zip(times[first], seconds, strict=True))
        print(f"{case}: {statistics.mean(seconds):,.0f} s, {ratio:.2f} times as fast as {first}")


if __name__ == "__main__":
    main()
