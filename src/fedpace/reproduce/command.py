"""The implementation of `fedpace reproduce`: it runs missing runs, then writes and prints the tables.

`measure_overhead` times what choosing costs the server in one round, the paper's procedure beside ours, on fleets with
the paper's numbers of clients and features. The paper's way to the heterogeneity, a spectral norm of a d x d matrix for
each pair, is timed on some pairs and multiplied by how many there are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedpace._base.checks import FloatArray
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.files import keeping, write_atomically
from fedpace._base.rng import stream
from fedpace.core.types import View
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.moments import MomentBank
from fedpace.numerics.heterogeneity import whiten
from fedpace.progress import RunProgress
from fedpace.records.run import RunRecord
from fedpace.report.export import write_reports
from fedpace.report.numbers import digits
from fedpace.report.tables import Cell, ReportTable, latex, markdown, terminal_pieces
from fedpace.reproduce import paper_tables as tables
from fedpace.reproduce.paper import PAPER, RESCALED, TUNED_FILE, Profile, TunedOptions
from fedpace.reproduce.paper_runs import PLANS, RUNS, Note, Request, Wanted, jobs_of, planned, play, tune
from fedpace.reproduce.paper_tables import ReproducedResults, collect, headings
from fedpace.selectors.approx_opt_sampling import ApproxOptSampling
from fedpace.selectors.delayhet_sampling import DelayhetSampling
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.sim.engines.engine import limit_to_one_thread

FLEETS = {"quadratic": (100, 500), "rotated-cifar10": (50, 512), "shakespeare": (100, 100)}
"""Clients and features. CIFAR-10's are those of ResNet18's last layer; the other two are stated in the paper."""
ROWS = 100
PAIRS = 12
ITERATIONS = 100
"""Of trust-constr: the paper does not say."""
STEPS = ("feature-heterogeneity", "delayhet-submodular", "delayhet-sampling", "approx-opt-sampling")


def measure_overhead(*, tiny: bool = False) -> dict[str, Any]:
    """Return CPU seconds of each step, by data set; `tiny` has fleets of a few clients."""
    found: dict[str, Any] = {}
    for name, (clients, features) in FLEETS.items():
        size = (6, 5) if tiny else (clients, features)
        found[name] = {"clients": size[0], "features": size[1], **_measured(*size)}
    return found


def _measured(clients: int, features: int) -> dict[str, float]:
    factors = _factors(clients, features)
    pairwise = _pair_by_pair(factors)
    bank = MomentBank(clients)
    for row, factor in enumerate(factors):
        bank.put(row, factor)
    ours = _seconds(lambda: bank.heterogeneity(ridge=0.0))
    view = View(
        step=0,
        now=0.0,
        available=np.ones(clients, dtype=bool),
        share=np.full(clients, 1 / clients),
        loss=np.full(clients, np.nan),
        loss_step=np.full(clients, -1),
        participations=np.zeros(clients, dtype=np.int64),
        delay=SyntheticDelays().build(clients, model_bytes=4 * features, seed=0).expected(),
        moments=bank,
    )
    rng = stream(0, "reproduce", "overhead")
    k = min(10, clients)
    schemes: dict[str, Any] = {
        "delayhet-submodular": DelayhetSubmodular(solver="min-norm", target_heterogeneity=RESCALED, ridge=0.0),
        "exact": DelayhetSubmodular(target_heterogeneity=RESCALED, ridge=0.0),
        "delayhet-sampling": DelayhetSampling(k=k, max_iter=ITERATIONS, ridge=0.0),
        "approx-opt-sampling": ApproxOptSampling(k=k, solver="trust-constr", max_iter=ITERATIONS),
        "approx-opt-sampling, exact": ApproxOptSampling(k=k),
    }
    chosen = {label: _seconds(partial(scheme.select, None, view, rng)) for label, scheme in schemes.items()}
    return {"feature-heterogeneity, pair by pair": pairwise, "feature-heterogeneity": ours, **chosen}


def _factors(clients: int, features: int) -> list[FloatArray]:
    rng = stream(0, "reproduce", "features", clients, features)
    scales = np.sqrt(rng.uniform(1, 10, (clients, features)))
    return [rng.standard_normal((ROWS, features)) * own / np.sqrt(ROWS) for own in scales]


def _pair_by_pair(factors: list[FloatArray]) -> float:
    """Return the seconds of all pairs as the paper describes them: the largest singular value of (A_i - A_j) A^-1."""
    clients = len(factors)
    inverse = whiten(factors, np.full(clients, 1 / clients)).inverse
    first, second = np.triu_indices(clients, 1)
    some = stream(0, "reproduce", "pairs").choice(len(first), min(PAIRS, len(first)), replace=False)

    def work() -> None:
        for i, j in zip(first[some], second[some], strict=True):
            difference = factors[i].T @ factors[i] - factors[j].T @ factors[j]
            np.linalg.norm(difference @ inverse, 2)

    return _seconds(work) / len(some) * len(first)


def _seconds(work: Callable[[], Any]) -> float:
    """Return CPU seconds: other programs on the machine do not count."""
    began = time.process_time()
    work()
    return round(time.process_time() - began, 4)


def overhead_table(measured: Mapping[str, Any]) -> ReportTable:
    """Return the overhead beside the paper's."""
    printed = PAPER.tables["table3"]["server_overhead_seconds_one_round"]
    rows = []
    for name, found in measured.items():
        cells = []
        for step in STEPS:
            other = {"feature-heterogeneity": "feature-heterogeneity, pair by pair"}.get(step, step)
            ours = {"delayhet-submodular": "exact", "approx-opt-sampling": "approx-opt-sampling, exact"}.get(step, step)
            said = f"paper {digits(float(printed[name][step]))}"
            same = "" if ours == other else f"its procedure {digits(found[other])}"
            cells.append(Cell(digits(found[ours]), same, published=said))
        before = found["feature-heterogeneity, pair by pair"] + found["delayhet-submodular"]
        after = found["feature-heterogeneity"] + found["exact"]
        rows.append(
            (
                Cell(name),
                Cell(f"{found['clients']}, {found['features']}"),
                *cells,
                Cell(f"{before / max(after, 1e-9):.0f}x"),
            )
        )
    return ReportTable(
        "Server overhead: seconds in the first round",
        headings("Data set", "m, d", "Heterogeneity", "Submodular", "Sampling", "ApproxOpt", "Submodular, all of it"),
        tuple(rows),
        (
            "CPU seconds of one core here, a GPU and 12 cores in the paper. First line: ours; then the paper's "
            "procedure as we run it: the norms of all pairs one by one (timed on 12 pairs), min-norm, trust-constr "
            f"({ITERATIONS} iterations; the paper does not say). The last column: its procedure over ours.",
        ),
    )


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
            results.facts["overhead"] = measure_overhead(tiny=self.profile == "tiny")
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
        tuned = TunedOptions.read(mine) if mine.exists() else TunedOptions.packaged()
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
                found.append(overhead_table(results.facts["overhead"]))
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
            tune(names, self.out, TunedOptions.read(mine), None, self._say, lambda found: found.write(mine))
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
