"""The implementation of `fedpace reproduce`: it runs missing runs, then writes and prints the tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.files import keeping, write_atomically
from fedpace.progress import RunProgress
from fedpace.records.run import RunRecord
from fedpace.report.files import write_reports
from fedpace.report.tables import ReportTable, latex, markdown, terminal_pieces
from fedpace.reproduce import overhead, tables
from fedpace.reproduce.outcomes import ReproducedResults, collect
from fedpace.reproduce.paper import TUNED_FILE, Profile, Tuned
from fedpace.reproduce.runs import PLANS, RUNS, Note, Request, Wanted, jobs_of, planned, play
from fedpace.reproduce.tuning import tune
from fedpace.sim.engines.threads import limit_to_one_thread

RESULTS = "results.json"
"""In a folder of runs: what is there."""
PACKAGED = {"quick": RESULTS, "paper": "results-paper.json"}
"""In the package: what was run when this version was made."""
NEEDS = {"headline": ("table1", "table2"), "figures": ("table1", "table2", "motivation"), "overhead": ()}
"""What is shown rather than run, and the runs that it is made of."""
ALL = (*PLANS, "headline", "overhead", "figures")


@dataclass(frozen=True)
class Command:
    """One call of `fedpace reproduce`; fields as its options."""

    what: tuple[str, ...]
    profile: Profile
    only: tuple[str, ...]
    selectors: tuple[str, ...] | None
    seeds: tuple[int, ...]
    out: Path
    show: bool = False
    missing: bool = False
    tune: bool = False
    as_json: bool = False

    def run(self) -> None:
        """Run what is missing, then write and print the tables."""
        limit_to_one_thread()  # small models: more threads cost more than they give
        if self.tune:
            self._tune()
        if self.show and not (self.out / RUNS).is_dir():
            results = self._packaged()
            self._say(f"What came with fedpace: profile {results.profile}; nothing was run.")
        else:
            results = self._fresh()
        if "overhead" in self._asked and (not self.show or "overhead" not in results.facts):
            results.facts["overhead"] = overhead.measure(tiny=self.profile == "tiny")
        shown = self._tables(results)
        if self.out.is_dir() or not self.show:
            self._write(results, shown)
        if self.as_json:
            sys.stdout.write(json.dumps(results.content(), indent=1, allow_nan=False) + "\n")
            return
        for table in shown:
            for piece in terminal_pieces(table, self._console.width):
                self._console.print(piece)
            for note in table.notes:
                self._console.print(note, highlight=False, markup=False)
            self._console.print()

    @cached_property
    def request(self) -> Request:
        """What is asked for, with what was tuned: in the folder, or with the package."""
        mine = self.out / TUNED_FILE
        tuned = Tuned.read(mine) if mine.exists() else Tuned.packaged()
        return Request(self.profile, self.only, self.seeds, self.selectors, tuned)

    @cached_property
    def _console(self) -> Console:
        return Console(stderr=self.as_json)

    @property
    def _asked(self) -> tuple[str, ...]:
        return ALL if "all" in self.what else self.what

    @cached_property
    def _wanted(self) -> list[Wanted]:
        names = [part for name in self._asked for part in NEEDS.get(name, (name,))]
        return planned(self.request, list(dict.fromkeys(names)))

    def _fresh(self) -> ReproducedResults:
        """Run what is missing, unless nothing is to be run, and return what is there."""
        before = self._packaged() if self.missing else None
        runs = [each.run for each in self._wanted if before is None or before.known(each) is None]
        if before is not None:
            self._say(f"{len(self._wanted) - len(runs):,} of {len(self._wanted):,} came with fedpace.")
        if runs and not self.show:
            left = sum(len(job.all) for job in jobs_of(runs, self.out))
            self._say(f"{len({run.key for run in runs}):,} runs, {left:,} to go; into {self.out}")
            with self._stoppable(), RunProgress(left, self._console, quiet=self.as_json) as progress:
                play(runs, self.out, progress.watch, progress.done, note=self._say)
        results = collect(self.profile, self._wanted, self.out, before)
        for earlier in (ReproducedResults.read(self.out / RESULTS) if (self.out / RESULTS).exists() else None, before):
            if earlier is not None and earlier.profile == self.profile:  # what was asked for earlier is kept beside it
                results.facts = {**earlier.facts, **results.facts}
                results.entries = {**earlier.entries, **results.entries}
        return results

    def _packaged(self) -> ReproducedResults:
        """Return what comes with fedpace."""
        name = PACKAGED.get(self.profile)
        if name is None:
            raise InputError(
                f"no results of profile {self.profile} come with fedpace: those of {' and '.join(PACKAGED)} do"
            )
        return ReproducedResults.parse(
            json.loads(files("fedpace.reproduce").joinpath(name).read_text(encoding="utf-8")), name
        )

    def _tables(self, results: ReproducedResults) -> list[ReportTable]:
        request, found = self.request, []
        for name in self._asked:
            if name in ("table1", "table2"):
                found.append(tables.cell_table(name, request, results))
            elif name == "table3":
                found.append(tables.sweep_table(request, results))
            elif name == "motivation":
                found.append(tables.case_table(request, results))
            elif name == "constants":
                found.append(tables.constant_table(request, results))
            elif name == "headline":
                found.append(tables.headline_table(request, results))
            elif name == "overhead":
                found.append(overhead.table(results.facts["overhead"]))
        return found

    def _write(self, results: ReproducedResults, shown: list[ReportTable]) -> None:
        """Write everything that was asked for beside the runs."""
        with keeping(self.out):
            results.write(self.out / RESULTS)
            # Pictures alone leave the tables of an earlier call as they are.
            for suffix, render in ((".md", markdown), (".tex", latex)) if shown else ():
                text = "\n".join(render(table) for table in shown)
                write_atomically(self.out / f"tables{suffix}", text.encode())
            write_atomically(self.out / "runs.csv", tables.comma_separated(self.request, results).encode())
            if "figures" in self._asked:
                for folder in write_pictures(self._wanted, self.out, self._say):
                    self._say(f"Drawn: {folder}")
        names = [RESULTS, "runs.csv", *(["tables.md", "tables.tex"] if shown else [])]
        self._say(f"Written into {self.out}: {', '.join(names)}")

    def _tune(self) -> None:
        mine = self.out / TUNED_FILE
        names = tuple(task.name for task in self.request.tasks)
        with self._stoppable():
            tune(names, self.out, Tuned.read(mine), None, self._say, lambda found: found.write(mine))
        self.__dict__.pop("request", None)  # what was tuned decides what is run

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._say("interrupted: the recorded rounds are kept, and the same command resumes")
            raise

    def _say(self, text: str) -> None:
        if not self.as_json:
            self._console.print(text, highlight=False, markup=False)


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
