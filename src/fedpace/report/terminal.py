"""The table in the terminal."""

from __future__ import annotations

from fedpace.core.errors import MissingExtraError
from fedpace.report.cells import Cell, Tone, caption, columns, legend
from fedpace.report.tables import Comparison

try:
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text
except ImportError as cause:
    raise MissingExtraError("the table in the terminal", extra="sim", missing="rich") from cause

STYLES: dict[Tone, str] = {"plain": "", "best": "bold green", "partial": "yellow", "failed": "red"}


def build_table(comparison: Comparison) -> Table:
    """Return the table; labels are shown as they are, without rich's markup."""
    rows: list[list[Text]] = []
    table = Table(
        title=Text(caption(comparison)),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
        caption=Text(legend(comparison), style="dim"),
        caption_justify="left",
        collapse_padding=True,
    )
    for column in columns(comparison):
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
        rows.append([text_of(cell) for cell in cells])
    for row in zip(*rows, strict=True):
        table.add_row(*row)
    return table


def text_of(cell: Cell) -> Text:
    """Return a cell as rich shows it."""
    text = Text(cell.text, style=STYLES[cell.tone])
    if cell.note:
        text.append(f"\n{cell.note}", style="not bold dim default")
    return text
