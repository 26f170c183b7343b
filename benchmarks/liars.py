"""What lying clients cost: virtual seconds to the target, by lie, by number of liars, by scheme; defences off and on.

    python benchmarks/liars.py --out runs/liars --seeds 0,1,2                 everything; what is there is not run again
    python benchmarks/liars.py --schemes pace --lies "delay / 100" --who 20%
    python benchmarks/liars.py --from benchmarks/liars.json --png docs/liars.png         nothing is run: table, picture
    python benchmarks/liars.py --schemes pace-async --seeds 30,31 --trust on --out runs/anew \
        --update benchmarks/liars.json --png docs/liars.png      one scheme's rows anew, the others' as they are there

The experiment is the embedded one (`fedpace compare`): 60 clients with handwritten digits, long-tailed delays, a
target accuracy that must be held; but everybody is heard in a warm-up that is free, as in the paper, so that liars are
in from the beginning. Liars are drawn by the seed, or are the slowest or fastest clients. Times are relative to the
same scheme's under the same seed with honest clients and the defences off. `never` = the target was not held within 10
times the honest time, or 100 rounds where that is longer. `not there`: the clients that would lie are left out from the
beginning: what is lost with them, however well they are found.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lib.liars_shown import costs, markdown, picture
from lib.lying import LIES, corrupt

from fedpace._base.checks import IntArray
from fedpace._base.errors import FedpaceError
from fedpace._base.rng import stream
from fedpace.config import Overrides, load_experiment
from fedpace.config.experiment import Experiment
from fedpace.records.holding import held_from
from fedpace.registry import selectors
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.stopping import Ending, until

SCHEMES: dict[str, dict[str, Any]] = {
    "pace": {},
    "delayhet-submodular": {"ridge": 1.0},
    "delayhet-sampling": {"k": 10},
    "oort": {"k": 10},
    "random": {"k": 10},
    "pace-async": {},
}
WHO = ("1", "20%", "20% slowest")
FASTEST = ("1 fastest", "20% fastest")
"""Those that answer first, before there is anybody to compare them with."""
ALONE = ("pace", "pace-async")
"""Schemes that ask the fastest alone where these seem to do, so that it matters whether they lie."""
PATIENCE = 10.0
"""Times the honest time after which a run is given up."""
FEWEST = 100
"""Rounds that a run is given in any case."""
MOST = 400
MOMENTS = ("pace", "delayhet-submodular", "delayhet-sampling", "pace-async")
"""Schemes that look at moments: lies about them mean nothing to the others."""


def liars(who: str, delays: Any, seed: int) -> IntArray:
    """Return the clients that lie."""
    count = 1 if who.startswith("1") else max(1, round(0.2 * len(delays)))
    if who.endswith("slowest"):
        return np.sort(np.argsort(delays)[-count:])
    if who.endswith("fastest"):
        return np.sort(np.argsort(delays)[:count])
    return np.sort(stream(seed, "liars").choice(len(delays), count, replace=False))


def federation(experiment: Experiment, scheme: str, seed: int, *, trust: bool) -> Simulation:
    """Return a federation of the experiment under a scheme, with the defences or without."""
    return Simulation(
        experiment.data,
        experiment.model,
        experiment.delays,
        selectors[scheme](**SCHEMES[scheme]),
        training=experiment.training,
        fleet=replace(experiment.fleet, trust=trust),
        clock=experiment.clock,
        seed=seed,
    )


def embedded() -> Experiment:
    """Return the experiment: the embedded one, with a free warm-up in which everybody is heard."""
    experiment = load_experiment(None, Overrides(arithmetic="torch"))  # what the recorded runs were trained with
    return replace(experiment, clock=Clock(), fleet=Fleet())


def seconds_to_target(
    experiment: Experiment, scheme: str, lie: str, who: str, seed: int, *, trust: bool, honest: float | None
) -> dict[str, Any]:
    """Run one federation until its target is held, or given up."""
    limit = math.inf if honest is None else PATIENCE * honest
    stop = replace(experiment.stop, max_rounds=MOST)
    simulation = federation(experiment, scheme, seed, trust=trust)
    delays = simulation.expected_delays
    corrupt(simulation, liars(who, delays, seed), LIES[lie])
    ending = Ending(stop, experiment.direction, delays.tolist())
    played: list[tuple[float, float | None]] = []
    heaviest, problem = 0.0, ""
    try:
        for current in until(simulation.rounds(), ending):
            played.append((current.clock, current.metric))
            if current.mode == "average":
                heaviest = max(heaviest, *current.weights, 0.0)
            if current.number >= FEWEST and current.clock > limit:
                break
    except FedpaceError as error:
        problem = str(error)
    every = stop.spacing(delays.tolist())
    held = held_from(played, stop.target, experiment.direction, hold=stop.hold, every=every)[1]
    seconds = None if held is None else played[held][0]
    return {"seconds": seconds, "rounds": len(played) - 1, "heaviest": round(heaviest, 4), "problem": problem}


def key(scheme: str, lie: str, who: str, seed: int, trust: bool) -> str:
    """Name a run."""
    return f"{scheme} | {lie} | {who} | {seed} | {'on' if trust else 'off'}"


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int, bool]]:
    """Yield the runs, honest ones first."""
    lies = [lie for lie in LIES if lie != "honest" and (not options.lies or lie in options.lies.split(";"))]
    seeds, who = [int(seed) for seed in options.seeds.split(",")], options.who.split(",") if options.who else None
    schemes, trusts = options.schemes.split(","), [word == "on" for word in options.trust.split(",")]
    for seed, scheme, trust in product(seeds, schemes, sorted({False, *trusts})):  # all is relative to the first
        yield scheme, "honest", "1", seed, trust
    for lie, group, scheme, seed, trust in product(lies, who or (*WHO, *FASTEST), schemes, seeds, trusts):
        if ("moment" in lie and scheme not in MOMENTS) or (scheme == "random" and "delay" in lie):
            continue
        if who is None and group in FASTEST and scheme not in ALONE:
            continue
        yield scheme, lie, group, seed, trust


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/liars", help="folder of the runs")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--lies", default="", help="separated by semicolons; all where left out")
    parser.add_argument("--who", default="", help="who lies; all, and the fastest where a scheme asks them alone")
    parser.add_argument("--trust", default="off,on", help="the defences: off, on or both")
    parser.add_argument("--part", default="0/1", help="of the runs, so that several processes can share them")
    parser.add_argument("--from", dest="source", help="show the runs in this file, and run nothing")
    parser.add_argument("--json", help="write all runs into this file")
    parser.add_argument("--update", help="the same, but keep the runs of other schemes that are in it")
    parser.add_argument("--png", help="draw them")
    options = parser.parse_args()
    if options.source:
        show(json.loads(Path(options.source).read_text()), options)
        return
    experiment = embedded()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    done = read(folder)
    part, parts = (int(word) for word in options.part.split("/"))
    for number, run in enumerate(wanted(options)):
        scheme, lie, who, seed, trust = run
        if number % parts != part or key(*run) in done:
            continue
        honest = done.get(key(scheme, "honest", "1", seed, False), {}).get("seconds")
        found = seconds_to_target(experiment, scheme, lie, who, seed, trust=trust, honest=honest)
        done[key(*run)] = found
        with (folder / f"runs-{part}.jsonl").open("a") as file:
            file.write(json.dumps({"run": key(*run), **found}) + "\n")
        print(key(*run), found, file=sys.stderr, flush=True)
    if options.update:
        others = json.loads(Path(options.update).read_text())
        done |= {name: run for name, run in others.items() if name.split(" | ")[0] not in options.schemes.split(",")}
        options.json = options.update
    show(done, options)


def show(done: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the table, and write what was asked for."""
    found = costs(done)
    print(markdown(found, list(SCHEMES), list(LIES), (*WHO, *FASTEST)))
    if options.json:
        Path(options.json).write_text(json.dumps(dict(sorted(done.items())), indent=0) + "\n")
    if options.png:
        picture(found, list(SCHEMES), list(LIES), WHO, Path(options.png))


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the runs that are there."""
    lines = [line for path in sorted(folder.glob("runs-*.jsonl")) for line in path.read_text().splitlines()]
    return {raw.pop("run"): raw for raw in map(json.loads, lines)}


if __name__ == "__main__":
    main()
