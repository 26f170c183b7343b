"""The tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fedpace.core.errors import MissingExtraError
from fedpace.report import numbers
from fedpace.report.cells import Cell, Column, Tone, caption, columns, cost_columns, cost_legend, legend
from fedpace.report.tables import Comparison

try:
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text
except ImportError as cause:
    raise MissingExtraError("the table in the terminal", extra="sim", missing="rich") from cause

STYLES: dict[Tone, str] = {"plain": "", "best": "bold green", "partial": "yellow", "failed": "red"}
NAME = 18
"""Letters of a name on one line."""


def build_table(comparison: Comparison) -> Table:
    """Return the table; labels are shown as they are, without rich's markup."""
    return _table(comparison, columns(comparison), caption(comparison), legend(comparison))


def build_costs(comparison: Comparison) -> Table | None:
    """Return the table of what schemes cost beside time; None where no run says."""
    found = cost_columns(comparison)
    return _table(comparison, found, "", cost_legend(comparison)) if found else None


def _table(comparison: Comparison, shown: Sequence[Column], title: str, below: str) -> Table:
    rows: list[list[Text]] = []
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
        caption=Text(below, style="dim"),
        caption_justify="left",
        collapse_padding=True,
    )
    for column in shown:
        heading = f"{column.heading}\n{column.sub}".strip()
        cells = [column.fill(scheme) for scheme in comparison.schemes]
        # When the window is narrow, labels fold: a number that is cut in two cannot be read.
        longest = max(cell_len(line) for cell in cells for line in (cell.text, cell.note))
        table.add_column(
            heading,
            justify="right" if column.number else "left",
            min_width=longest if column.number else None,
            overflow="fold",
        )
        rows.append([text_of(cell, name=not column.number) for cell in cells])
    for row in zip(*rows, strict=True):
        table.add_row(*row)
    return table


def text_of(cell: Cell, *, name: bool = False) -> Text:
    """Return a cell as rich shows it; a long name is broken at its dashes."""
    text = Text(numbers.wrapped(cell.text, NAME) if name else cell.text, style=STYLES[cell.tone])
    if cell.note:
        text.append(f"\n{cell.note}", style="not bold dim default")
    return text
