"""This checkout's simulator against an earlier one's, by processor time, turn by turn; prints one JSON object.

    git worktree add /tmp/earlier 6c7d45d && python benchmarks/earlier.py /tmp/earlier
    python benchmarks/earlier.py /tmp/earlier --images          W too: needs MNIST, and minutes

The workloads are V and W of `simulator.py` (1,000 clients of digits, 100 per round, and MNIST with the ConvNet, 10 per
round), played inline. Both checkouts are given the same files, and turns alternate, so that whatever else the machine
does falls on both. Compared are the least of the turns, and the least of all rounds, since other work can only add to
them; of the two, the second says more on a busy machine, where no turn is left alone from its first round to its last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "contestants")]

from lib import workloads  # noqa: E402
from workload import Workload  # noqa: E402

PLAYED = """
import sys, time
from contextlib import closing
from pathlib import Path
from ours import EngineOptions, load, simulation
place, rounds = Path(sys.argv[1]), int(sys.argv[2])
with closing(simulation(load(place), EngineOptions("inline", 0)).rounds()) as played:
    next(played), next(played)
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        last = next(played)
        seconds.append(time.process_time() - began)
    print(sum(seconds) / rounds, min(seconds), last.metric)
"""


class Turn(NamedTuple):
    """What some rounds took."""

    mean: float
    """Processor seconds of a round."""
    least: float
    """Of the one that took the least."""
    accuracy: float
    """After the last."""


def turn(checkout: Path, place: Path, rounds: int) -> Turn:
    """Play so many rounds with a checkout."""
    path = os.pathsep.join([str(checkout / "src"), str(HERE / "contestants")])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", PLAYED, str(place), str(rounds)],
        env={**os.environ, **threads, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{checkout} ended with {done.returncode}: {done.stderr[-2000:]}")
    return Turn(*map(float, done.stdout.split()))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, help="checkout of the earlier version")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--images", action="store_true", help="W too")
    options = parser.parse_args()
    made: dict[str, tuple[Workload, int]] = {
        f"V {model}": (workloads.overhead(model), 40) for model in ("softmax", "mlp")
    }
    if options.images:
        made["W"] = (workloads.images(), 2)
    checkouts = {"earlier": options.earlier.resolve(), "now": HERE.parent}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (workload, rounds) in made.items():
            place = Path(folder) / name.replace(" ", "-")
            workload.save(place)
            turns: dict[str, list[Turn]] = {which: [] for which in checkouts}
            for _ in range(options.turns):
                for which, checkout in checkouts.items():
                    turns[which].append(last := turn(checkout, place, rounds))
                    sys.stderr.write(f"{name}, {which}: {1e3 * last.mean:.3f} ms, at least {1e3 * last.least:.3f}\n")
            taken = {
                "least_turn": {which: min(one.mean for one in played) for which, played in turns.items()},
                "median_turn": {which: median(one.mean for one in played) for which, played in turns.items()},
                "least_round": {which: min(one.least for one in played) for which, played in turns.items()},
            }
            found[name] = {
                "milliseconds_per_round": {
                    what: {which: round(1e3 * value, 3) for which, value in each.items()}
                    for what, each in taken.items()
                },
                "now_over_earlier": {what: round(each["now"] / each["earlier"], 3) for what, each in taken.items()},
                "accuracy": {which: played[0].accuracy for which, played in turns.items()},
            }
    print(json.dumps({"turns": options.turns, **found}, indent=2))


if __name__ == "__main__":
    main()
