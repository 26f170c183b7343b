"""Is a run that was killed and resumed the run that was never killed? Prints one JSON object.

    python benchmarks/kill_and_resume.py --instants 20
    python benchmarks/kill_and_resume.py --every-write

Every trial is a process of its own, ended with SIGKILL: at a random instant of its life, or just before the n-th time
that it makes the disk catch up (`fsync`), for every n, so that each gap between two files of a checkpoint is met.
Another process then resumes it. `rounds.jsonl` and `model.safetensors` must be the bytes of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedpace.config import parse_experiment
from fedpace.runner import Execution, Job, run_job

TABLE = {
    "name": "killed",
    "seeds": 1,
    "data": {"name": "quadratic", "clients": 20, "samples": 10, "test_samples": 10, "dimension": 8},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"epochs": 1, "batch": 0, "lr": 0.01, "algorithm": "scaffold"},
    "fleet": {"delays": "observed"},
    "availability": {"on": 3.0, "off": 1.0, "crash": 0.1},
    "selectors": [
        {"name": "oort", "k": 5},
        {"name": "delayhet-submodular", "target_heterogeneity": 0.5},
        {"name": "pace"},
    ],
}
EVERY_ROUND = Execution(checkpoint_every=0.0)


def job(folder: Path, rounds: int, scheme: int) -> Job:
    """Return a run that uses everything a checkpoint must hold."""
    experiment = parse_experiment({**TABLE, "stop": {"max_rounds": rounds}}, "kill_and_resume")
    return Job(experiment, experiment.schemes[scheme], 0, folder)


def in_a_process(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Run `work` in a process forked from this one, killed after some seconds; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_write(which: int, work: Callable[[], object]) -> Callable[[], object]:
    """Return `work`, ended by SIGKILL just before its `which`-th fsync."""
    real, calls = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == which:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    def doomed() -> None:
        os.fsync = fsync
        work()

    return doomed


def digest(folder: Path) -> dict[str, str]:
    """Return what must come out the same."""
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("rounds.jsonl", "model.safetensors")
    }


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instants", type=int, default=20, help="random instants to kill at")
    parser.add_argument("--every-write", action="store_true", help="kill before every fsync instead")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedpace-kill-") as folder:
        found = Trials(Path(folder), options.rounds)
        if options.every_write:
            found.before_every_write()
        else:
            found.at_random(options.instants, random.Random(options.seed))
    instants = "before every fsync" if options.every_write else "random"
    print(json.dumps({"benchmark": "kill_and_resume", "instants": instants, "rounds": options.rounds, **found.counts}))
    sys.exit(0 if found.counts["identical"] == found.counts["trials"] else 1)


class Trials:
    """Runs, killed and resumed, beside those that were left alone."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.counts = dict.fromkeys(("trials", "killed", "identical", "in_a_checkpoint", "from_a_checkpoint"), 0)
        self.seconds: list[float] = []
        self.expected: list[dict[str, str]] = []
        for scheme in range(len(TABLE["selectors"])):
            job(folder, rounds, scheme).simulation()  # what it imports, the processes forked from this one have too
            began = time.monotonic()
            assert in_a_process(self.work(scheme, "whole")) == 0, "it could not be run"
            self.seconds.append(time.monotonic() - began)
            self.expected.append(digest(folder / "whole"))
            shutil.rmtree(folder / "whole")

    def work(self, scheme: int, name: str = "trial") -> Callable[[], object]:
        """Return what begins or resumes a run."""
        return lambda: run_job(job(self.folder / name, self.rounds, scheme), EVERY_ROUND)

    def at_random(self, count: int, chance: random.Random) -> None:
        """Kill at random instants; a run that had ended by then is no trial."""
        while self.counts["trials"] < count:
            scheme = self.counts["trials"] % len(self.expected)
            status = in_a_process(self.work(scheme), kill_after=chance.uniform(0, self.seconds[scheme]))
            if status == 0:
                shutil.rmtree(self.folder / "trial")
            else:
                self._resume(scheme, status)

    def before_every_write(self) -> None:
        """Kill before each fsync, until a run gets by with fewer."""
        for scheme in range(len(self.expected)):
            for which in itertools.count(1):
                status = in_a_process(killed_at_write(which, self.work(scheme)))
                self._resume(scheme, status)
                if status == 0:
                    break

    def _resume(self, scheme: int, status: int) -> None:
        trial = self.folder / "trial"
        names = [path.name for path in trial.iterdir()] if trial.exists() else []
        assert in_a_process(self.work(scheme)) == 0, "it could not be resumed"
        self.counts["trials"] += 1
        self.counts["killed"] += status == -signal.SIGKILL
        self.counts["identical"] += digest(trial) == self.expected[scheme]
        self.counts["in_a_checkpoint"] += any(name.startswith(".checkpoint-") for name in names)
        self.counts["from_a_checkpoint"] += any(name.startswith("checkpoint-") for name in names)
        shutil.rmtree(trial)


if __name__ == "__main__":
    main()
