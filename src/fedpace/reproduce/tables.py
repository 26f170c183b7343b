"""Builds the paper's tables with our results: the content of each cell, independent of the output format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedpace.report.estimates import Estimate
from fedpace.report.numbers import between, counted, digits, metric
from fedpace.reproduce import plans
from fedpace.reproduce.outcomes import Entry, Results
from fedpace.reproduce.paper import COLUMNS, OWN, PAPER
from fedpace.reproduce.plans import Request
from fedpace.reproduce.tasks import Task

NOT_RUN = "not run"
NOT_REACHED = "N/A"
RIVALS = ("baseline", "added")
"""Whose columns compete for the best rival: neither the paper's own nor ours."""
RIVAL = (
    "Best rival: the fastest scheme of the row that is neither the paper's own nor one of ours. In quick, FLANP and "
    "ApproxOpt have the best of three settings for each data set and delay model."
)
NAMES = {"table1": "Table 1, synthetic delays", "table2": "Table 2, NYCMesh delays"}


@dataclass(frozen=True)
class Cell:
    """What a cell says: ours, how sure it is, and the paper's."""

    ours: str
    sure: str = ""
    paper: str = ""
    best: bool = False
    """Whether ours is the best of its row."""
    paper_best: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """What it says, line by line."""
        return tuple(filter(None, (self.ours, self.sure, self.paper)))


@dataclass(frozen=True)
class Table:
    """A table, with what has to be said about it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def cell_table(name: str, request: Request, results: Results) -> Table:
    """Return table 1 or 2."""
    columns = request.columns
    rows = []
    for task in request.tasks:
        entries = {column.label: results[f"{name}/{task.name}/{column.label}"] for column in columns}
        printed = {label: PAPER.seconds(task.name, plans.DELAYS[name], label) for label in entries if label in COLUMNS}
        compared = sum(entry.run for entry in entries.values()) > 1  # one alone is not the fastest of anything
        best = fastest({label: entry.seconds for label, entry in entries.items()}) if compared else None
        paper_best = fastest(printed)
        cells = [
            _cell(entry, best=label == best, paper=_printed(label, printed), paper_best=label == paper_best, unit=1e3)
            for label, entry in entries.items()
        ]
        rival = _rival({column.title: entries[column.label] for column in columns if column.camp in RIVALS})
        rows.append((Cell(task.title, _seeds(entries.values())), _target(task), *cells, rival))
    return Table(
        f"{NAMES[name]}: 1,000 virtual seconds to the target",
        ("Data set", "Target", *(column.title for column in columns), "Best rival"),
        tuple(rows),
        (*_notes(request), RIVAL, *_scales(request)),
    )


def _rival(entries: Mapping[str, Entry]) -> Cell:
    """Return the fastest of the schemes that are neither the paper's nor ours, with its name, once all were run."""
    if not entries or not all(entry.run for entry in entries.values()):
        return Cell(NOT_RUN if entries else "")
    best = fastest({title: entry.seconds for title, entry in entries.items()})
    seconds = None if best is None else entries[best].seconds
    return Cell(NOT_REACHED) if best is None or seconds is None else Cell(digits(seconds / 1e3), best)


def _seeds(entries: Iterable[Entry]) -> str:
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


def sweep_table(request: Request, results: Results) -> Table:
    """Return the sweeps of table 3, in seconds."""
    sweeps = {
        "Rotated MNIST, largest rotation": ("rotation", plans.ROTATIONS, "rotated_mnist_max_rotation_seconds"),
        "Dirichlet MNIST, fastest link, MB/s": ("link", plans.LINKS, "dirichlet_mnist_max_link_speed_seconds"),
        "Dirichlet CIFAR-10, target": ("target", tuple(plans.TARGETS), "dirichlet_cifar10_target_seconds"),
    }
    titles = {column.label: column.title for column in Request(selectors=OWN).columns}
    rows: list[tuple[Cell, ...]] = []
    for what, (part, values, key) in sweeps.items():
        for value in values:
            row = [Cell(what), Cell(str(value))]
            for label in OWN:
                said = PAPER.tables["table3"][key][str(value)][label]
                row.append(_cell(results[f"table3/{part}={value}/{label}"], paper=f"paper {said:,}"))
            rows.append(tuple(row))
    for k in plans.COHORTS:
        entry = results[f"table3/k={k}/{OWN[1]}"]
        rows.append((Cell("Quadratic, NYCMesh, K"), Cell(str(k)), Cell(""), _cell(entry, paper="paper: a plot")))
    headings = ("What varies", "Value", *(titles[label] for label in OWN))
    notes = _notes(request)
    if request.profile != "paper":
        notes += ("Targets of CIFAR-10 are 3 points below that of table 1, the same, and 3 points above.",)
    return Table("Table 3: seconds to the target", headings, tuple(rows), notes)


def case_table(request: Request, results: Results) -> Table:
    """Return figure 2 as a table: Quadratic with one heterogeneity or both, in seconds."""
    headings = {"data": "only data differ", "latency": "only latency differs", "both": "both differ"}
    columns = Request(selectors=plans.MOTIVATION).columns
    best = {
        case: fastest({column.label: results[f"motivation/{case}/{column.label}"].seconds for column in columns})
        for case in headings
    }
    rows = tuple(
        (
            Cell(column.title),
            *(
                _cell(results[f"motivation/{case}/{column.label}"], best=best[case] == column.label)
                for case in headings
            ),
        )
        for column in columns
    )
    title = "Figure 2: Quadratic, seconds to the target"
    return Table(title, ("Scheme", *headings.values()), rows, _notes(request))


def constant_table(request: Request, results: Results) -> Table:
    """Return what the hidden constants of the paper's schemes decide, in seconds."""
    submodular, sampling = OWN
    parts = [(f"Submodular, B rescaled to c = {c}", f"c={c}/{submodular}") for c in plans.RESCALINGS]
    parts += [
        (f"Sampling, {counted(steps, 'iteration')} of the solver", f"iterations={steps}/{sampling}")
        for steps in plans.ITERATIONS
    ]
    rows = tuple(
        (Cell(title), *(_cell(results[f"constants/{delays}/{place}"]) for delays in plans.DELAYS.values()))
        for title, place in parts
    )
    headings = ("Quadratic", *plans.DELAYS.values())
    return Table("Hidden constants: seconds to the target", headings, rows, _notes(request))


def fastest(seconds: Mapping[str, float | None]) -> str | None:
    """Return who took least; None where nobody arrived."""
    arrived = {label: value for label, value in seconds.items() if value is not None}
    return min(arrived, key=arrived.__getitem__) if arrived else None


def _cell(entry: Entry, *, best: bool = False, paper: str = "", paper_best: bool = False, unit: float = 1.0) -> Cell:
    if not entry.run:
        return Cell(NOT_RUN, paper=paper, paper_best=paper_best)
    missing = "" if len(entry.outcomes) >= entry.wanted else f"{len(entry.outcomes)} of {entry.wanted} seeds"
    found = entry.estimate
    if found is None:
        some = f"{len(entry.times)} of {len(entry.outcomes)} arrive" if entry.times else ""
        return Cell(NOT_REACHED, some or missing, paper, paper_best=paper_best)
    scaled = Estimate(
        found.mean / unit,
        None if found.low is None else found.low / unit,
        None if found.high is None else found.high / unit,
        found.count,
    )
    return Cell(digits(scaled.mean), between(scaled) or missing, paper, best=best, paper_best=paper_best)


def _printed(label: str, printed: Mapping[str, float | None]) -> str:
    if label not in printed:
        return ""
    seconds = printed[label]
    return f"paper {NOT_REACHED if seconds is None else digits(seconds / 1e3)}"


def _target(task: Task) -> Cell:
    same = task.target == task.paper_target
    return Cell(metric(task.target), paper="" if same else f"paper {metric(task.paper_target)}")


def _notes(request: Request) -> tuple[str, ...]:
    limits = [task.max_rounds for task in request.tasks]
    least, most = min(limits), max(limits)
    within = counted(most, "round") if least == most else f"{least} to {most} rounds, by data set"
    seeds = ", ".join(map(str, request.seeds))
    return (
        f"Profile {request.profile}, seeds {seeds}. Means over seeds with 95 % intervals, which need three seeds; the "
        "fastest of a row in bold, ours and the paper's.",
        f"{NOT_REACHED}: not reached within {within}; five times as many steps of schemes without rounds.",
    )
