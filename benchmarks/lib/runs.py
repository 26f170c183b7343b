"""Runs that are kept: one line of JSON each, so that a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Found = dict[str, Any]


class Runs:
    """The runs of a benchmark, by their names.

    Args:
        folder: where they are; what is there is not run again.
        part: `i/n`: this process takes every n-th run, from the i-th on, and writes a file of its own.
    """

    def __init__(self, folder: str | Path, part: str = "0/1") -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.part, self.parts = (int(word) for word in part.split("/"))
        if not 0 <= self.part < self.parts:
            raise SystemExit(f"--part {part}: parts of {self.parts} are numbered from 0 to {self.parts - 1}")
        self.done = read(self.folder)
        self.commit = commit()

    def mine(self, wanted: Iterable[T]) -> Iterator[T]:
        """Yield those of the runs that this process takes."""
        return (run for number, run in enumerate(wanted) if number % self.parts == self.part)

    def add(self, name: str, found: Found) -> Found:
        """Keep a run with the commit that made it, and return it."""
        found = {**found, "commit": self.commit}
        self.done[name] = found
        with (self.folder / f"runs-{self.part}-{self.parts}.jsonl").open("a") as file:
            file.write(json.dumps({"run": name, **found}) + "\n")
        print(name, found, file=sys.stderr, flush=True)
        return found


def commit() -> str:
    """Return the short hash of the commit that runs, with a `+` if files were changed since; empty without Git."""
    here = Path(__file__).parent
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.stdout.strip()


def read(folder: Path) -> dict[str, Found]:
    """Return the runs in a folder; a line that was cut off when its process was stopped is left out."""
    found: dict[str, Found] = {}
    for path in sorted(folder.glob("runs-*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                run = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[run.pop("run")] = run
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
