"""Writes the reports of a folder of runs: numbers, page and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpace._base.files import json_bytes, keeping, write_atomically
from fedpace.records.run import RunRecord
from fedpace.report.page import write_page
from fedpace.report.plots import write_png
from fedpace.report.tables import Comparison, summarise


def report_files(folder: Path, suffix: str = "") -> tuple[Path, Path, Path]:
    """Return where page, picture and numbers are written; `suffix` keeps those of another question beside them."""
    names = (f"report{suffix}.html", f"report{suffix}.png", f"comparison{suffix}.json")
    page, picture, figures = (folder / name for name in names)
    return page, picture, figures


def write_reports(
    runs: Sequence[RunRecord], folder: Path, comparison: Comparison | None = None, suffix: str = ""
) -> Comparison:
    """Write what `report_files` names into `folder`, and return the comparison."""
    comparison = comparison or summarise(runs)
    title = str(runs[0].info.experiment.get("name", folder.name))
    page, picture, figures = report_files(folder, suffix)
    with keeping(figures):
        write_atomically(figures, json_bytes(comparison.as_json()))
        write_page(runs, comparison, page, title=title)
        write_png(runs, comparison, picture)
    return comparison
