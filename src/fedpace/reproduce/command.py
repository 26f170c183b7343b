"""The implementation of `fedpace reproduce`: it runs missing runs, then writes and prints the tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from fedpace._base.errors import InputError
from fedpace._base.files import keeping, write_atomically
from fedpace.progress import RunProgress
from fedpace.reproduce import overhead, rendering, tables
from fedpace.reproduce.headline import headline_table
from fedpace.reproduce.outcomes import Results, Wanted, collect
from fedpace.reproduce.pictures import write_pictures
from fedpace.reproduce.plans import PLANS, Request, planned
from fedpace.reproduce.playing import jobs_of, play
from fedpace.reproduce.runs import RUNS
from fedpace.reproduce.tables import Table
from fedpace.reproduce.tasks import Profile
from fedpace.reproduce.tuned import FILE, Tuned
from fedpace.reproduce.tuning import tune
from fedpace.sim.engines.threads import one_thread_from_now_on

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
        """Do it."""
        one_thread_from_now_on()  # small models: more threads cost more than they give
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
            for piece in rendering.terminal(table, self._console.width):
                self._console.print(piece)
            for note in table.notes:
                self._console.print(note, highlight=False, markup=False)
            self._console.print()

    @cached_property
    def request(self) -> Request:
        """What is asked for, with what was tuned: in the folder, or with the package."""
        mine = self.out / FILE
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

    def _fresh(self) -> Results:
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
        for earlier in (Results.read(self.out / RESULTS) if (self.out / RESULTS).exists() else None, before):
            if earlier is not None and earlier.profile == self.profile:  # what was asked for earlier is kept beside it
                results.facts = {**earlier.facts, **results.facts}
                results.entries = {**earlier.entries, **results.entries}
        return results

    def _packaged(self) -> Results:
        """Return what comes with fedpace."""
        name = PACKAGED.get(self.profile)
        if name is None:
            raise InputError(
                f"no results of profile {self.profile} come with fedpace: those of {' and '.join(PACKAGED)} do"
            )
        return Results.parse(json.loads(files("fedpace.reproduce").joinpath(name).read_text(encoding="utf-8")), name)

    def _tables(self, results: Results) -> list[Table]:
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
                found.append(headline_table(request, results))
            elif name == "overhead":
                found.append(overhead.table(results.facts["overhead"]))
        return found

    def _write(self, results: Results, shown: list[Table]) -> None:
        """Write everything that was asked for beside the runs."""
        with keeping(self.out):
            results.write(self.out / RESULTS)
            # Pictures alone leave the tables of an earlier call as they are.
            for suffix, render in ((".md", rendering.markdown), (".tex", rendering.latex)) if shown else ():
                text = "\n".join(render(table) for table in shown)
                write_atomically(self.out / f"tables{suffix}", text.encode())
            write_atomically(self.out / "runs.csv", rendering.comma_separated(self.request, results).encode())
            if "figures" in self._asked:
                for folder in write_pictures(self._wanted, self.out, self._say):
                    self._say(f"Drawn: {folder}")
        names = [RESULTS, "runs.csv", *(["tables.md", "tables.tex"] if shown else [])]
        self._say(f"Written into {self.out}: {', '.join(names)}")

    def _tune(self) -> None:
        mine = self.out / FILE
        names = tuple(task.name for task in self.request.tasks)
        with self._stoppable():
            tune(names, self.out, Tuned.read(mine), None, self._say, lambda found: found.write(mine))
        self.__dict__.pop("request", None)  # what was tuned decides what is run

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self._say("interrupted: what was recorded is kept, and the same command goes on")
            raise

    def _say(self, text: str) -> None:
        if not self.as_json:
            self._console.print(text, highlight=False, markup=False)
