"""Builds the tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpace._base.errors import MissingExtraError
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
BETWEEN = 2
"""Blanks between two columns."""


def build_table(comparison: Comparison, width: int | None = None) -> Table:
    """Return the table; labels are shown as they are, without rich's markup.

    `width` is the window's: where not all columns fit, the least important are left out, and named below.
    """
    return _table(comparison, columns(comparison), caption(comparison), legend(comparison), width)


def build_costs(comparison: Comparison, width: int | None = None) -> Table | None:
    """Return the table of what schemes cost beside time; None where no run says."""
    found = cost_columns(comparison)
    return _table(comparison, found, "", cost_legend(comparison), width) if found else None


def _table(comparison: Comparison, shown: Sequence[Column], title: str, below: str, width: int | None) -> Table:
    filled = {column.title: [column.fill(scheme) for scheme in comparison.schemes] for column in shown}
    widths = {column.title: _width(column, filled[column.title]) for column in shown}
    shown, dropped = _fitting(shown, widths, width)
    if dropped:
        below += f" Left out in this narrow window: {', '.join(column.title for column in dropped)}."
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
        table.add_column(
            f"{column.heading}\n{column.sub}".strip(),
            justify="right" if column.number else "left",
            # When the window is narrow, labels fold: a number that is cut in two cannot be read.
            min_width=widths[column.title] if column.number else None,
            overflow="fold",
        )
    rows = [[text_of(cell, name=not column.number) for cell in filled[column.title]] for column in shown]
    for row in zip(*rows, strict=True):
        table.add_row(*row)
    return table


def _width(column: Column, cells: Sequence[Cell]) -> int:
    texts = [line for cell in cells for line in (cell.text if column.number else wrapped(cell), cell.note)]
    lines = [line for text in [*texts, column.heading, column.sub] for line in text.split("\n")]
    return max(cell_len(line) for line in lines)


def _fitting(
    shown: Sequence[Column], widths: Mapping[str, int], width: int | None
) -> tuple[list[Column], list[Column]]:
    """Return the columns that fit into a window, and those that are left out for them."""
    left = list(shown)
    while width is not None and sum(widths[column.title] + BETWEEN for column in left) - BETWEEN > width:
        spare = max(left, key=lambda column: column.spare)
        if not spare.spare:
            break
        left.remove(spare)
    return left, [column for column in shown if column not in left]


def wrapped(cell: Cell) -> str:
    """Return a scheme's name, broken at its dashes where it is long."""
    return numbers.wrapped(cell.text, NAME)


def text_of(cell: Cell, *, name: bool = False) -> Text:
    """Return a cell as rich shows it; a long name is broken at its dashes."""
    text = Text(wrapped(cell) if name else cell.text, style=STYLES[cell.tone])
    if cell.note:
        text.append(f"\n{cell.note}", style="not bold dim default")
    return text
