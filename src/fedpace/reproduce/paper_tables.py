"""The paper's tables with our results, and the claim of the paper in three numbers (`headline_table`).

The headline counts the cells that a scheme wins, and its speed-ups over random and over the fastest baseline of each
cell, from the paper's figures and from ours.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, read_json, write_atomically
from fedpace.records.holding import meets
from fedpace.records.run import RunRecord
from fedpace.report.numbers import Estimate, between, counted, digits, metric, time_estimate
from fedpace.report.tables import Cell, Column, ReportTable, Tone
from fedpace.reproduce import paper_runs as plans
from fedpace.reproduce.paper import COLUMNS, PAPER, PAPER_SCHEMES, PRINTED, PaperTask
from fedpace.reproduce.paper_runs import Request, Wanted

FORMAT = 1


@dataclass(frozen=True)
class SeedOutcome:
    """One run that has ended."""

    seconds: float | None
    """Virtual seconds to the target; None = not reached."""
    rounds: int
    """Up to the target, or to the end."""
    ended: float
    """Virtual seconds at the end."""
    clients: float
    """Per round."""
    status: str
    """Of the record: `reached`, `finished` (the limit of rounds) or `diverged`."""
    key: str = ""
    """`PaperRun.key` of the run."""

    @staticmethod
    def of(record: RunRecord, target: float | None = None, key: str = "") -> SeedOutcome:
        """Return whether and when a run reached its target, or an easier one."""
        reached = record.reached
        if target is not None:
            met = (now for now in record.evaluated if meets(now.metric, target, record.info.direction))
            reached = next(met, None)
        played = [now for now in record.rounds if now.number > 0]
        last = reached or record.rounds[-1]
        until = [len(set(map(str, now.clients))) for now in played if now.number <= last.number]
        return SeedOutcome(
            seconds=None if reached is None else round(reached.clock, 1),
            rounds=last.number,
            ended=round(record.rounds[-1].clock, 1),
            clients=round(float(np.mean(until)), 1) if until else 0.0,
            status="reached" if reached is not None else record.info.status,
            key=key,
        )


@dataclass(frozen=True)
class TableEntry:
    """A scheme in a cell: an outcome per seed that was run."""

    wanted: int
    """Seeds that were asked for."""
    outcomes: Mapping[int, SeedOutcome]

    @property
    def times(self) -> list[float]:
        """Seconds of the seeds that reached the target."""
        return [each.seconds for each in self.outcomes.values() if each.seconds is not None]

    @property
    def run(self) -> bool:
        """Whether any seed was run."""
        return bool(self.outcomes)

    @property
    def reached(self) -> bool:
        """Whether every seed that was run reached the target."""
        return self.run and len(self.times) == len(self.outcomes)

    @property
    def estimate(self) -> Estimate | None:
        """Geometric mean and interval of the seconds, where every seed reached the target."""
        return time_estimate(self.times) if self.reached else None

    @property
    def seconds(self) -> float | None:
        """The geometric mean, where every seed reached the target."""
        found = self.estimate
        return None if found is None else found.mean


class ReproducedResults:
    """Entries by their place in the tables, such as `table1/quadratic/random`."""

    def __init__(self, profile: str, entries: Mapping[str, TableEntry], facts: Mapping[str, Any] | None = None) -> None:
        self.profile = profile
        self.entries = dict(entries)
        self.facts: dict[str, Any] = dict(facts or {})
        """What else was measured, such as the overhead."""

    def __getitem__(self, place: str) -> TableEntry:
        """Return an entry; it is empty if nothing was run."""
        return self.entries.get(place, TableEntry(0, {}))

    def known(self, wanted: Wanted) -> SeedOutcome | None:
        """Return the outcome of a run with exactly this configuration; None = there is none."""
        found = self[wanted.place].outcomes.get(wanted.run.seed)
        return found if found is not None and found.key == wanted.run.key else None

    def content(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return {
            "format": FORMAT,
            "profile": self.profile,
            "facts": self.facts,
            "entries": {
                place: {"wanted": entry.wanted, "seeds": {str(s): asdict(o) for s, o in entry.outcomes.items()}}
                for place, entry in self.entries.items()
            },
        }

    def write(self, path: Path) -> None:
        """Write everything as JSON that a person can read."""
        write_atomically(path, json_bytes(self.content()))

    @staticmethod
    def parse(raw: Any, source: str) -> ReproducedResults:
        """Read what `write` wrote."""
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise InputError(f"{source} does not hold results of `fedpace reproduce` of format {FORMAT}")
        try:
            entries = {
                place: TableEntry(each["wanted"], {int(s): SeedOutcome(**o) for s, o in each["seeds"].items()})
                for place, each in raw["entries"].items()
            }
            return ReproducedResults(raw["profile"], entries, raw.get("facts"))
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            raise InputError(f"{source} is damaged: {cause}") from cause

    @staticmethod
    def read(path: Path) -> ReproducedResults:
        """Read a file of results."""
        return ReproducedResults.parse(read_json(path), str(path))


def collect(
    profile: str, wanted: Iterable[Wanted], store: Path, before: ReproducedResults | None = None
) -> ReproducedResults:
    """Return what is in the folder of runs, whether or not all of it has been run.

    Runs that are not there are looked up in `before`, results of an earlier time.
    """
    listed: Sequence[Wanted] = list(wanted)
    counts: dict[str, int] = {}
    found: dict[str, dict[int, SeedOutcome]] = {}
    for each in listed:
        counts[each.place] = counts.get(each.place, 0) + 1
        record = each.run.record(store)
        mine = found.setdefault(each.place, {})
        if record is not None and record.info.ended:
            mine[each.run.seed] = SeedOutcome.of(record, each.target, each.run.key)
        elif before is not None and (known := before.known(each)) is not None:
            mine[each.run.seed] = known
    return ReproducedResults(profile, {place: TableEntry(counts[place], outcomes) for place, outcomes in found.items()})


NOT_RUN = "not run"
NOT_REACHED = "N/A"
RIVALS = ("baseline", "added")
"""Whose columns compete for the best rival: neither the paper's own nor ours."""
RIVAL = (
    "Best rival: the fastest scheme of the row that is neither the paper's own nor one of ours. In quick, FLANP and "
    "ApproxOpt have the best of three settings for each data set and delay model."
)
NAMES = {"table1": "Table 1, synthetic delays", "table2": "Table 2, NYCMesh delays"}


def headings(first: str, *others: str) -> tuple[Column, ...]:
    """Return the columns of a table: names in the first, numbers in the others."""
    return (Column(first, number=False), *map(Column, others))


def cell_table(name: str, request: Request, results: ReproducedResults) -> ReportTable:
    """Return table 1 or 2."""
    columns = request.columns
    rows = []
    for task in request.tasks:
        entries = {column.label: results[f"{name}/{task.name}/{column.label}"] for column in columns}
        printed = {label: PAPER.seconds(task.name, plans.DELAYS[name], label) for label in entries if label in PRINTED}
        compared = sum(entry.run for entry in entries.values()) > 1  # one alone is not the fastest of anything
        best = fastest({label: entry.seconds for label, entry in entries.items()}) if compared else None
        paper_best = fastest(printed)
        cells = [
            _cell(entry, best=label == best, paper=_printed(label, printed), paper_best=label == paper_best, unit=1e3)
            for label, entry in entries.items()
        ]
        rival = _rival({column.title: entries[column.label] for column in columns if column.camp in RIVALS})
        rows.append((Cell(task.title, _seeds(entries.values())), _target(task), *cells, rival))
    return ReportTable(
        f"{NAMES[name]}: 1,000 virtual seconds to the target",
        headings("Data set", "Target", *(column.title for column in columns), "Best rival"),
        tuple(rows),
        (*_notes(request), RIVAL, *_scales(request)),
    )


def _rival(entries: Mapping[str, TableEntry]) -> Cell:
    """Return the fastest of the schemes that are neither the paper's nor ours, with its name, once all were run."""
    if not entries or not all(entry.run for entry in entries.values()):
        return Cell(NOT_RUN if entries else "")
    best = fastest({title: entry.seconds for title, entry in entries.items()})
    seconds = None if best is None else entries[best].seconds
    return Cell(NOT_REACHED) if best is None or seconds is None else Cell(digits(seconds / 1e3), best)


def _seeds(entries: Iterable[TableEntry]) -> str:
    counts = [len(entry.outcomes) for entry in entries if entry.run]
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    return counted(most, "seed") if least == most else f"{least} to {counted(most, 'seed')}"


def _scales(request: Request) -> tuple[str, ...]:
    """Return what each row was run on, rows of the same scale together."""
    found: dict[str, list[str]] = {}
    for task in request.tasks:
        found.setdefault(task.scale, []).append(task.title)
    return tuple(f"Scale of {', '.join(titles)}: {scale}." for scale, titles in found.items())


def sweep_table(request: Request, results: ReproducedResults) -> ReportTable:
    """Return the sweeps of table 3, in seconds."""
    sweeps = {
        "Rotated MNIST, largest rotation": ("rotation", plans.ROTATIONS, "rotated_mnist_max_rotation_seconds"),
        "Dirichlet MNIST, fastest link, MB/s": ("link", plans.LINKS, "dirichlet_mnist_max_link_speed_seconds"),
        "Dirichlet CIFAR-10, target": ("target", tuple(plans.TARGETS), "dirichlet_cifar10_target_seconds"),
    }
    titles = {column.label: column.title for column in Request(selectors=PAPER_SCHEMES).columns}
    rows: list[tuple[Cell, ...]] = []
    for what, (part, values, key) in sweeps.items():
        for value in values:
            row = [Cell(what), Cell(str(value))]
            for label in PAPER_SCHEMES:
                said = PAPER.tables["table3"][key][str(value)][label]
                row.append(_cell(results[f"table3/{part}={value}/{label}"], paper=f"paper {said:,}"))
            rows.append(tuple(row))
    for k in plans.COHORTS:
        entry = results[f"table3/k={k}/{PAPER_SCHEMES[1]}"]
        rows.append((Cell("Quadratic, NYCMesh, K"), Cell(str(k)), Cell(""), _cell(entry, paper="paper: a plot")))
    named = headings("What varies", "Value", *(titles[label] for label in PAPER_SCHEMES))
    notes = _notes(request)
    if request.profile != "paper":
        notes += ("Targets of CIFAR-10 are 3 points below that of table 1, the same, and 3 points above.",)
    return ReportTable("Table 3: seconds to the target", named, tuple(rows), notes)


def case_table(request: Request, results: ReproducedResults) -> ReportTable:
    """Return figure 2 as a table: Quadratic with one heterogeneity or both, in seconds."""
    cases = {"data": "only data differ", "latency": "only latency differs", "both": "both differ"}
    columns = Request(selectors=plans.MOTIVATION).columns
    best = {
        case: fastest({column.label: results[f"motivation/{case}/{column.label}"].seconds for column in columns})
        for case in cases
    }
    rows = tuple(
        (
            Cell(column.title),
            *(_cell(results[f"motivation/{case}/{column.label}"], best=best[case] == column.label) for case in cases),
        )
        for column in columns
    )
    title = "Figure 2: Quadratic, seconds to the target"
    return ReportTable(title, headings("Scheme", *cases.values()), rows, _notes(request))


def constant_table(request: Request, results: ReproducedResults) -> ReportTable:
    """Return what the hidden constants of the paper's schemes decide, in seconds."""
    submodular, sampling = PAPER_SCHEMES
    parts = [(f"Submodular, B rescaled to c = {c}", f"c={c}/{submodular}") for c in plans.RESCALINGS]
    parts += [
        (f"Sampling, {counted(steps, 'iteration')} of the solver", f"iterations={steps}/{sampling}")
        for steps in plans.ITERATIONS
    ]
    rows = tuple(
        (Cell(title), *(_cell(results[f"constants/{delays}/{place}"]) for delays in plans.DELAYS.values()))
        for title, place in parts
    )
    named = headings("Quadratic", *plans.DELAYS.values())
    return ReportTable("Hidden constants: seconds to the target", named, rows, _notes(request))


def fastest(seconds: Mapping[str, float | None]) -> str | None:
    """Return the scheme that took least time; None if no scheme reached the target."""
    arrived = {label: value for label, value in seconds.items() if value is not None}
    return min(arrived, key=arrived.__getitem__) if arrived else None


def _cell(
    entry: TableEntry, *, best: bool = False, paper: str = "", paper_best: bool = False, unit: float = 1.0
) -> Cell:
    if not entry.run:
        return Cell(NOT_RUN, published=paper, published_best=paper_best)
    missing = "" if len(entry.outcomes) >= entry.wanted else f"{len(entry.outcomes)} of {entry.wanted} seeds"
    found = entry.estimate
    if found is None:
        some = f"{len(entry.times)} of {len(entry.outcomes)} arrive" if entry.times else ""
        return Cell(NOT_REACHED, some or missing, published=paper, published_best=paper_best)
    low, high = (None if end is None else end / unit for end in (found.low, found.high))
    scaled = Estimate(found.mean / unit, low, high, found.count)
    tone: Tone = "best" if best else "plain"
    return Cell(digits(scaled.mean), between(scaled) or missing, tone, published=paper, published_best=paper_best)


def _printed(label: str, printed: Mapping[str, float | None]) -> str:
    if label not in printed:
        return ""
    seconds = printed[label]
    return f"paper {NOT_REACHED if seconds is None else digits(seconds / 1e3)}"


def _target(task: PaperTask) -> Cell:
    same = task.target == task.paper_target
    return Cell(metric(task.target), published="" if same else f"paper {metric(task.paper_target)}")


def _notes(request: Request) -> tuple[str, ...]:
    limits = [task.max_rounds for task in request.tasks]
    least, most = min(limits), max(limits)
    within = counted(most, "round") if least == most else f"{least} to {most} rounds, by data set"
    seeds = ", ".join(map(str, request.seeds))
    return (
        f"Profile {request.profile}, seeds {seeds}. Geometric means over seeds with 95 % intervals, which need three "
        "seeds; the fastest of a row in bold, ours and the paper's.",
        f"{NOT_REACHED}: not reached within {within}; five times as many steps of schemes without rounds.",
    )


BASELINES = tuple(label for label in PRINTED if label not in PAPER_SCHEMES)
OTHERS = ("exact", "fedbuff")
"""Columns that are neither the paper's nor ours."""
Seconds = Mapping[str, float | None]
"""By scheme, in one cell; None = not reached, and not there = not run."""


@dataclass(frozen=True)
class CellScores:
    """How a scheme, or the better of several, did over the cells."""

    cells: int
    """Number of cells in which it was run."""
    arrived: int
    """Number of cells in which it reached the target."""
    fastest: int
    """Number of cells in which it was faster than every baseline."""
    over_random: float | None
    """Geometric mean of its speed-ups over random, in the cells in which both reached the target."""
    over_baseline: float | None
    """The same over the fastest baseline of each cell."""


def cell_scores(
    cells: Mapping[str, Seconds], schemes: tuple[str, ...], rivals: tuple[str, ...] = BASELINES
) -> CellScores:
    """Return how often the faster of `schemes` reached the target and beat `rivals`, and by how much."""
    run = arrived = won = 0
    random: list[float] = []
    best: list[float] = []
    for seconds in cells.values():
        if not any(scheme in seconds for scheme in schemes) or not all(rival in seconds for rival in rivals):
            continue
        run += 1
        own = fastest({scheme: seconds.get(scheme) for scheme in schemes})
        mine = None if own is None else seconds[own]
        if mine is None:
            continue
        arrived += 1
        rival = fastest({label: seconds[label] for label in rivals})
        other = None if rival is None else seconds[rival]
        won += other is None or mine < other
        if other and mine:  # a target that the first model meets says nothing
            best.append(math.log(other / mine))
        if mine and (slow := seconds.get("random")):
            random.append(math.log(slow / mine))
    return CellScores(run, arrived, won, _geometric(random), _geometric(best))


def printed_cells(tasks: Iterable[str] = tuple(PAPER.tables["table1_synthetic_delays"])) -> dict[str, Seconds]:
    """Return the eighteen cells as the paper has them, or those of some data sets."""
    return {
        f"{table}/{task}": {label: PAPER.seconds(task, delays, label) for label in PRINTED}
        for table, delays in plans.DELAYS.items()
        for task in tasks
    }


def our_cells(request: Request, results: ReproducedResults) -> dict[str, Seconds]:
    """Return the cells that were run."""
    found: dict[str, Seconds] = {}
    for table in plans.DELAYS:
        for task in request.tasks:
            entries = {column.label: results[f"{table}/{task.name}/{column.label}"] for column in request.columns}
            found[f"{table}/{task.name}"] = {label: each.seconds for label, each in entries.items() if each.run}
    return found


def headline_table(request: Request, results: ReproducedResults) -> ReportTable:
    """Return the headline: the paper's schemes by its tables and by ours, then ours."""
    ours = our_cells(request, results)
    printed = printed_cells([task.name for task in request.tasks])
    titles = {column.label: column.title for column in COLUMNS}
    others = [column for column in request.columns if column.label not in PRINTED]
    rows = [
        _row("The better of the paper's two schemes, its figures", cell_scores(printed, PAPER_SCHEMES)),
        _row("The better of the paper's two schemes, here", cell_scores(ours, PAPER_SCHEMES)),
    ]
    for label in PAPER_SCHEMES:
        rows.append(_row(f"{titles[label]}, the paper's figures", cell_scores(printed, (label,))))
        rows.append(_row(f"{titles[label]}, here", cell_scores(ours, (label,))))
    rows += [_row(f"{column.title}, here", cell_scores(ours, (column.label,))) for column in others]
    rivals = tuple(label for label in (*PRINTED, *OTHERS) if any(label in cell for cell in ours.values()))
    rows += [
        _row(f"{column.title}, against all that is not ours", cell_scores(ours, (column.label,), rivals))
        for column in others
        if column.camp == "ours"
    ]
    return ReportTable(
        "Against the paper's five baselines, cell by cell",
        headings("Scheme", "Cells run", "Arrives", "Fastest in", "Over random", "Over the best baseline"),
        tuple(rows),
        (
            "Geometric means over the cells in which both arrive; a scheme arrives in a cell where all seeds that were "
            "run do. The best baseline is the fastest of random, FLANP, DivFL, Power-of-Choice and ApproxOpt in that "
            "cell; in the last rows the paper's two schemes, the exact set and FedBuff are among them.",
        ),
    )


def _row(title: str, found: CellScores) -> tuple[Cell, ...]:
    times: Callable[[float | None], Cell] = lambda value: Cell("" if value is None else f"{value:.2f}x")  # noqa: E731
    return (
        Cell(title),
        Cell(str(found.cells)),
        Cell(str(found.arrived)),
        Cell(str(found.fastest)),
        times(found.over_random),
        times(found.over_baseline),
    )


def _geometric(logs: list[float]) -> float | None:
    return math.exp(float(np.mean(logs))) if logs else None


def comma_separated(request: Request, results: ReproducedResults) -> str:
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
        known = what in plans.DELAYS and task is not None and scheme in PRINTED
        paper = PAPER.seconds(part, plans.DELAYS[what], scheme) if known else None
        for seed, outcome in entry.outcomes.items():
            writer.writerow(
                (
                    *(what, part, scheme, seed, outcome.seconds, outcome.rounds, outcome.clients, outcome.ended),
                    *(outcome.status, task and task.target, paper, task and task.paper_target, results.profile),
                )
            )
    return file.getvalue()
