"""What a comparison gives back: records, table, picture and page; in a terminal, in a notebook and on disk."""

from __future__ import annotations

import base64
import html
import shutil
import weakref
import webbrowser
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rich.console import Console

from fedpace.core.errors import InputError
from fedpace.records.run import RunRecord, find_runs
from fedpace.report.folder import write_reports
from fedpace.report.summary import sentences
from fedpace.report.tables import Comparison, SchemeSummary, render_table, summarise

PAGE, PICTURE = "report.html", "report.png"
WIDTH = 100
"""Characters of the table where nobody says how wide it may be."""


class Page:
    """The report as one HTML file that needs nothing else; a notebook shows it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def html(self) -> str:
        """The page itself."""
        return self.path.read_text(encoding="utf-8")

    def open(self) -> None:
        """Open it in a browser."""
        webbrowser.open(self.path.resolve().as_uri())

    def _repr_html_(self) -> str:
        """Return it in a frame of its own, so that it does not mix with the notebook."""
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:80vh;border:0"></iframe>'


class Results:
    """A comparison that has been run. `print` shows its table, a notebook its table and picture.

    Args:
        folder: where the runs are.
        records: the runs; None = those in the folder.
        temporary: whether the folder goes with this object.
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
        """The outcome in a few sentences."""
        return " ".join(sentences(self.comparison))

    def table(self, width: int = WIDTH) -> str:
        """Return the table as text."""
        console = Console(width=width, color_system=None)
        with console.capture() as captured:
            console.print(render_table(self.comparison))
        return captured.get().rstrip()

    def page(self) -> Page:
        """Return the page."""
        self._written()
        return Page(self.folder / PAGE)

    def save(self, folder: str | Path) -> Path:
        """Copy runs and reports into a folder that is new or empty; the commands of fedpace read it."""
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise InputError(f"{target} holds something already: give another folder")
        self._written()
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        return target

    def __str__(self) -> str:
        """Return the table and what it says."""
        return f"{self.table()}\n{self.summary}"

    def __repr__(self) -> str:
        """Say what it is."""
        return f"<{len(self.records)} runs of {len(self.comparison.schemes)} schemes: {self.summary}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table and the picture; `page()` has the rest."""
        self._written()
        picture = base64.b64encode((self.folder / PICTURE).read_bytes()).decode()
        return (
            f'<pre style="line-height:1.2">{html.escape(self.table())}</pre><p>{html.escape(self.summary)}</p>'
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
