"""Virtual seconds to the target on Flower's simulation: fedpace against Flower's own random sampling, same seeds.

python compare.py --seeds 3
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from pathlib import Path

from local import Federation

CASES = {
    "flower": {"selector": "flower"},
    "delayhet-sampling, full warm-up": {"selector": "delayhet-sampling", "warmup": "full"},
    "delayhet-sampling, lazy warm-up": {"selector": "delayhet-sampling", "warmup": "lazy"},
}
REACHED = re.compile(r"DIGITS target \S+ reached: accuracy (\S+) after (\d+) rounds and (\S+) s")


def main() -> None:
    """Run every case under every seed, and print seconds and speed-ups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=40)
    options = parser.parse_args()
    times: dict[str, list[float]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder)) as federation:
        federation.superlink(simulation=options.nodes)
        for seed in range(options.seeds):
            for case, config in CASES.items():
                output = federation.run(f"{config['selector']}-{config.get('warmup')}-{seed}", seed=seed, **config)
                found = REACHED.search(output)
                times[case].append(float(found[3]) if found else float("inf"))
                words = f"{found[2]} rounds, {float(found[3]):,.0f} s" if found else f"not reached\n{output[-2000:]}"
                print(f"seed {seed}, {case}: {words}", flush=True)
    for case, seconds in times.items():
        ratios = [base / own for base, own in zip(times["flower"], seconds, strict=True)]
        ratio = statistics.geometric_mean(ratios)
        print(f"{case}: {statistics.mean(seconds):,.0f} s, {ratio:.2f} times as fast as flower")


if __name__ == "__main__":
    main()
