"""Rows of earlier sittings, from the result files that are kept in the repository.

The rows themselves (`results.jsonl`) are large and stay where they were made; a result file has the seconds of every
scheme under every seed, with the options, the step size and the targets it had. That is enough to judge them beside new
runs, so that a scheme whose code has not changed (the golden runs of the tests say so) need not be run again. What a
result file does not have is first crossings and warm-ups that were free: judgements by those need all rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from grid import schemes
from grid.runs import Row
from grid.store import Rows

DIGITS = 1e-5
"""Result files round targets to five digits."""


def add(results: Rows, files: Iterable[str], *, afresh: Collection[str] = ()) -> None:
    """Let the rows of result files count where a folder has none of its own; the first file that has one decides.

    Those of the schemes `afresh` do not: their code has changed.
    """
    for file in files:
        for row in read(Path(file)):
            if row["scheme"] not in afresh:
                results.lend(row)


def read(path: Path) -> list[Row]:
    """Return the rows that a result file was made of, as far as it tells."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    found: dict[tuple[str, str, str], Row] = {}
    for cell in facts["cells"]:
        name, _, level = cell["cell"].rpartition("/")
        for label, entry in cell["schemes"].items():
            for seed, seconds in entry["seconds"].items():
                row = found.setdefault((name, label, seed), _row(facts, name, label, int(seed), entry))
                beyond = entry.get("beyond", {}).get(seed)
                row[level] = {"target": cell["targets"].get(seed, math.nan), "seconds": seconds}
                if beyond is not None:
                    row["status"] = "cut"
                    row[level]["beyond"] = beyond
                elif seconds is None:
                    row["status"] = "limit"
                # The run went on at least this long; how much longer the file does not say.
                tried = entry.get("tried", {}).get(seed)
                if seconds is None and beyond is None and (tried is None or tried <= (row["easy"]["seconds"] or 0.0)):
                    row["end_unknown"] = True  # older files gave the time of the easy target for the end of the run
                row["clock"] = max(row["clock"], seconds or beyond or tried or 0.0)
    return list(found.values())


def written(facts: Mapping[str, Any]) -> str:
    """Return the text of a result file: a line per fact and a line per cell, since indented ones are twice as large."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items() if name != "cells"]
    cells = ",\n".join(json.dumps(cell) for cell in facts["cells"])
    return "{" + ",\n".join([*lines, f'"cells": [\n{cells}\n]']) + "}"


def same_target(row: Row, target: float) -> bool:
    """Whether a run had a target, as exactly as its row tells."""
    if "recorded" not in row:
        return math.isclose(row["hard"]["target"], target)
    return math.isnan(row["hard"]["target"]) or math.isclose(row["hard"]["target"], target, rel_tol=0, abs_tol=DIGITS)


def _row(facts: Mapping[str, Any], cell: str, label: str, seed: int, entry: dict[str, Any]) -> Row:
    return {
        "cell": cell,
        "scheme": label,
        "selector": entry.get("selector") or schemes.chosen(label, [])[0].name,
        "options": entry["options"],
        "factor": entry["factor"],
        "seed": seed,
        "lr": facts["step_sizes"][cell] * entry["factor"],
        "mode": "charged",
        "status": "reached",
        "clock": 0.0,
        "clients": entry.get("clients", math.nan),
        "highest_loss": entry.get("highest_loss"),
        "cpu_seconds": 0.0,
        "recorded": True,
    }
