"""`RunProgress` shows the progress of runs: live bars on a terminal, one line per finished run elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedpace.records.run import Round
from fedpace.runner import Job


@dataclass
class _Running:
    """A run in progress."""

    job: Job
    bar: TaskID
    last: Round
    metric: float | None
    """Metric at the last evaluation."""

    @property
    def fraction(self) -> float:
        """Used share of the run's rounds or seconds; the run may end earlier."""
        return self.job.experiment.stop.progress(self.last)

    def state(self) -> str:
        """Return the round, the virtual time and the metric as text."""
        metric = "" if self.metric is None else f"  {self.job.experiment.data.metric} {self.metric:.4g}"
        return f"round {self.last.number}  {self.last.clock:,.0f} s virtual{metric}"


class RunProgress:
    """Shows the progress of `runs` runs; pass its methods `watch` and `done` to the runner."""

    def __init__(self, runs: int, console: Console, *, quiet: bool = False) -> None:
        self._runs = runs
        self._console = console
        self._lines = not quiet and not console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._all = self._bars.add_task("all runs", total=runs, state="")
        self._running: dict[Path, _Running] = {}
        self._done = 0
        self._began = time.monotonic()

    def __enter__(self) -> RunProgress:
        """Start the display."""
        self._bars.start()
        return self

    def watch(self, job: Job, current: Round) -> None:
        """Update the display after a round."""
        run = self._running.get(job.folder)
        if run is None:
            bar = self._bars.add_task(job.name, total=1.0, state="", visible=self._runs > 1)
            run = self._running[job.folder] = _Running(job, bar, current, None)
        run.last = current
        run.metric = run.metric if current.metric is None else current.metric
        self._bars.update(run.bar, completed=run.fraction, state=run.state())
        self._show_all(run)

    def done(self, job: Job) -> None:
        """Update the display after a job, and all jobs reclocked from it, have ended."""
        for each in job.all:
            run = self._running.pop(each.folder, None)
            if run is None:
                continue  # it was already complete before the comparison was resumed
            self._done += 1
            self._bars.remove_task(run.bar)
            self._show_all(run)
            if self._lines:
                metric = "" if run.metric is None else f", {each.experiment.data.metric} {run.metric:.4g}"
                self._console.print(
                    f"[{self._done}/{self._runs}] {each.name}: {run.last.number} rounds, ended at "
                    f"{run.last.clock:,.0f} s{metric}",
                    highlight=False,
                    markup=False,
                )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the display."""
        if error is None:
            for run in list(self._running.values()):
                self.done(run.job)
        self._bars.stop()

    def _show_all(self, run: _Running) -> None:
        fraction = self._done + sum(other.fraction for other in self._running.values())
        state = f"{self._done} of {self._runs}" if self._runs > 1 else f"{run.job.name}  {run.state()}"
        self._bars.update(self._all, completed=fraction, state=f"{state}  {self._remaining(fraction)}")

    def _remaining(self, fraction: float) -> str:
        """Return an upper estimate of the remaining time; runs that hold their target end earlier."""
        if fraction <= 0:
            return "ETA --:--"
        elapsed = time.monotonic() - self._began
        seconds = int(elapsed * max(0.0, self._runs - fraction) / fraction)
        return f"ETA {seconds // 60}:{seconds % 60:02d}"
