"""`Results`, what `compare` returns: records, tables, picture and HTML page, for terminals, notebooks and files."""

from __future__ import annotations

import base64
import html
import shutil
import textwrap
import weakref
import webbrowser
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console, RenderableType

from fedpace._base.checks import one_of
from fedpace._base.errors import InputError, MissingExtraError
from fedpace.records.run import RunRecord, find_runs
from fedpace.report.comparison import Comparison, SchemeSummary, summarise
from fedpace.report.export import member_rows, report_files, round_rows, seed_rows, write_reports
from fedpace.report.figures import looks
from fedpace.report.page import html_table
from fedpace.report.privacy_panel import privacy_sentence
from fedpace.report.summary import influence_sentence, sentences
from fedpace.report.tables import caption, cost_table, scheme_table, terminal

Rows = Literal["rounds", "clients", "seeds"]
WIDTH = 100
"""Default width of a table in characters."""
STYLE = """
.fedpace table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.3em 0 }
.fedpace th, .fedpace td { padding: 0.2em 0.7em; text-align: right; vertical-align: top }
.fedpace thead th { border-bottom: 1px solid }
.fedpace caption, .fedpace .text { text-align: left }
.fedpace tbody th { font-weight: normal }
.fedpace tbody .best { font-weight: bold }
.fedpace small { display: block; font-weight: normal }
.fedpace .name { display: flex; gap: 0.5em }
.fedpace .swatch { border-top: 3px solid; margin-top: 0.6em; width: 1.6em }
.fedpace .dash { border-top-style: dashed }
.fedpace .dot, .fedpace .dashdot { border-top-style: dotted }
"""
"""CSS of tables in a notebook; they use the notebook's colours, light or dark."""


class Page:
    """The report as one self-contained HTML file; a notebook displays it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def html(self) -> str:
        """The page's HTML."""
        return self.path.read_text(encoding="utf-8")

    def open(self) -> None:
        """Open the page in a browser."""
        webbrowser.open(self.path.resolve().as_uri())

    def __repr__(self) -> str:
        """Return the path and how to open the page."""
        return f"<Page {self.path}; .open() shows it in a browser, .html is its text>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, apart from the notebook's styles."""
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:80vh;border:0"></iframe>'


class Results:
    """The results of a comparison. `print` shows the tables, a notebook shows the tables and the picture.

    Args:
        folder: folder of the runs.
        records: the runs; None = those in the folder.
        temporary: whether the folder is removed with this object.
    """

    def __init__(self, folder: Path, records: Sequence[RunRecord] | None = None, *, temporary: bool = False) -> None:
        self.folder = folder
        self.records = tuple(find_runs(folder) if records is None else records)
        self.comparison: Comparison = summarise(self.records)
        if temporary:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def __getitem__(self, label: str) -> SchemeSummary:
        """Return the numbers of one scheme."""
        labels = [scheme.label for scheme in self.comparison.schemes]
        if label not in labels:
            raise InputError(f"there is no scheme {label!r} in these results; they have {', '.join(labels)}")
        return self.comparison[label]

    @property
    def summary(self) -> str:
        """The results in a few sentences."""
        return " ".join(sentences(self.comparison))

    def table(self, width: int = WIDTH) -> str:
        """Return the table of times to target as text."""
        return _text(terminal(scheme_table(self.comparison)), width)

    def costs(self, width: int = WIDTH) -> str:
        """Return the table of other costs (work, bytes) as text; empty if the runs do not record them."""
        found = cost_table(self.comparison)
        return "" if found is None else _text(terminal(found), width)

    def to_frame(self, rows: Rows = "rounds") -> Any:
        """Return the results as a pandas data frame.

        Args:
            rows: `rounds` = one row per round of every run; `clients` = one row per client of every cohort; `seeds` =
                one row per run, with its time to target, final metric and costs.
        """
        one_of(rows, get_args(Rows), "rows")
        try:
            pandas = import_module("pandas")
        except ImportError as cause:
            raise MissingExtraError("Results.to_frame", "frames", "pandas") from cause
        makers = {"rounds": round_rows, "clients": member_rows}
        found = makers[rows](self.records) if rows in makers else seed_rows(self.comparison)
        return pandas.DataFrame.from_records(found)

    def page(self) -> Page:
        """Write the reports if needed, and return the page."""
        self._written()
        return Page(report_files(self.folder)[0])

    def save(self, folder: str | Path) -> Path:
        """Copy runs and reports into a new or empty folder, which fedpace's commands can read."""
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise InputError(f"{target} holds something already: give another folder")
        self._written()
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        return target

    def __str__(self) -> str:
        """Return both tables, the summary, and sentences on bounded influence and on privacy where they apply."""
        said = (
            textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
            for text in (self.summary, influence_sentence(self.records), privacy_sentence(self.records))
        )
        return "\n".join(filter(None, [self.table(), self.costs(), *said]))

    def __repr__(self) -> str:
        """Return the schemes, the number of runs, the best scheme, and how to see more."""
        labels = ", ".join(scheme.label for scheme in self.comparison.schemes)
        best = f"; best: {self.comparison.best}" if self.comparison.best else ""
        return f"<Results of {labels}: {len(self.records)} runs{best}; print() shows the tables, .page() the page>"

    def _repr_html_(self) -> str:
        """Return the tables and the picture for a notebook; `page()` has the full report."""
        self._written()
        picture = base64.b64encode(report_files(self.folder)[1].read_bytes()).decode()
        found, styles = self.comparison, looks(self.comparison)
        times = html_table(scheme_table(found), styles, caption(found), sortable=False)
        costs = cost_table(found)
        beside = "" if costs is None else html_table(costs, styles, "Cost beside time", sortable=False)
        return (
            f"<div class='fedpace'><style>{STYLE}</style>{times}{beside}</div><p>{html.escape(self.summary)}</p>"
            f'<img alt="{html.escape(self.comparison.metric)} over virtual time" style="max-width:100%" '
            f'src="data:image/png;base64,{picture}">'
        )

    def _written(self) -> None:
        """Write the reports, once."""
        if not self._reports:
            raise InputError(f"no report was written into {self.folder}")

    @cached_property
    def _reports(self) -> bool:
        write_reports(self.records, self.folder, self.comparison)
        return True


def _text(shown: RenderableType, width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())
