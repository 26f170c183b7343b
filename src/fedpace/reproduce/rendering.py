"""Renders tables for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedpace.reproduce import plans
from fedpace.reproduce.outcomes import Results
from fedpace.reproduce.paper import COLUMNS, PAPER
from fedpace.reproduce.plans import Request
from fedpace.reproduce.tables import Cell, Table

GAP = 3
"""Columns of a terminal between two of a table."""
WIDE = 8
"""Columns that a page of two columns has room for."""
LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "\N{EN DASH}": "--"}


def terminal(table: Table, width: int) -> list[RichTable]:
    """Return the table as a terminal of that width shows it: in several pieces where it is too wide for one."""
    names = _widest(table, 0) + GAP
    pieces, taken = [[0]], names
    for position in range(1, len(table.headings)):
        needed = _widest(table, position) + GAP
        if taken + needed > width and len(pieces[-1]) > 1:
            pieces.append([0])
            taken = names
        pieces[-1].append(position)
        taken += needed
    return [_piece(table, shown, first=number == 0) for number, shown in enumerate(pieces)]


def _piece(table: Table, shown: list[int], *, first: bool) -> RichTable:
    title = table.title if first else f"{table.title}, continued"
    found = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position in shown:
        found.add_column(table.headings[position], justify="right" if position else "left", vertical="top")
    for row in table.rows:
        found.add_row(*(_text(row[position]) for position in shown))
    return found


def _widest(table: Table, position: int) -> int:
    lines = [line for row in table.rows for line in row[position].lines]
    return max(len(line) for line in [*lines, *table.headings[position].split()])


def _text(cell: Cell) -> Text:
    text = Text(cell.ours, style="bold" if cell.best else "")
    if cell.sure:
        text.append(f"\n{cell.sure}", style="dim not bold")
    if cell.paper:
        text.append(f"\n{cell.paper}", style="italic bold" if cell.paper_best else "italic not bold")
    return text


def markdown(table: Table) -> str:
    """Return the table in Markdown, its title and notes included."""
    lines = [f"**{table.title}**", "", _line(table.headings), _line(["---"] * len(table.headings))]
    lines += [_line(_marked(cell) for cell in row) for row in table.rows]
    return "\n".join([*lines, "", *table.notes]) + "\n"


def _marked(cell: Cell) -> str:
    ours = f"**{cell.ours}**" if cell.best else cell.ours
    paper = f"*{cell.paper}*" if cell.paper_best else cell.paper
    return "<br>".join(filter(None, (ours, cell.sure, paper)))


def _line(parts: Iterable[str]) -> str:
    return f"| {' | '.join(parts)} |"


def latex(table: Table) -> str:
    """Return the table in LaTeX; it needs the packages booktabs, makecell and graphicx.

    Tables 1 and 2 have more columns than a page is wide: they are made as small as it takes.
    """
    columns = "l" + "r" * (len(table.headings) - 1)
    wide = len(table.headings) > WIDE
    lines = [r"\begin{table*}[t!]", r"\small\centering", *([r"\resizebox{\textwidth}{!}{%"] if wide else [])]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(escaped(heading) for heading in table.headings) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows]
    caption = " ".join([f"{table.title}.", *table.notes])
    lines += [r"\bottomrule", r"\end{tabular}" + "}" * wide, rf"\caption{{{escaped(caption)}}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def _latex(cell: Cell) -> str:
    ours = rf"\textbf{{{escaped(cell.ours)}}}" if cell.best else escaped(cell.ours)
    paper = rf"\textbf{{{escaped(cell.paper)}}}" if cell.paper_best else escaped(cell.paper)
    parts = [part for part in (ours, escaped(cell.sure), paper) if part]
    stacked = r" \\ ".join(parts)
    return rf"\makecell{{{stacked}}}" if len(parts) > 1 else stacked


def escaped(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def comma_separated(request: Request, results: Results) -> str:
    """Return every run in one line each, with the paper's figure beside it."""
    targets = {task.name: task for task in request.tasks}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    headings = ("what", "part", "scheme", "seed", "seconds", "rounds", "clients_per_round", "ended", "status")
    writer.writerow((*headings, "target", "paper_seconds", "paper_target", "profile"))
    for place, entry in results.entries.items():
        what, _, rest = place.partition("/")
        part, _, scheme = rest.rpartition("/")
        task = targets.get(part)
        known = what in plans.DELAYS and task is not None and scheme in COLUMNS
        paper = PAPER.seconds(part, plans.DELAYS[what], scheme) if known else None
        for seed, outcome in entry.outcomes.items():
            writer.writerow(
                (
                    *(what, part, scheme, seed, outcome.seconds, outcome.rounds, outcome.clients, outcome.ended),
                    *(outcome.status, task and task.target, paper, task and task.paper_target, results.profile),
                )
            )
    return file.getvalue()
