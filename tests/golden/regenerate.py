"""Write the golden files anew, for all schemes or for those named: after a change that was meant.

    python tests/golden/regenerate.py [SCHEME ...]
    python tests/golden/regenerate.py --bytes FOLDER [SCHEME ...]      whole records: diff -r of two checkouts' folders

Records agree byte for byte between two checkouts on one machine; between machines they need not, so that the golden
files hold what was decided exactly, and numbers to be compared with a tolerance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cases import cases, schemes

from fedpace.records.round import Round
from fedpace.records.run import round_line

FOLDER = Path(__file__).parent / "rounds"

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
    "stretch",
    "carried",
)


def golden(scheme: str) -> dict[str, Any]:
    """Return what the golden file of a scheme holds."""
    return {case.name: [_row(current) for current in case.rounds()] for case in cases(scheme)}


def _row(current: Round) -> dict[str, Any]:
    raw = json.loads(round_line(current))
    raw["stretch"] = raw["step_factor"]  # its name when the files were written
    return {key: raw[key] for key in (*DECIDED, *MEASURED)}


def main() -> None:
    """Write files."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--bytes"]:
        folder = Path(arguments[1])
        for scheme in arguments[2:] or schemes():
            (folder / scheme).mkdir(parents=True, exist_ok=True)
            for case in cases(scheme):
                lines = [round_line(current) for current in case.rounds()]
                (folder / scheme / f"{case.name}.jsonl").write_text("\n".join(lines) + "\n")
        return
    FOLDER.mkdir(exist_ok=True)
    for scheme in arguments or schemes():
        text = json.dumps(golden(scheme), indent=None, separators=(",", ":"))
        (FOLDER / f"{scheme}.json").write_text(text.replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
