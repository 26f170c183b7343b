"""Write the golden files anew, for all schemes and runs on hosts or for those named: after a change that was meant.

    python tests/golden/regenerate.py [NAME ...]
    python tests/golden/regenerate.py --bytes FOLDER [NAME ...]        whole records: diff -r of two checkouts' folders

Records agree byte for byte between two checkouts on one machine; between machines they need not, so that the golden
files hold what was decided exactly, and numbers to be compared with a tolerance.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cases import cases, schemes
from hosts import RUNS

from fedpace.records.run import Round, round_line

FOLDER = Path(__file__).parent / "rounds"
HOSTS = Path(__file__).parent / "hosts"

DECIDED = ("number", "clients", "mode", "failed", "warmed", "heard", "probed", "status")
MEASURED = (
    "clock",
    "seconds",
    "overhead",
    "metric",
    "loss",
    "weights",
    "train_loss",
    "objective",
    "predicted_seconds",
    "step_factor",
    "carried",
)


def golden(scheme: str) -> dict[str, Any]:
    """Return what the golden file of a scheme holds."""
    return {case.name: [_row(current) for current in case.rounds()] for case in cases(scheme)}


def _row(current: Round) -> dict[str, Any]:
    raw = json.loads(round_line(current))
    return {key: raw[key] for key in (*DECIDED, *MEASURED)}


def main() -> None:
    """Write files."""
    logging.disable(logging.WARNING)  # Flower's
    arguments = sys.argv[1:]
    whole = arguments[:1] == ["--bytes"]
    named = arguments[2:] if whole else arguments
    hosts = Path(arguments[1]) / "hosts" if whole else HOSTS
    hosts.mkdir(parents=True, exist_ok=True)
    for scheme in schemes():
        if named and scheme not in named:
            continue
        if whole:
            folder = Path(arguments[1]) / scheme
            folder.mkdir(parents=True, exist_ok=True)
            for case in cases(scheme):
                lines = [round_line(current) for current in case.rounds()]
                (folder / f"{case.name}.jsonl").write_text("\n".join(lines) + "\n")
            continue
        text = json.dumps(golden(scheme), indent=None, separators=(",", ":"))
        (FOLDER / f"{scheme}.json").write_text(text.replace("],", "],\n") + "\n")
    for name, play in RUNS.items():
        if not named or name in named:
            (hosts / f"{name}.jsonl").write_text("\n".join(play()) + "\n")


if __name__ == "__main__":
    main()
