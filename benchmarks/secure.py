"""What secure aggregation and differential privacy cost: time to a target, plain, with sums, and with noise.

    nice -n 10 python benchmarks/secure.py benchmarks/secure.json          about 20 minutes on one core
    python benchmarks/secure.py --picture docs/secure.png benchmarks/secure.json
    python benchmarks/secure.py out.json --cells even --schemes fedbuff --seeds 901 --modes plain "sums 8"

Virtual seconds until an accuracy is held, on digits with 60 clients; noise on the first cell only. Sums are charged
with three round trips of 0.2 s per step (key exchange, shares, unmasking) and 2 kB per upload; `pace-async` also with a
second vector down and up per task. A run that does not hold the target within `LIMIT` steps or seconds, or runs out of
privacy budget, has missed it.

`exposed`: number of clients about whom alone some combination of all sums of a run tells something
(`fedpace.core.exposure`), counted over the whole run, also where the server starts its own count anew.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from fedpace import TrainingPrivacy, make_selector
from fedpace._base import registry
from fedpace.core.exposure import Exposure
from fedpace.core.sums import Group, GroupSum
from fedpace.data.digits import Digits
from fedpace.models.softmax import Softmax
from fedpace.report.style import FIXED
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.stopping import Stop, StopRule, run_until
from fedpace.sim.training import Training

CELLS: dict[str, tuple[float, str, float]] = {
    "even": (0.3, "lognormal", 0.0),
    "mesh": (0.3, "nycmesh", 0.0),
    "rare": (0.3, "lognormal", 1.0),
}
"""Name -> alpha of the digits, delay model, and how much slower clients with rare classes are."""
SCHEMES = {"pace": {}, "pace-async": {}, "fedbuff": {"buffer": 16}, "random": {"k": 16}}
"""Steps of 16 clients, so that one setting serves all minimums."""
TARGET, STEPS, LIMIT = 0.92, 400, 40.0
"""Accuracy; most steps; most seconds, as a multiple of the median delay times 25."""
COSTS = {"round_trips": 3, "trip_seconds": 0.2, "client_bytes": 2000}
MODES: dict[str, TrainingPrivacy | None] = {
    "plain": None,
    **{f"sums {least}": TrainingPrivacy("sums", minimum=least, **COSTS) for least in (4, 8, 16)},
    **{
        f"epsilon {epsilon}": TrainingPrivacy("sums", minimum=8, epsilon=float(epsilon), clip=0.5, releases=20, **COSTS)
        for epsilon in (1, 3, 10)
    },
}


def run(cell: str, scheme: str, mode: str, seed: int) -> dict[str, Any]:
    """Return what became of one run."""
    alpha, delays, rare = CELLS[cell]
    privacy = MODES[mode]
    one = Simulation(
        Digits(clients=60, alpha=alpha),
        Softmax(),
        registry.delays[delays](),
        make_selector(scheme, **SCHEMES[scheme]),
        training=Training(epochs=2, batch=16, lr=0.3, arithmetic="numpy"),
        fleet=Fleet(slow_rare=rare, warmup_wait=0.25),
        clock=Clock(charge_warmup=True),
        privacy=privacy,
        seed=seed,
    )
    audit = Exposure()
    if one.groups is not None and not (privacy and privacy.epsilon):
        opened = one.groups.open

        def watched(group: Group, minimum: int) -> GroupSum | None:
            nonlocal audit
            found = opened(group, minimum)
            if found is not None:
                audit = audit.after([group])
            return found

        one.groups.open = watched  # type: ignore[method-assign]
    most = LIMIT * 25 * float(np.median(one.expected_delays))
    rule = StopRule(Stop(target=TARGET, max_rounds=STEPS, max_seconds=most), "up", one.expected_delays.tolist())
    best, last = 0.0, None
    with closing(one.rounds()) as rounds:
        for last in run_until(rounds, rule):
            best = max(best, last.metric or 0.0)
    place = rule._holding.held
    held = None if place is None else rule._holding._clocks[place]
    return {
        "cell": cell,
        "scheme": scheme,
        "mode": mode,
        "seed": seed,
        "seconds": held,
        "steps": None if last is None else last.number,
        "best": best,
        "exposed": len(set(audit.clients())) if audit.owners else None,
        "epsilon": None if last is None else last.facts.get("privacy", {}).get("epsilon"),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return scheme -> mode -> time over the plain one's (geometric mean over runs that both held), and misses."""
    times = {(r["cell"], r["scheme"], r["mode"], r["seed"]): r for r in runs}
    found: dict[str, dict[str, Any]] = {}
    for scheme in dict.fromkeys(r["scheme"] for r in runs):
        for mode in dict.fromkeys(r["mode"] for r in runs):
            ratios, missed, exposed = [], 0, []
            for (cell, name, how, seed), each in times.items():
                if (name, how) != (scheme, mode):
                    continue
                plain = times.get((cell, scheme, "plain", seed), {}).get("seconds")
                missed += each["seconds"] is None
                if each["exposed"] is not None:
                    exposed.append(each["exposed"])
                if each["seconds"] and plain:
                    ratios.append(each["seconds"] / plain)
            ratio = math.exp(float(np.mean(np.log(ratios)))) if ratios else None
            largest = max(exposed) if exposed else None
            found.setdefault(scheme, {})[mode] = {"over plain": ratio, "missed": missed, "most exposed": largest}
    return found


def picture(path: Path, results: dict[str, Any]) -> None:
    """Draw the time to the target by scheme and mode."""
    import matplotlib.pyplot as plt

    modes = [mode for mode in results["modes"] if not mode.startswith("epsilon")]
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for scheme in results["schemes"]:
        means = []
        for mode in modes:
            took = [r["seconds"] for r in results["runs"] if (r["scheme"], r["mode"]) == (scheme, mode)]
            held = [seconds for seconds in took if seconds]
            means.append(math.exp(float(np.mean(np.log(held)))) if len(held) == len(took) else math.nan)
        look = FIXED.get(scheme.partition("(")[0])
        axes.plot(modes, means, marker="o", label=scheme, color=None if look is None else look.colour)
    axes.set_yscale("log")
    axes.set_ylabel(f"virtual seconds until {TARGET:.0%} is held")
    axes.set_xlabel("what the server sees; the number is the minimum of clients per sum")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run, or draw what was run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", nargs="+", default=list(CELLS))
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[901, 902])
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    if given.picture is not None:
        picture(given.picture, json.loads(given.out.read_text()))
        return
    runs = []
    for cell in given.cells:
        for seed in given.seeds:
            for scheme in given.schemes:
                for mode in given.modes:
                    if MODES[mode] is not None and MODES[mode].epsilon and cell != given.cells[0]:
                        continue  # noise decides there, not the cell
                    runs.append(run(cell, scheme, mode, seed))
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    content = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
        "target": TARGET,
        "costs": COSTS,
        "schemes": given.schemes,
        "modes": given.modes,
        "summary": summary(runs),
        "runs": runs,
    }
    given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
