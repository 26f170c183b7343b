"""Tables of results, described once and rendered for the terminal, Markdown and LaTeX; the page renders them as HTML.

`scheme_table` has a row per scheme of a comparison, `cost_table` their costs beside time, and `delay_table` a column
per delay model. `fedpace.reproduce` describes the paper's tables in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedpace._base.errors import MissingExtraError
from fedpace.report import numbers
from fedpace.report.comparison import Comparison, SchemeSummary
from fedpace.report.numbers import LEAST, TIMES, UNKNOWN, Estimate

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Tone = Literal["plain", "best", "partial", "failed"]
STYLES: dict[Tone, str] = {"plain": "", "best": "bold green", "partial": "yellow", "failed": "red"}
NAME_WIDTH = 18
"""Characters of a name on one line of the terminal."""
GAP = 2
"""Blanks between two columns in the terminal."""
WIDE = 8
"""Columns of a LaTeX table above which it is scaled to the width of the text."""
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {sign: "\\" + sign for sign in "&%$#_{}"}
LATEX |= {TIMES: r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", "\N{EN DASH}": "--"}


@dataclass(frozen=True)
class Cell:
    """A value, a note in small print below it, and a published value to compare it with."""

    text: str
    note: str = ""
    tone: Tone = "plain"
    published: str = ""
    published_best: bool = False
    order: float | None = None
    """Value to sort the column by; None = the cell sorts last, or by its text if the column holds no numbers."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the cell that are not empty."""
        return tuple(filter(None, (self.text, self.note, self.published)))


@dataclass(frozen=True)
class Column:
    """A heading of one or two short lines, and how the column is treated."""

    heading: str
    sub: str = ""
    number: bool = True
    spare: int = 0
    """In a narrow window, columns with the largest number are left out first; 0 = never left out."""
    detail: bool = False
    """Whether the page leaves the column out, because a figure shows the same."""

    @property
    def title(self) -> str:
        """Both lines of the heading as one."""
        return f"{self.heading} {self.sub}".strip()


@dataclass(frozen=True)
class ReportTable:
    """The content of a table, independent of the output format."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def keeping(self, wanted: Callable[[Column], bool]) -> ReportTable:
        """Return the table with some of its columns."""
        kept = [place for place, column in enumerate(self.columns) if wanted(column)]
        columns = tuple(self.columns[place] for place in kept)
        return replace(self, columns=columns, rows=tuple(tuple(row[place] for place in kept) for row in self.rows))


# -- tables of a comparison ------------------------------------------------------------------------------------------

Fill = Callable[[SchemeSummary], Cell]


def scheme_table(comparison: Comparison) -> ReportTable:
    """Return the table of times to target (or of final metrics, without a target), a row per scheme."""
    metric = comparison.metric
    found: list[tuple[Column, Fill]] = [(Column("Scheme", number=False), lambda s: _scheme(s, comparison))]
    if len({scheme.runs for scheme in comparison.schemes}) > 1:
        found.append((Column("Seeds"), lambda s: Cell(f"{s.runs:,}", order=s.runs)))
    if comparison.target is not None:
        found.append((Column("Time to", "target"), lambda s: _time(s, comparison)))
        if comparison.hold > 1:
            found.append((Column("First", "crossing", spare=2, detail=True), _first))
        if comparison.baseline is not None and len(comparison.schemes) > 1:
            found.append((Column("Speed-up"), lambda s: _speed_up(s, comparison)))
        rounds = Column("Rounds", "needed", spare=3)
        found.append((rounds, lambda s: _known(s.rounds_to_target, numbers.average)))
    else:
        found.append((Column("Final", metric), lambda s: _final(s, comparison)))
    if comparison.at is not None:
        after = Column(metric.capitalize(), f"at {numbers.seconds(comparison.at)}")
        found.append((after, lambda s: _metric(s.at)))
    if not any(scheme.cost.known for scheme in comparison.schemes):
        found.append(_clients())
    if comparison.target is None or comparison.hold == 1:  # a terminal has room for eight columns
        seconds = Column("Seconds", "per round", spare=4, detail=True)
        found.append((seconds, lambda s: _known(s.round_seconds, numbers.digits)))
    if comparison.target is not None:
        found.append((Column("Final", metric, spare=1), lambda s: _metric(s.final)))
    if any(scheme.diverged for scheme in comparison.schemes):
        found.append((Column("Diverged", "runs"), _diverged))
    return _filled(comparison, caption(comparison), found, legend(comparison))


def cost_table(comparison: Comparison) -> ReportTable | None:
    """Return the table of costs other than time; None if no run records them."""
    if not any(scheme.cost.known for scheme in comparison.schemes):
        return None
    until = "" if comparison.target is None else " until the target is held, or to the end of a run that never does"
    below = (
        f"Cost of a run{until}. Client work: seconds that all clients together spent on tasks. Wasted: tasks that "
        "failed or were given up. Slowest tenth: "
        f"final {comparison.metric} on the data of the tenth of the clients with the longest expected delays."
    )
    found: list[tuple[Column, Fill]] = [
        (Column("Scheme", number=False), lambda s: _scheme(s, comparison)),
        _clients(),
        (Column("Client", "work"), lambda s: _work(s, comparison)),
        (Column("Tasks", "wasted", spare=1), lambda s: _known(s.cost.wasted, numbers.percent)),
        (Column("Sent to", "clients", spare=4), lambda s: _known(s.cost.bytes_down, numbers.size)),
        (Column("Sent by", "clients", spare=3), lambda s: _known(s.cost.bytes_up, numbers.size)),
        (Column("Slowest", "tenth", spare=2), lambda s: _metric(s.cost.slowest)),
    ]
    return _filled(comparison, "", found, below)


def delay_table(comparisons: Mapping[str, Comparison]) -> ReportTable:
    """Return the table of comparisons under several delay models: a row per scheme, a column per delay model."""
    first = next(iter(comparisons.values()))
    below = (
        "Geometric mean of the time to target over seeds."
        if first.target is not None
        else f"Mean final {first.metric} over seeds."
    )
    if first.baseline:
        below += f" Below it: the speed-up over {first.baseline}, seed by seed."
    labels = dict.fromkeys(scheme.label for comparison in comparisons.values() for scheme in comparison.schemes)
    return ReportTable(
        f"{caption(first)} · {numbers.counted(len(comparisons), 'delay model')}",
        (Column("Scheme", number=False), *(Column(name) for name in comparisons)),
        tuple(
            (Cell(label), *(_under_delays(comparison, label) for comparison in comparisons.values()))
            for label in labels
        ),
        (below,),
    )


def caption(comparison: Comparison) -> str:
    """Return the caption above the table."""
    counts = {scheme.runs for scheme in comparison.schemes}
    parts = [numbers.counted(len(comparison.schemes), "scheme")]
    if len(counts) == 1:
        parts.append(numbers.counted(counts.pop(), "seed"))
    if comparison.target is None:
        parts.append("no target")
    else:
        sign = "≥" if comparison.direction == "up" else "≤"
        held = f", held over {comparison.hold} instants" if comparison.hold > 1 else ""
        parts.append(f"target {comparison.metric} {sign} {numbers.given(comparison.target)}{held}")
    return " · ".join([*parts, *comparison.conditions])


def legend(comparison: Comparison) -> str:
    """Return the text below the table that says how to read it."""
    most = max(scheme.runs for scheme in comparison.schemes)
    said = "One seed, so no intervals"
    if most > 1:
        kind = "Means" if comparison.target is None else "Geometric means of times"
        said = f"{kind} over seeds, " + ("95 % intervals below them" if most >= LEAST else "too few for intervals")
    if comparison.baseline is not None and len(comparison.schemes) > 1:
        said += f". Speed-up: over {comparison.baseline}, seed by seed"
    if any(scheme.censored for scheme in comparison.schemes):
        said += ". Stopped before: the run ended with the easier target that it was run for"
    return said + "."


def missed(scheme: SchemeSummary) -> Cell:
    """Return the cell that replaces the time of a scheme that did not reach the target in every run."""
    time, notes = scheme.time_to_target, []
    if scheme.censored == scheme.runs:
        return Cell("stopped before", "", "partial")
    if time is not None:
        notes.append(f"those: {numbers.seconds(time.mean)}")
    if scheme.censored:
        notes.append(f"{scheme.censored} stopped before")
    if time is None:
        return Cell("not reached", ", ".join(notes), "failed")
    return Cell(f"{scheme.reached} of {scheme.runs} reached", ", ".join(notes), "partial")


def _filled(comparison: Comparison, title: str, found: Sequence[tuple[Column, Fill]], below: str) -> ReportTable:
    rows = tuple(tuple(fill(scheme) for _, fill in found) for scheme in comparison.schemes)
    return ReportTable(title, tuple(column for column, _ in found), rows, (below,))


def _clients() -> tuple[Column, Fill]:
    return Column("Clients", "per round", spare=5), lambda s: _known(s.clients_per_round, numbers.average)


def _scheme(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    # In brackets: alone on its line it would read like the name of another scheme.
    # A label such as random(k=5) names its scheme already.
    notes = [] if f"{scheme.label}(".startswith(f"{scheme.selector}(") else [f"({scheme.selector})"]
    if scheme.unfinished:
        notes.append(f"{scheme.unfinished} unfinished")
    return Cell(scheme.label, ", ".join(notes), _tone(scheme, comparison))


def _tone(scheme: SchemeSummary, comparison: Comparison) -> Tone:
    return "best" if scheme.label == comparison.best else "plain"


def _time(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    time = scheme.time_to_target
    if time is None or not scheme.always_reached:
        return missed(scheme)
    return Cell(numbers.seconds(time.mean), numbers.between(time) or "", _tone(scheme, comparison), order=time.mean)


def _first(scheme: SchemeSummary) -> Cell:
    if scheme.first_crossing is None:
        return Cell("never", "", "failed")
    note = "" if scheme.crossed == scheme.runs else f"{scheme.crossed} of {scheme.runs} runs"
    return Cell(numbers.seconds(scheme.first_crossing.mean), note, order=scheme.first_crossing.mean)


def _speed_up(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    if scheme.label == comparison.baseline:
        return Cell(f"1{TIMES}", order=1.0) if scheme.reached else Cell(UNKNOWN)
    ratio = scheme.speed_up
    if ratio is None:
        return Cell(UNKNOWN)
    notes = [numbers.between(ratio) or ""]
    if ratio.count < scheme.runs:
        # Said in the cell, since seeds in which one of the two failed are those where the ratio would be extreme.
        notes.append(f"{ratio.count} of {scheme.runs} seeds")
    return Cell(f"{numbers.digits(ratio.mean)}{TIMES}", ", ".join(filter(None, notes)), order=ratio.mean)


def _final(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    final = scheme.final
    if final is None:
        return Cell(UNKNOWN)
    ends = ""
    if final.low is not None and final.high is not None:
        ends = numbers.span(numbers.metric(final.low), numbers.metric(final.high))
    return Cell(numbers.metric(final.mean), ends, _tone(scheme, comparison), order=final.mean)


def _work(scheme: SchemeSummary, comparison: Comparison) -> Cell:
    work = scheme.cost.work
    if work is None:
        return Cell(UNKNOWN)
    ranked = [s.cost.work for s in comparison.schemes if s.always_reached or comparison.target is None]
    known = [each.mean for each in ranked if each is not None]
    tone: Tone = "best" if len(known) > 1 and work.mean == min(known) else "plain"
    return Cell(numbers.seconds(work.mean), numbers.between(work) or "", tone, order=work.mean)


def _diverged(scheme: SchemeSummary) -> Cell:
    if not scheme.diverged:
        return Cell("0", order=0)
    return Cell(f"{scheme.diverged} of {scheme.runs}", "", "failed", order=scheme.diverged)


def _metric(value: Estimate | None) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(numbers.metric(value.mean), order=value.mean)


def _known(value: float | None, show: Callable[[float], str]) -> Cell:
    return Cell(UNKNOWN) if value is None else Cell(show(value), order=value)


def _under_delays(comparison: Comparison, label: str) -> Cell:
    """Return the cell of one scheme under one delay model."""
    scheme = next((scheme for scheme in comparison.schemes if scheme.label == label), None)
    if scheme is None:
        return Cell(UNKNOWN)
    if comparison.target is None:
        return replace(_metric(scheme.final), tone=_tone(scheme, comparison))
    time = scheme.time_to_target
    if time is None or not scheme.always_reached:
        return missed(scheme)
    faster = None if comparison.baseline in (None, label) else scheme.speed_up
    note = f"{numbers.digits(faster.mean)}{TIMES}" if faster else ""
    return Cell(numbers.seconds(time.mean), note, _tone(scheme, comparison), order=time.mean)


# -- the terminal ----------------------------------------------------------------------------------------------------


def terminal(table: ReportTable, width: int | None = None) -> Table:
    """Return the table for the terminal. If it is wider than `width`, spare columns are left out and named below."""
    table, dropped = _fitting(table, width)
    notes = list(table.notes)
    if dropped:
        notes.append(f"Left out in this narrow window: {', '.join(column.title for column in dropped)}.")
    return _rich_table(table, " ".join(notes))


def terminal_pieces(table: ReportTable, width: int) -> list[Table]:
    """Return the table for the terminal, split into several if it is wider than `width`; notes are left out."""
    names = _width(table, 0) + GAP
    pieces, taken = [[0]], names
    for place in range(1, len(table.columns)):
        needed = _width(table, place) + GAP
        if taken + needed > width and len(pieces[-1]) > 1:
            pieces.append([0])
            taken = names
        pieces[-1].append(place)
        taken += needed
    found = []
    for number, places in enumerate(pieces):
        wanted = [table.columns[place] for place in places]
        title = table.title if number == 0 else f"{table.title}, continued"
        found.append(_rich_table(replace(table.keeping(wanted.__contains__), title=title), ""))
    return found


def _rich_table(table: ReportTable, below: str) -> Table:
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as cause:
        raise MissingExtraError("the table in the terminal", extra="light", missing="rich") from cause
    found = Table(
        title=Text(table.title) if table.title else None, title_justify="left", title_style="",
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1), pad_edge=False, show_edge=False,
        caption=Text(below, style="dim") if below else None, caption_justify="left", collapse_padding=True,
    )  # fmt: skip
    for place, column in enumerate(table.columns):
        found.add_column(
            Text("\n".join(filter(None, (column.heading, column.sub)))),
            justify="right" if column.number else "left",
            # When the window is narrow, names fold: a number that is cut in two cannot be read.
            min_width=_width(table, place) if column.number else None,
            overflow="fold",
        )
    for row in table.rows:
        found.add_row(*(_text(cell, column) for cell, column in zip(row, table.columns, strict=True)))
    return found


def _text(cell: Cell, column: Column) -> Text:
    """Return a cell as rich text, without markup; a long name is broken at its dashes."""
    from rich.text import Text

    text = Text(cell.text if column.number else numbers.wrapped(cell.text, NAME_WIDTH), style=STYLES[cell.tone])
    if cell.note:
        text.append(f"\n{cell.note}", style="not bold dim default")
    if cell.published:
        style = "italic bold default" if cell.published_best else "italic not bold default"
        text.append(f"\n{cell.published}", style=style)
    return text


def _width(table: ReportTable, place: int) -> int:
    from rich.cells import cell_len

    column, cells = table.columns[place], [row[place] for row in table.rows]
    texts = [cell.text if column.number else numbers.wrapped(cell.text, NAME_WIDTH) for cell in cells]
    texts += [line for cell in cells for line in (cell.note, cell.published)]
    lines = [line for text in [*texts, column.heading, column.sub] for line in text.split("\n")]
    return max(cell_len(line) for line in lines)


def _fitting(table: ReportTable, width: int | None) -> tuple[ReportTable, list[Column]]:
    """Return the table with the columns that fit into a window, and the columns that are left out."""
    widths = {column: _width(table, place) for place, column in enumerate(table.columns)} if width is not None else {}
    left = list(table.columns)
    while width is not None and sum(widths[column] + GAP for column in left) - GAP > width:
        spare = max(left, key=lambda column: column.spare)
        if not spare.spare:
            break
        left.remove(spare)
    return table.keeping(left.__contains__), [column for column in table.columns if column not in left]


# -- Markdown and LaTeX ----------------------------------------------------------------------------------------------


def markdown(table: ReportTable) -> str:
    """Return the table in Markdown, with its title and notes."""
    lines = [f"**{table.title}**", "", _line(column.title for column in table.columns)]
    lines.append(_line(["---"] * len(table.columns)))
    lines += [_line(_marked(cell) for cell in row) for row in table.rows]
    return "\n".join([*lines, "", *table.notes]) + "\n"


def _marked(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.tone == "best" else cell.text
    published = f"*{cell.published}*" if cell.published_best else cell.published
    return "<br>".join(filter(None, (text, cell.note, published)))


def _line(parts: Iterable[str]) -> str:
    return f"| {' | '.join(parts)} |"


def latex(table: ReportTable) -> str:
    """Return the table in LaTeX; it needs the packages booktabs and makecell, and graphicx if the table is wide."""
    wide = len(table.columns) > WIDE
    kind = "table*" if wide else "table"
    lines = [rf"\begin{{{kind}}}[t]", r"\small\centering", *([r"\resizebox{\textwidth}{!}{%"] if wide else [])]
    lines += [
        rf"\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in table.columns)}}}",
        r"\toprule",
    ]
    lines += [" & ".join(latex_text(column.title) for column in table.columns) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    said = latex_text(" ".join([f"{table.title}.", *table.notes]))
    lines += [r"\bottomrule", r"\end{tabular}" + "}" * wide, rf"\caption{{{said}}}", rf"\end{{{kind}}}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex_text(cell.text)}}}" if cell.tone == "best" else latex_text(cell.text)
    published = rf"\textbf{{{latex_text(cell.published)}}}" if cell.published_best else latex_text(cell.published)
    parts = [part for part in (text, latex_text(cell.note), published) if part]
    stacked = r" \\ ".join(parts)
    return rf"\makecell{{{stacked}}}" if len(parts) > 1 else stacked


def latex_text(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(LATEX.get(sign, sign) for sign in text.replace("\n", " "))
