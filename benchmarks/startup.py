"""How long it takes before anything happens, as ratios to NumPy and SciPy alone; prints one JSON object.

python benchmarks/startup.py                  # seconds of processor time, the median of 7 turns

Turns alternate, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

COMMANDS = {
    "numpy and scipy": [sys.executable, "-c", "import numpy, scipy"],
    "import fedpace": [sys.executable, "-c", "import fedpace"],
    "fedpace --help": [sys.executable, "-m", "fedpace", "--help"],
    "fedpace compare --help": [sys.executable, "-m", "fedpace", "compare", "--help"],
}
YARDSTICK = "numpy and scipy"


def processor_seconds(command: list[str]) -> float:
    """Return the processor time of a process, system time included."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        processor_seconds(command)  # so that everything is compiled and in the page cache
    for _ in range(turns):
        for name, command in COMMANDS.items():
            taken[name].append(processor_seconds(command))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    print(
        json.dumps(
            {
                "turns": turns,
                "processor_seconds": {name: round(value, 3) for name, value in medians.items()},
                "ratio_to_numpy_and_scipy": {
                    name: round(value / medians[YARDSTICK], 2) for name, value in medians.items() if name != YARDSTICK
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
