"""Real seconds to a held accuracy on Flower's deployment engine: SuperNodes on loopback that really sleep.

    python benchmarks/flower_seconds.py --out runs/flower-seconds --seeds 0,1,2         what is there is not run again
    python benchmarks/flower_seconds.py --out runs/flower-seconds --json benchmarks/flower_seconds.json
    python benchmarks/flower_seconds.py --out runs/flower-seconds --spent benchmarks/flower_decisions.json

Twelve nodes with digits (Dirichlet 0.3) sleep for 0.2 to 20 s per task, spread geometrically and dealt out by the seed,
times a lognormal draw of 20 %; Flower's own seconds per task come on top (`lib/flower_starter.py` keeps the nodes from
waiting for one another's imports, as they would not on machines of their own). Softmax regression, five local epochs at
a rate of 0.1. A target counts from when it is held: the mean over eight instants, five seconds apart, meets it. Seconds
are counted from when all nodes are connected, and everything is in them: names, warm-up, saving.

All of it needs half a core, but at once: where other programs keep every core busy, messages wait for one, and the
seconds are those of the machine. So each run notes how long the SuperLink waited for a core per second of its work, and
what the cores did; one that waited more than `--starved` (6) is left out of the tables and said so.

`random-6` is Flower's FedAvg with six nodes a round, `everybody` with all of them, `pace` is PacedStrategy around
FedAvg, `fedbuff-2` (a buffer of two) and `pace-async` are PacedServer. `pace-async+work` is the same with `work =
"adaptive"`; nodes sleep and train for fewer epochs where it asks for less. It runs if `--contestants` names it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from lib.flower_shown import draw, server_seconds, tables
from lib.flower_starter import start_quickly

HERE = Path(__file__).resolve().parent
APP = HERE / "flower_seconds_app"
CONTESTANTS = ("random-6", "everybody", "pace", "fedbuff-2", "pace-async")
SPENT = ("contestant", "seed", "steps", "seconds", "starved", "machine", "spent")
"""What `--spent` keeps of a run."""
QUIET = 25.0
"""Seconds between runs: tasks that were given up with the last one end meanwhile."""


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/flower-seconds"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a run is given up")
    parser.add_argument("--starved", type=float, default=6.0, help="what a run may have waited for a core")
    parser.add_argument("--json", type=Path, help="write the results there, without running anything")
    parser.add_argument(
        "--spent", type=Path, help="write where the servers' seconds went there, without running anything"
    )
    parser.add_argument("--png", type=Path, help="draw the results there")
    options = parser.parse_args()
    out = options.out.resolve()
    if options.json is None and options.spent is None:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        run(out, seeds, options.contestants.split(","), target=options.target, limit=options.limit)
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*-[0-9]*.json"))]
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=None).replace('{"cont', '\n{"cont') + "\n", encoding="utf-8")
    if options.spent is not None:
        kept = [{key: result[key] for key in SPENT} for result in found if result["spent"]]
        options.spent.write_text(json.dumps(kept).replace('{"cont', '\n{"cont') + "\n", encoding="utf-8")
        print(*server_seconds(kept, options.contestants.split(",")), sep="\n")
        return
    starved = [result for result in found if result["starved"] > options.starved]
    if starved:
        print("left out, since other programs kept the cores busy:", *map(summary, starved), "", sep="\n")
    kept = [result for result in found if result not in starved]
    contestants = options.contestants.split(",")
    print(*tables(kept, contestants), sep="\n")
    if options.png is not None:
        draw(kept, contestants, options.target, options.png)


def run(out: Path, seeds: list[int], contestants: list[str], *, target: float, limit: float) -> None:
    """Run all that is not there yet, on one federation."""
    sys.path.insert(0, str(APP))
    from seconds_app import task

    missing = [(seed, name) for seed in seeds for name in contestants if not (out / f"{name}-{seed}.json").exists()]
    out.mkdir(parents=True, exist_ok=True)
    with local().Federation(out / "federation", app=APP) as federation:
        start_quickly(federation)
        federation.superlink()
        for node in range(task.NODES if missing else 0):
            federation.supernode(node, task.NODES)
        for seed, name in missing:
            config = {"contestant": name, "seed": seed, "data": str(task.write(out, seed)), "out": str(out)}
            log = f"run-{name}-{seed}"
            before, machine = core_seconds(federation.last_superlink.pid), Machine()
            federation.launch(log, target=target, limit=limit, **config)
            path, patience = out / f"{name}-{seed}.json", time.monotonic() + limit + 300
            while not path.exists() and time.monotonic() < patience:
                time.sleep(0.5)  # not for `flwr run`: where a machine is busy, its stream of the log breaks off
            if not path.exists():
                raise SystemExit(f"{name} under seed {seed} failed:\n{federation.output(log)[-5000:]}")
            ran, waited = (b - a for a, b in zip(before, core_seconds(federation.last_superlink.pid), strict=True))
            result = {**json.loads(path.read_text()), "starved": round(waited / ran, 2), "machine": machine.since()}
            path.write_text(json.dumps(result), encoding="utf-8")
            print(summary(result), flush=True)
            time.sleep(QUIET)


def core_seconds(pid: int) -> tuple[float, float]:
    """Return how long the threads of a process ran, and how long they waited for a core."""
    tables = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(table[0]) for table in tables) / 1e9, sum(int(table[1]) for table in tables) / 1e9


class Machine:
    """What all cores did between two looks: shares of their time, and the load."""

    def __init__(self) -> None:
        self._before = self._look()

    def since(self) -> dict[str, float]:
        """Return the shares in percent: programs at the usual priority (ours among them), niced ones, the kernel."""
        spent = [after - before for before, after in zip(self._before, self._look(), strict=True)]
        names = ("usual", "niced", "kernel", "idle")
        shares = {name: round(100 * part / max(1, sum(spent)), 1) for name, part in zip(names, spent, strict=False)}
        return {**shares, "load": os.getloadavg()[1]}

    def _look(self) -> list[int]:
        return [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def local() -> Any:
    """Return the example's module that starts and stops federations."""
    spec = importlib.util.spec_from_file_location("local", HERE.parent / "examples" / "flower_digits" / "local.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(result: dict[str, Any]) -> str:
    """Return a run in one line."""
    held = "not held" if result["held"] is None else f"held from {result['held']:.0f} s"
    run = f"seed {result['seed']}, {result['contestant']}"
    words = f"{run}: {held}, {result['steps']} steps in {result['seconds']:.0f} s"
    return f"{words}; a core was waited for {result['starved']:.2f} s per second of work"


if __name__ == "__main__":
    main()
