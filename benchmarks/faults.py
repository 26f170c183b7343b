"""Is what was killed and gone on with the same as what was never killed? Prints one JSON object.

    python benchmarks/faults.py --trials 100                     random instants, over all engines and hosts
    python benchmarks/faults.py --kinds inline --only async --trials 20
    python benchmarks/faults.py --every-write --rounds 2         just before each change of the disk instead

Every trial is a process of its own, ended with SIGKILL: at a random instant of its life, or just before the n-th time
that it changes the disk (a file's content or name), for every n, so that each gap between two changes is met. Another
process then goes on in the same folder. Records and model must be those of an uninterrupted run, to the byte.

Kinds: `inline`, `processes` and `ray` are the simulator's engines, with schemes in rounds and without (fedbuff,
pace-async); `server` is what Flower's and NVFlare's servers share, and `flower` are both servers of Flower's, with real
messages. In rounds a kill must not show at all. A server without rounds asks whoever was at work anew when it comes
back, so that a kill shows; it must show as a stop does: records and model are, to the byte, those of a server that
ended after the last step that was saved and was started again. Every step is there once, no answer is in two, and
nobody is blamed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.killed import ASYNC_SCHEMES, Subject, subjects

KINDS = ("inline", "processes", "server", "flower")
WRITES = ("fsync", "pwrite", "replace", "rename", "unlink", "rmdir")
"""Calls by which the disk is changed: a file's content, its name, or that it is gone."""


def in_a_process(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Run `work` in a process forked from this one, killed after some seconds; return how it ended."""
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
            work()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that it left behind
    return status


def killed_at_write(which: int, work: Callable[[], object]) -> Callable[[], object]:
    """Return `work`, ended by SIGKILL just before the `which`-th time that it changes the disk."""
    calls = itertools.count(1)

    def doomed(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == which:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    def begin() -> None:
        for name in WRITES:
            setattr(os, name, doomed(getattr(os, name)))
        work()

    return begin


def main() -> None:
    """Kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="random instants to kill at, over all subjects")
    parser.add_argument("--every-write", action="store_true", help="kill before every change of the disk instead")
    parser.add_argument("--kinds", default=",".join(KINDS), help="engines and hosts; also: ray")
    parser.add_argument("--only", choices=("rounds", "async", "all"), default="all", help="schemes")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    options = parser.parse_args()
    chosen = [
        subject
        for subject in subjects(options.kinds.split(","), options.rounds)
        if options.only == "all" or (subject.name.split(": ")[1] in ASYNC_SCHEMES) == (options.only == "async")
    ]
    with tempfile.TemporaryDirectory(prefix="fedpace-faults-") as folder:
        found = Trials(Path(folder), chosen)
        if options.every_write:
            found.before_every_write()
        else:
            found.at_random(options.trials, random.Random(options.seed))
    instants = "before every write" if options.every_write else "random"
    print(json.dumps({"benchmark": "faults", "instants": instants, "rounds": options.rounds, **found.summary()}))
    sys.exit(0 if found.counts["identical"] == found.counts["trials"] else 1)


class Trials:
    """Runs, killed and gone on with, beside those that were left alone."""

    def __init__(self, folder: Path, chosen: list[Subject]) -> None:
        self.folder, self.chosen = folder, chosen
        self.counts: Counter[str] = Counter(trials=0, killed=0, identical=0, in_a_checkpoint=0, from_a_checkpoint=0)
        self.of: dict[str, Counter[str]] = {subject.name: Counter(trials=0, identical=0) for subject in chosen}
        self.seconds: list[float] = []
        self._expected: dict[tuple[str, int], dict[str, str]] = {}
        for subject in chosen:
            began = time.monotonic()
            self.expected(subject)
            self.seconds.append(time.monotonic() - began)

    def expected(self, subject: Subject, saved: int = 0) -> dict[str, str]:
        """Return what comes of it where nobody kills it, but it is stopped after the step `saved` and started again."""
        if (subject.name, saved) not in self._expected:
            whole = self.folder / "whole"
            if saved and (stopped := subject.stopped) is not None:
                assert in_a_process(lambda: stopped(whole, saved)) == 0, f"{subject.name} could not be stopped"
            assert in_a_process(self.work(subject, "whole")) == 0, f"{subject.name} could not be run"
            self._expected[subject.name, saved] = subject.result(whole)
            shutil.rmtree(whole)
        return self._expected[subject.name, saved]

    def work(self, subject: Subject, name: str = "trial") -> Callable[[], object]:
        """Return what begins or goes on."""
        return lambda: subject.work(self.folder / name)

    def at_random(self, count: int, chance: random.Random) -> None:
        """Kill at random instants; a run that had ended by then is no trial."""
        while self.counts["trials"] < count:
            which = self.counts["trials"] % len(self.chosen)
            work = self.work(self.chosen[which])
            status = in_a_process(work, kill_after=chance.uniform(0, self.seconds[which]))
            if status == 0:
                shutil.rmtree(self.folder / "trial")
            else:
                self._go_on(which, status)

    def before_every_write(self) -> None:
        """Kill before each change of the disk, until a run gets by with fewer."""
        for which, subject in enumerate(self.chosen):
            for write in itertools.count(1):
                status = in_a_process(killed_at_write(write, self.work(subject)))
                self._go_on(which, status)
                if status == 0:
                    break

    def _go_on(self, which: int, status: int) -> None:
        subject, trial = self.chosen[which], self.folder / "trial"
        names = [path.name for path in trial.iterdir()] if trial.exists() else []
        expected = self.expected(subject, subject.saved(trial))
        assert in_a_process(self.work(subject)) == 0, f"{subject.name} could not be gone on with"
        same = subject.result(trial) == expected
        self.of[subject.name] += Counter(trials=1, identical=same)
        self.counts["trials"] += 1
        self.counts["killed"] += status == -signal.SIGKILL
        self.counts["identical"] += same
        self.counts["in_a_checkpoint"] += any(name.startswith(".") for name in names)
        self.counts["from_a_checkpoint"] += any(name.startswith(("checkpoint", "paced")) for name in names)
        shutil.rmtree(trial)
        print(f"{subject.name}: {'identical' if same else 'ANOTHER RESULT'}", file=sys.stderr, flush=True)

    def summary(self) -> dict[str, Any]:
        """Return the counts, in all and per subject."""
        return {**self.counts, "of": {name: f"{c['identical']} of {c['trials']}" for name, c in self.of.items()}}


if __name__ == "__main__":
    main()
