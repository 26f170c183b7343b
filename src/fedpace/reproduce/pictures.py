"""The paper's figures: the metric over virtual time in the four cells that it shows, and in figure 2's three cases.

Each is a picture and a page, as `fedpace compare` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpace._base.errors import FedpaceError
from fedpace.records.run import RunRecord
from fedpace.report.folder import write_reports
from fedpace.reproduce.outcomes import Wanted
from fedpace.reproduce.playing import Note

FIGURES = "figures"
SHOWN = (
    "table1/femnist",
    "table1/shakespeare",
    "table2/dirichlet-fashion-mnist",
    "table2/rotated-cifar10",
    "motivation/data",
    "motivation/latency",
    "motivation/both",
)
"""Those of the paper."""


def write_pictures(wanted: Sequence[Wanted], store: Path, note: Note) -> list[Path]:
    """Draw what has been run; return the folders, one per figure."""
    cells: dict[str, list[Wanted]] = {}
    for each in wanted:
        cells.setdefault(each.place.rpartition("/")[0], []).append(each)
    written = []
    for cell in SHOWN:
        records = [record for each in cells.get(cell, ()) if (record := _ended(each, store)) is not None]
        if not records:
            continue
        folder = store / FIGURES / cell.replace("/", "-")
        try:
            write_reports(records, folder)
        except FedpaceError as error:  # pictures need packages that tables do not
            note(f"{cell} was not drawn: {error}")
            continue
        written.append(folder)
    return written


def _ended(each: Wanted, store: Path) -> RunRecord | None:
    record = each.run.record(store)
    return record if record is not None and record.info.ended else None
