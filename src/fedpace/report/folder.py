"""The reports of a folder of runs: numbers, page and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpace.core.files import json_bytes, keeping, write_atomically
from fedpace.records.run import RunRecord
from fedpace.report.page import write_page
from fedpace.report.plots import write_png
from fedpace.report.tables import Comparison, summarise

REPORTS = ("report.html", "report.png", "comparison.json")


def write_reports(runs: Sequence[RunRecord], folder: Path, comparison: Comparison | None = None) -> Comparison:
    """Write what `REPORTS` names into `folder`, and return the comparison."""
    comparison = comparison or summarise(runs)
    title = str(runs[0].info.experiment.get("name", folder.name))
    with keeping(folder / "comparison.json"):
        write_atomically(folder / "comparison.json", json_bytes(comparison.as_json()))
        write_page(runs, comparison, folder / "report.html", title=title)
        write_png(runs, comparison, folder / "report.png")
    return comparison
