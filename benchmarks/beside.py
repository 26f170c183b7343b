"""A scheme whose runs are recorded apart, beside the grid's: `pace-async` over it, and over the best rival with it.

    python benchmarks/beside.py benchmarks/grid/fedasync.json --name fedasync

Prints the tables of docs/results.md. A run that was given up counts with the time that it certainly took (`beyond`),
so that factors over it are lower bounds, marked ≥; one that missed its target does not count.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grid.analysis import ratio

RIVALS = ("baseline", "paper")
"""Not our own schemes, nor those that are given the server step of one."""
GRID = Path(__file__).parent / "grid" / "results.json"


def main() -> None:
    """Print who is how fast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--name", required=True, help="what the scheme is called")
    parser.add_argument("--flagship", default="pace-async")
    options = parser.parse_args()
    others = json.loads(Path(options.file).read_text())["cells"]
    over: dict[str, list[tuple[float, bool]]] = {}
    best: dict[str, list[tuple[float, bool]]] = {}
    ahead = ahead_of_all = 0
    for cell in json.loads(GRID.read_text())["cells"]:
        name, schemes = cell["cell"], cell["schemes"]
        ours = schemes[options.flagship]["seconds"]
        told = {seed: _seconds(value) for seed, value in others.get(name, {}).items()}
        times = {seed: found[0] for seed, found in told.items() if found}
        found = ratio(times, ours)
        if found is None:
            continue
        bound = any(told[seed][1] for seed in times)
        rival = min((mean for mean in (_factor(each, ours) for each in schemes.values()) if mean), default=math.inf)
        delays = name.split("/")[1]
        over.setdefault(delays, []).append((found["mean"], bound))
        best.setdefault(delays, []).append((found["mean"], bound) if found["mean"] < rival else (rival, False))
        ahead += found["mean"] > 1
        ahead_of_all += min(found["mean"], rival) > 1
        mark = "≥ " if bound else ""
        theirs, mine = (_geometric(side[seed] for seed in times) for side in (times, ours))
        spread = f"({found['low']:.2f} to {found['high']:.2f})"
        print(f"| {name} | {mine:,.0f} s | {mark}{theirs:,.0f} s | {mark}{found['mean']:.2f} {spread} |")
    for what, groups, count in ((f"over {options.name}", over, ahead), ("over the best rival", best, ahead_of_all)):
        means = "; ".join(f"{delays} {_mean(values)}" for delays, values in sorted(groups.items()))
        print(f"{options.flagship} {what}: {means}; ahead in {count} of {sum(map(len, groups.values()))}")


def _seconds(value: object) -> tuple[float, bool] | None:
    """Return how long a run took, and whether it was given up then."""
    if isinstance(value, dict):
        return float(value["beyond"]), True
    return None if value is None else (float(value), False)  # type: ignore[arg-type]


def _factor(scheme: dict[str, Any], ours: dict[str, float]) -> float | None:
    """Return the factor over a rival that held the target under more than half of the seeds."""
    held = {seed: value for seed, value in scheme["seconds"].items() if value is not None}
    if scheme["camp"] not in RIVALS or 2 * len(held) <= len(ours):
        return None
    found = ratio(held, ours)
    return None if found is None else found["mean"]


def _geometric(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _mean(values: list[tuple[float, bool]]) -> str:
    mark = "≥ " if any(bound for _, bound in values) else ""
    return f"{mark}{_geometric(value for value, _ in values):.2f}x"


if __name__ == "__main__":
    main()
