"""The implementation of `fedpace compare`, `fedpace run`, `fedpace resume` and `fedpace report`."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import scipy.linalg  # noqa: F401  so that its BLAS is there when threads are counted
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedpace import runner
from fedpace._base.errors import InputError, StorageError
from fedpace._base.files import INTACT, json_bytes, keeping, write_atomically
from fedpace._base.registry import key_values, parse_named
from fedpace.cli.parameters import Changes, ExecutionOptions, print_json
from fedpace.config import Experiment, Overrides, load_experiments
from fedpace.progress import RunProgress
from fedpace.records.catalogue import PLAN, comparison_folders
from fedpace.records.run import INFO, ROUNDS, RunRecord, find_runs, in_order
from fedpace.report.comparison import retarget, summarise
from fedpace.report.export import report_files, write_reports
from fedpace.report.numbers import counted
from fedpace.report.privacy_panel import privacy_sentence
from fedpace.report.summary import influence_sentence, sentences
from fedpace.report.tables import cost_table, delay_table, scheme_table, terminal
from fedpace.runner import Execution, Plan, check_folder, duration_text, pending, planned, run_one, run_plan
from fedpace.sim.engines.engine import EngineOptions, limit_to_one_thread


def execution(how: ExecutionOptions) -> Execution:
    """Return how runs are carried out; from here on this process has one thread.

    The models of these commands are small: more threads cost more than they give, and with one the rounds of a seed are
    the same bytes on every number of cores, whether a run has this process or a worker's.
    """
    limit_to_one_thread()
    engine = EngineOptions(how.engine, how.workers, how.ray_address)
    return Execution(engine, how.checkpoint_every, how.keep_model)


def overrides(changes: Changes, **which: Any) -> Overrides:
    """Return what a command changes in an experiment; `which` holds its schemes, seeds and delays, if given apart."""
    named = {
        "server": _named(changes.server, "--server"),
        "robust": _named(changes.robust, "--robust"),
        "dp": _keys(changes.dp, "--dp", "epsilon=3,delta=1e-5"),
    }
    return Overrides(**vars(changes) | named | which)


def load_under(path: Path | None, overrides: Overrides, delays: Sequence[str] | None = None) -> list[Experiment]:
    """Read an experiment, and make one of it for each of `delays`; None = its own."""
    each = [overrides] if delays is None else [dataclasses.replace(overrides, delays=name) for name in delays]
    return load_experiments(path, each)


def compare(
    chosen: list[Experiment], out: Path | None, how: Execution, *, jobs: int, overwrite: bool, as_json: bool
) -> None:
    """Run all schemes under all seeds and delay models, and report."""
    plan = Plan.under(chosen)
    folder = _folder(out, chosen[0], overwrite)
    console = Console(stderr=as_json)
    _announce(console, chosen, folder, quiet=as_json)
    with _resumable(folder, new=True), RunProgress(plan.runs, console, quiet=as_json) as progress:
        records = run_plan(plan, folder, progress.watch, progress.done, execution=how, jobs=jobs, overwrite=overwrite)
    with _resumable(folder):
        report_folder(folder, console, as_json=as_json, plan=plan, records=records)
    if chosen[0].training.device is not None and not as_json:
        console.print(f"Clients were trained on {', '.join(_devices(records))}.", highlight=False, markup=False)


def _devices(records: Sequence[RunRecord]) -> list[str]:
    """Return the devices on which clients were trained, with the precision if it is not float32."""
    return sorted({str(record.info.engine.get("device", "cpu")) for record in records})


def estimate_duration(chosen: list[Experiment], how: Execution, *, jobs: int, as_json: bool) -> None:
    """Print the runs and their estimated duration, from a few rounds of each scheme; nothing is written."""
    plan = Plan.under(chosen)
    console = Console(stderr=as_json)
    # Show a bar on a terminal only; elsewhere lines with accuracies would look like results.
    with RunProgress(len(chosen[0].schemes), console, quiet=as_json or not console.is_terminal) as progress:
        found = runner.estimate_duration(plan, progress.watch, execution=how, jobs=jobs)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    table = Table(title=found.title(), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("Scheme", "Clients\nper round", "Engine", "Real seconds\nper round", "All its runs,\nat most"):
        table.add_column(heading, justify="left" if heading in ("Scheme", "Engine") else "right", overflow="fold")
    for each in found.schemes:
        cohort = f"{each.clients_per_round:.3g}"
        table.add_row(each.label, cohort, each.engine, f"{each.seconds_per_round:.2g}", duration_text(each.seconds))
    console.print(table)
    console.print(found.sentence(), highlight=False, markup=False)


def run(experiment: Experiment, seed: int, out: Path | None, how: Execution, *, overwrite: bool, as_json: bool) -> None:
    """Run the first scheme of an experiment once."""
    chosen = dataclasses.replace(experiment, schemes=experiment.schemes[:1])
    folder = _folder(out, chosen, overwrite)
    console = Console(stderr=as_json)
    _announce(console, [chosen], folder, quiet=as_json)
    with _resumable(folder, new=True), RunProgress(1, console, quiet=as_json) as progress:
        record = run_one(chosen, chosen.schemes[0], seed, folder, progress.watch, execution=how, overwrite=overwrite)
    _show_run(record, folder, console, as_json=as_json)


def resume(folder: Path, how: Execution, *, jobs: int, as_json: bool) -> None:
    """Resume the runs in a folder, and report."""
    console = Console(stderr=as_json)
    begun = pending(folder)
    runs, done = len(begun.runs), len(begun.records)
    if not as_json:
        state = "all finished already" if done == runs else f"{done} finished already, {runs - done} to go"
        console.print(f"{folder}: {counted(runs, 'run')}, {state}", highlight=False, markup=False)
    with _resumable(folder), RunProgress(runs - done, console, quiet=as_json) as progress:
        records = runner.resume(folder, progress.watch, progress.done, execution=how, jobs=jobs, begun=begun)
    if (folder / INFO).exists():
        _show_run(records[0], folder, console, as_json=as_json)
    else:
        report_folder(folder, console, as_json=as_json, plan=begun.plan, records=records)


@contextmanager
def _resumable(folder: Path, *, new: bool = False) -> Iterator[None]:
    """Tell the user how to resume after an interruption; `new`: this command created the folder."""
    command = f"`fedpace resume {shlex.quote(str(folder))}`"
    try:
        yield
    except StorageError as error:
        if new and not _begun(folder):
            problem = str(error).partition(INTACT)[0]
            raise StorageError(f"{problem}. Nothing was recorded yet: give another folder with --out") from error
        raise StorageError(f"{error} with {command}") from error
    except KeyboardInterrupt:
        then = f"the recorded rounds are kept; {command} resumes" if _begun(folder) else "nothing was recorded yet"
        sys.stderr.write(f"interrupted: {then}\n")
        raise typer.Exit(130) from None


def _begun(folder: Path) -> bool:
    """Whether any run in the folder has recorded anything."""
    return any(folder.rglob(ROUNDS)) if folder.exists() else False


def _folder(out: Path | None, experiment: Experiment, overwrite: bool) -> Path:
    folder = out or _unused(Path("runs") / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}")
    check_folder(folder, overwrite=overwrite)
    return folder


def _announce(console: Console, experiments: list[Experiment], folder: Path, *, quiet: bool) -> None:
    if quiet:
        return
    first = experiments[0]
    names = ", ".join(scheme.label for scheme in first.schemes)
    seeds = counted(len(first.seeds), "seed")
    delays = ", ".join(experiment.delays.name for experiment in experiments)
    console.print(
        f"{first.name}: {first.data.name} with {first.model.name} under {delays} delays; {names}; {seeds}; "
        f"into {folder}",
        highlight=False,
        markup=False,
    )


def _show_run(record: RunRecord, folder: Path, console: Console, *, as_json: bool) -> None:
    last, info = record.rounds[-1], record.info
    metric = record.evaluated[-1].metric
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "label": info.label,
                "seed": info.seed,
                "status": info.status,
                "message": info.message,
                "rounds": last.number,
                "virtual_seconds": last.clock,
                "time_to_target": None if record.reached is None else record.reached.clock,
                "first_crossing": None if record.crossed is None else record.crossed.clock,
                info.metric: metric,
                "target": info.target,
                "engine": info.engine,
            }
        )
        return
    console.print(
        # The run continues until it is known that the target is held, so "reached after" would give a wrong time.
        f"{info.label}, seed {info.seed}: {'ended' if info.status == 'reached' else info.status} after {last.number} "
        f"rounds and {last.clock:,.0f} virtual seconds, {info.metric} {metric:.4g}. {info.message}{_target(record)}",
        highlight=False,
        markup=False,
    )
    if info.engine:
        said = "Engine: {name} on {device} ({why})".format_map(info.engine)
        console.print(said, highlight=False, markup=False)
    console.print(f"Recorded in {folder}", highlight=False, markup=False)


def _target(record: RunRecord) -> str:
    """Return a sentence on when the target was met and held."""
    target, crossed = record.info.target, record.crossed
    if target is None:
        return ""
    if crossed is None:
        return f"The target {target:g} was never met."
    held = "but not held" if record.reached is None else f"and is held from {record.reached.clock:,.0f} s on"
    return f"The target {target:g} was first met at {crossed.clock:,.0f} s, {held}."


def _named(text: str | None, option: str) -> dict[str, Any] | None:
    """Read `NAME(KEY=VALUE, ...)`, or `NAME:KEY=VALUE,...` and `NAME,KEY=VALUE,...`, which need no quotes."""
    if text is None:
        return None
    if "(" in text:
        return parse_named(text, option)
    name, *options = re.split("[:,]", text, maxsplit=1)
    given = [entry for entry in "".join(options).split(",") if entry]
    return {"name": name.strip(), **key_values(given, option)}


def _keys(text: str | None, option: str, example: str) -> dict[str, Any] | None:
    """Read `KEY=VALUE,...`."""
    if text is None:
        return None
    given = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not given:
        raise InputError(f"{option} takes KEY=VALUE, such as {option} {example}, but nothing came")
    return key_values(given, option)


def _unused(folder: Path) -> Path:
    """Return the folder, or one beside it with a number: two runs may begin within a second."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(found for found in itertools.chain([folder], numbered) if not found.exists())


@dataclass(frozen=True)
class Question:
    """What to report about recorded runs other than the time to their own target."""

    target: float | None = None
    hold: int | None = None
    at: float | None = None
    looks: str | None = None

    @property
    def suffix(self) -> str:
        """End of the file names, so that the reports of the runs' own target are kept."""
        asked = {"target": self.target, "hold": self.hold, "at": self.at}
        said = "".join(f"-{name}-{value:g}" for name, value in asked.items() if value is not None)
        return said if self.looks is None else f"{said}-looks-{self.looks}"


def report_folder(
    folder: Path,
    console: Console,
    *,
    as_json: bool,
    plan: Plan | None = None,
    records: Sequence[RunRecord] | None = None,
    question: Question | None = None,
) -> None:
    """Write and print the reports of all that `folder` holds: of one experiment, or of one per delay model.

    `plan` and `records` are what is in it, where that is at hand. `question` asks for another target, or for a time.
    """
    asked = question or Question()
    if records is None and (below := _comparisons(folder)):
        _report_each(below, console, as_json=as_json, question=asked)
        return
    runs = retarget(find_runs(folder) if records is None else in_order(records), asked.target, asked.hold, asked.looks)
    if plan is not None:
        names = list(plan.experiments)
    else:
        names = [] if records is not None or (folder / INFO).exists() else list(planned(folder) or {})
    if len(names) < 2:
        comparison = write_reports(runs, folder, summarise(runs, at=asked.at), suffix=asked.suffix)
        if as_json:
            print_json({"folder": str(folder), "devices": _devices(runs), **comparison.as_json()})
            return
        console.print(terminal(scheme_table(comparison), console.width))
        if (costs := cost_table(comparison)) is not None:
            console.print(terminal(costs, console.width))
        console.print(" ".join(sentences(comparison)), highlight=False, markup=False)
        for said in filter(None, [influence_sentence(runs), privacy_sentence(runs)]):
            console.print(said, highlight=False, markup=False)
        _name_files([folder], console, asked.suffix)
        return
    under = {name: [run for run in runs if run.info.experiment["delays"]["name"] == name] for name in names}
    if asked.at is not None:
        one = folder / next(iter(under))
        raise InputError(f"{folder} holds runs under several delay models: ask --at of one of them, such as {one}")
    found = {name: write_reports(some, folder / name, suffix=asked.suffix) for name, some in under.items() if some}
    content = {"delays": {name: comparison.as_json() for name, comparison in found.items()}}
    figures = report_files(folder, asked.suffix)[-1]
    with keeping(figures):
        write_atomically(figures, json_bytes(content))
    if as_json:
        print_json({"folder": str(folder), "devices": _devices(runs), **content})
        return
    console.print(terminal(delay_table(found)))
    _name_files([folder / name for name in found], console, asked.suffix)
    console.print(f"  {figures}", highlight=False, markup=False)


def _comparisons(folder: Path) -> list[Path]:
    """Return the comparisons below a folder that is none itself."""
    if (folder / INFO).exists() or (folder / PLAN).exists():
        return []
    return [place for place in comparison_folders(folder) if any(place.rglob(INFO))]


def single_comparison(folder: Path) -> Path:
    """Return the folder of the one comparison below a folder that is none itself; else the folder."""
    below = _comparisons(folder)
    if len(below) > 1:  # their schemes share labels, so together they would be mixed up
        named = "".join(f"\n  fedpace resume {shlex.quote(str(place))}" for place in below)
        raise InputError(f"{folder} holds {len(below)} comparisons; resume one of them:{named}")
    return below[0] if below else folder


def _report_each(folders: list[Path], console: Console, *, as_json: bool, question: Question) -> None:
    """Report several comparisons one after the other, because schemes of different comparisons share labels."""
    if as_json:
        asked = {place: retarget(find_runs(place), question.target, question.hold, question.looks) for place in folders}
        found = [write_reports(runs, place, suffix=question.suffix) for place, runs in asked.items()]
        content = [{"folder": str(place), **each.as_json()} for place, each in zip(folders, found, strict=True)]
        print_json({"comparisons": content})
        return
    for place in folders:
        console.print(f"\n{place}", style="bold", highlight=False, markup=False)
        report_folder(place, console, as_json=False, question=question)


def _name_files(folders: Sequence[Path], console: Console, suffix: str) -> None:
    for folder in folders:
        for path in report_files(folder, suffix):
            console.print(f"  {path}", highlight=False, markup=False)
