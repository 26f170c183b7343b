"""How often a step jumps between source files: changes of file between two calls within fedpace, per step.

    python benchmarks/switches.py                     prints the table
    python benchmarks/switches.py --json out.json     writes it too

A reader who follows a step with a debugger makes as many jumps. Three runs are traced with `sys.setprofile`, after
warming up: `pace` and `pace-async` in the simulator, and `PacedServer("pace-async")` on Flower's grid in one process.
Calls of comprehensions and lambdas count for the file that they stand in.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import fedpace
from fedpace.sim.rounds import Simulation

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "golden"), str(ROOT / "tests" / "helpers")]
SOURCE = str(Path(fedpace.__file__).parent)
STEPS, SKIPPED = 20, 5
CLIENTS = 14


class Switches:
    """Counts changes of file between calls within fedpace, while it is active."""

    def __init__(self) -> None:
        self.count = 0
        self.files: Counter[str] = Counter()
        self._last = ""

    def __enter__(self) -> Switches:
        """Start to count."""
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *problem: object) -> None:
        """Stop."""
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE):
            return
        self.files[name] += 1
        if name != self._last:
            self.count += self._last != ""
            self._last = name


def simulated(scheme: str) -> Switches:
    """Trace steps of the small simulation of the golden runs."""
    from cases import REGRESSION

    simulation = Simulation(
        REGRESSION["data"],
        REGRESSION["model"],
        REGRESSION["delays"],
        fedpace.make_selector(scheme),
        training=REGRESSION["training"],
        seed=3,
    )
    rounds = simulation.rounds()
    for _ in islice(rounds, SKIPPED + 1):
        pass
    with Switches() as found:
        for _ in islice(rounds, STEPS):
            pass
    return found


def on_flower() -> Switches:
    """Trace steps of `PacedServer` on Flower's grid in one process."""
    from flower_fleet import fleet, start
    from flower_grid import Tools
    from hosts import in_task

    from fedpace.flower import PacedServer

    found = Switches()

    def begin(number: int, arrays: Any) -> None:
        if number == SKIPPED:
            found.__enter__()

    with in_task():
        server = PacedServer("pace-async", seed=3, clock="reported", sketch=4)
        try:
            server.start(fleet(Tools, CLIENTS), start(Tools), SKIPPED + STEPS, evaluate_fn=begin)
        finally:
            found.__exit__()
    return found


RUNS: dict[str, Callable[[], Switches]] = {
    "pace, simulator": lambda: simulated("pace"),
    "pace-async, simulator": lambda: simulated("pace-async"),
    "PacedServer(pace-async), Flower's grid": on_flower,
}


def main() -> None:
    """Print switches and files per step of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--files", action="store_true", help="list the files with the most calls")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = {}
    for name, run in RUNS.items():
        found = run()
        rows[name] = {"switches per step": found.count / STEPS, "files": len(found.files)}
        print(f"{name:40} {found.count / STEPS:8.0f} switches per step, {len(found.files):3d} files")
        if options.files:
            for path, calls in found.files.most_common(15):
                print(f"    {calls / STEPS:8.1f} calls  {Path(path).relative_to(SOURCE)}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
