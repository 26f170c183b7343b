"""The table of a comparison under several delay models: one row per scheme, one column per delay model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpace.report import numbers
from fedpace.report.cells import Cell, Tone, caption, missed
from fedpace.report.numbers import TIMES, UNKNOWN
from fedpace.report.tables import Comparison, SchemeSummary

if TYPE_CHECKING:
    from rich.table import Table


def build_grid(comparisons: Mapping[str, Comparison]) -> Table:
    """Return the table: a row per scheme, a column per delay model; cells hold time to target and speed-up."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fedpace.report.terminal import text_of

    first = next(iter(comparisons.values()))
    baseline = f" Below it: the speed-up over {first.baseline}, seed by seed." if first.baseline else ""
    content = f"Mean {'time to target' if first.target is not None else f'final {first.metric}'} over seeds."
    table = Table(
        title=Text(f"{caption(first)} · {numbers.counted(len(comparisons), 'delay model')}"),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
        caption=Text(content + baseline, style="dim"),
        caption_justify="left",
    )
    table.add_column("Scheme", overflow="fold")
    for name in comparisons:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for label in dict.fromkeys(scheme.label for comparison in comparisons.values() for scheme in comparison.schemes):
        table.add_row(Text(label), *(text_of(grid_cell(comparison, label)) for comparison in comparisons.values()))
    return table


def grid_cell(comparison: Comparison, label: str) -> Cell:
    """Return how one scheme does under one delay model."""
    scheme = next((scheme for scheme in comparison.schemes if scheme.label == label), None)
    if scheme is None:
        return Cell(UNKNOWN)
    tone: Tone = "best" if label == comparison.best else "plain"
    if comparison.target is None:
        return Cell(numbers.metric(scheme.final.mean) if scheme.final else UNKNOWN, "", tone)
    time = scheme.time_to_target
    if time is None or not scheme.always_reached:
        return missed(scheme)
    return Cell(numbers.seconds(time.mean), _speed_up(scheme, comparison), tone)


def _speed_up(scheme: SchemeSummary, comparison: Comparison) -> str:
    if comparison.baseline is None or scheme.speed_up is None or scheme.label == comparison.baseline:
        return ""
    return f"{numbers.digits(scheme.speed_up.mean)}{TIMES}"
