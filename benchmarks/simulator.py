"""The simulator against plain PyTorch loops and Flower's simulation, all interleaved in one run.

    make bench-peers && python benchmarks/simulator.py > simulator.json      a quarter of an hour on two cores
    python benchmarks/simulator.py --only overhead --turns 5
    python benchmarks/simulator.py --quick                                   a smoke test: its figures mean nothing

Prints one JSON object; progress goes to standard error. Peers live in an environment of their own, `.venv-peers`;
without it they are left out. Sections:

images    W: MNIST over 100 clients, the 20-50-500 ConvNet, 10 clients per round, 5 local epochs
overhead  V: 1,000 clients of about 100 digits, 100 a round, softmax regression and a 64-unit MLP
growth    what a round costs by its clients, and by the clients that are registered
memory    10,000 clients over MNIST, 1,000 a round
resume    runs killed at random instants and resumed (`faults.py`)

Seconds are those of a whole round: selection, training, aggregation, evaluation. The first round of each contestant is
played but not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "contestants")]  # the workload's format is the peers' too

from lib import workloads  # noqa: E402
from lib.contest import Contestant, Score, hold, ratio, rounded, say  # noqa: E402
from workload import Workload  # noqa: E402

PEERS = HERE.parent / ".venv-peers"
CORES = os.cpu_count() or 1
ROUNDS_TO_JUDGE = 6
"""After which accuracies are compared."""


@dataclass(frozen=True)
class Setting:
    """How large and how long everything is."""

    folder: Path
    turns: int
    quick: bool
    without: frozenset[str]

    def place(self, workload: Workload, name: str) -> str:
        """Write a workload and return where it is."""
        workload.save(self.folder / name)
        return str(self.folder / name)

    def contestants(self, *candidates: Contestant) -> list[Contestant]:
        """Return those that take part."""
        return [one for one in candidates if not self.without & set(one.name.split("-"))]


def contestant(name: str, program: str, *options: str, rounds: int = 1) -> Contestant:
    """Return a program of `contestants/`; Flower runs in the peers' environment."""
    python = str(PEERS / "bin" / "python") if program == "flower" else sys.executable
    return Contestant(name, (python, str(HERE / "contestants" / f"{program}.py"), *options), rounds)


def images(setting: Setting) -> dict[str, Any]:
    """W: arithmetic."""
    place = setting.place(workloads.noise() if setting.quick else workloads.images(), "images")
    scores = hold(
        setting.contestants(
            contestant("plain-sequential", "plain", place, "--channels-last"),
            contestant("plain-processes", "plain", place, "--channels-last", "--processes", str(CORES)),
            contestant("flower", "flower", place),
            contestant("flower-channels-last", "flower", place, "--channels-last"),
            contestant("fedpace-processes", "ours", place, "--engine", "processes"),
            contestant("fedpace-ray", "ours", place, "--engine", "ray"),
        ),
        turns=setting.turns,
        folder=setting.folder,
    )
    found = table(scores)
    for name, row in found.items():
        row[f"accuracy_after_{ROUNDS_TO_JUDGE}"] = scores[name].accuracy[:ROUNDS_TO_JUDGE][-1]
    return {"rounds": found} | ratios(
        scores,
        ("fedpace-processes", "plain-processes"),
        ("flower", "fedpace-processes"),
        ("flower-channels-last", "fedpace-processes"),
        ("fedpace-ray", "fedpace-processes"),
    )


def overhead(setting: Setting) -> dict[str, Any]:
    """V: everything but arithmetic."""
    sizes = {"clients": 30, "cohort": 10} if setting.quick else {}
    found: dict[str, Any] = {}
    for model in ("softmax", "mlp"):
        place = setting.place(workloads.overhead(model, **sizes), model)
        some = 1 if setting.quick else 10
        scores = hold(
            setting.contestants(
                contestant("plain-sequential", "plain", place, "--threads", "1", rounds=some),
                contestant("flower", "flower", place),
                contestant("fedpace-auto", "ours", place, rounds=some),
            ),
            turns=setting.turns,
            folder=setting.folder,
        )
        found[model] = {"rounds": table(scores)} | ratios(
            scores, ("flower", "fedpace-auto"), ("plain-sequential", "fedpace-auto")
        )
    return found


def growth(setting: Setting) -> dict[str, Any]:
    """What a round costs by its clients, and by the clients that are registered; the MLP of V."""
    sizes = [(10, 1000), (100, 1000), (1000, 1000), (100, 100), (100, 10_000)]
    if setting.quick:
        sizes = [(5, 20), (20, 20), (5, 40)]
    contestants = [
        contestant(
            f"{cohort} of {clients}",
            "ours",
            setting.place(workloads.overhead("mlp", clients=clients, cohort=cohort), f"growth-{cohort}-{clients}"),
            rounds=max(1, sizes[0][0] * 20 // cohort),
        )
        for cohort, clients in sizes
    ]
    scores = hold(contestants, turns=setting.turns, folder=setting.folder)
    return {
        "rows": [
            {
                "cohort": cohort,
                "registered": clients,
                "milliseconds_a_round": rounded(1e3 * median(scores[f"{cohort} of {clients}"].seconds)),
                "milliseconds_a_client": rounded(1e3 * median(scores[f"{cohort} of {clients}"].seconds) / cohort),
            }
            for cohort, clients in sizes
        ]
    }


def memory(setting: Setting) -> dict[str, Any]:
    """The most memory that a large federation takes."""
    workload = workloads.noise() if setting.quick else workloads.images(clients=10_000, cohort=1000, rounds=4)
    player = contestant("fedpace-auto", "ours", setting.place(workload, "memory"))
    score = hold([player], turns=1, folder=setting.folder, memory=True)[player.name]
    return {
        "clients": workload.clients,
        "cohort": int(workload.cohorts.shape[1]),
        "seconds_a_round": rounded(score.seconds[0]),
        "peak_gib": rounded(score.peak_bytes / 2**30),
    }


def resume(setting: Setting) -> dict[str, Any]:
    """Runs that are killed and resumed."""
    command = [sys.executable, str(HERE / "faults.py"), "--kinds", "inline", "--trials", "2" if setting.quick else "20"]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


SECTIONS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "images": images,
    "overhead": overhead,
    "growth": growth,
    "memory": memory,
    "resume": resume,
}


def table(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    """Return everybody's seconds per round."""
    return {
        name: {"seconds_a_round": rounded(median(score.seconds)), "by_turn": [rounded(s) for s in score.seconds]}
        for name, score in scores.items()
    }


def ratios(scores: dict[str, Score], *pairs: tuple[str, str]) -> dict[str, Any]:
    """Return how many times longer the first of each pair takes, where both took part."""
    return {
        "times_longer": {
            f"{above} / {below}": ratio(scores[above], scores[below])
            for above, below in pairs
            if above in scores and below in scores
        }
    }


def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--turns", type=int, default=7, help="timed turns of every contestant")
    parser.add_argument(
        "--without", default="", help="leave out contestants: flower, ray or plain, separated by commas"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one turn")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(unknown)}: known are {', '.join(SECTIONS)}")
    without = frozenset(options.without.split(","))
    if not PEERS.exists() and "flower" not in without:
        say("no peers are installed: Flower is left out; `make bench-peers` installs it")
        without |= {"flower"}
    result: dict[str, Any] = {
        "benchmark": "simulator",
        "cores": CORES,
        "python": platform.python_version(),
        "turns": 1 if options.quick else options.turns,
        "without": sorted(without - {""}),
        "load_before": rounded(os.getloadavg()[0]),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # contestants are then ended too
    started = time.perf_counter()
    for name in wanted:
        say(f"{name}: {SECTIONS[name].__doc__}")
        # A short name: Ray's sockets lie in it, and theirs have a limit.
        with tempfile.TemporaryDirectory(prefix="fp-") as folder:
            setting = Setting(Path(folder), result["turns"], options.quick, without)
            begin = time.perf_counter()
            result[name] = SECTIONS[name](setting) | {"section_seconds": rounded(time.perf_counter() - begin)}
    result["seconds"] = rounded(time.perf_counter() - started)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
