"""What a person sees while runs go on: a live bar on a terminal, a line a run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedpace.config import Experiment, Scheme
from fedpace.sim.round import Round


class RunProgress:
    """Follows the runs of an experiment. Its `watch` is what the runner calls after every round."""

    def __init__(self, experiment: Experiment, runs: int, console: Console, *, quiet: bool = False) -> None:
        self._experiment = experiment
        self._runs = runs
        self._console = console
        self._lines = not quiet and not console.is_terminal
        self._bar = Progress(
            TextColumn("{task.fields[scheme]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TextColumn("runs"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._done = 0
        self._current: tuple[str, int] | None = None
        self._last: Round | None = None
        self._began = time.monotonic()

    def __enter__(self) -> RunProgress:
        """Show the bar."""
        self._bar.start()
        self._task = self._bar.add_task("", total=self._runs, scheme="", state="", eta="")
        return self

    def watch(self, scheme: Scheme, seed: int, current: Round) -> None:
        """Take in a round."""
        if self._current != (scheme.label, seed):
            self._close_run()
            self._current = (scheme.label, seed)
        self._last = current
        assert self._task is not None
        fraction = self._done + self._experiment.stop.progress(current)
        self._bar.update(
            self._task,
            completed=self._done,
            scheme=f"{scheme.label}, seed {seed}",
            state=f"round {current.number}  {current.clock:,.0f} s virtual  {self._metric(current)}",
            eta=f"ETA {self._remaining(fraction)}",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if error is None:
            self._close_run()
        self._bar.stop()

    def _close_run(self) -> None:
        if self._current is None or self._last is None:
            return
        self._done += 1
        if self._lines:
            label, seed = self._current
            self._console.print(
                f"[{self._done}/{self._runs}] {label}, seed {seed}: {self._last.number} rounds, "
                f"{self._last.clock:,.0f} s virtual, {self._metric(self._last)}",
                highlight=False,
                markup=False,
            )

    def _metric(self, current: Round) -> str:
        return f"{self._experiment.data.metric} {current.metric:.4g}"

    def _remaining(self, fraction: float) -> str:
        """An upper estimate: a run that reaches its target early hands its time back."""
        if fraction <= 0:
            return "--:--"
        elapsed = time.monotonic() - self._began
        seconds = int(elapsed * (self._runs - fraction) / fraction)
        return f"{seconds // 60}:{seconds % 60:02d}"
