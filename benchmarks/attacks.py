"""What attackers do to a federation: by attack, by who they are, by scheme and by defence.

    python benchmarks/attacks.py --json benchmarks/attacks.json --png docs/attacks.png   what is there is not run again
    python benchmarks/attacks.py --part 0/2 & python benchmarks/attacks.py --part 1/2    two processes share the runs
    python benchmarks/attacks.py --schemes pace --attacks "alie;ipm" --who "20% fastest" --defences off,default
    python benchmarks/attacks.py --from benchmarks/attacks.json --png docs/attacks.png   nothing is run
    python benchmarks/attacks.py --quick                                                 a few cells: whether it runs

The experiment is the embedded one (`fedpace compare`: 60 clients with handwritten digits, long-tailed delays), with a
Dirichlet parameter of 0.3. Attacks: `lib/attacks.py`. Attackers are drawn by the seed, or are the fastest clients.

A run lasts for three times as long as the honest run without a defence took to hold the target, and as long again as it
takes to see that the target is held; and for 100 steps in any case, so that a late turn is seen. What counts is the
mean accuracy of the last ten steps, and the seconds to hold the target: over those of the honest run, and over those of
the same fleet without the attackers (`not there`: with the fastest gone nobody can be as fast). Of the backdoor, the
share of triggered test images of other classes that are taken for its target. The cells that matter most come first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lib.attacks import ATTACKS, GONE, HONEST, attack, attackers, success
from lib.attacks_shown import NOBODY, cells, markdown, picture
from lib.defences import DEFAULT, DEFENCES, OFF, RULES, VALIDATED, defended, seen
from lib.runs import Found, Runs

from fedpace._base.errors import FedpaceError
from fedpace._base.registry import selectors
from fedpace.config import Experiment, Overrides, load_experiment
from fedpace.core.server_rule import Vector
from fedpace.records.holding import held_from
from fedpace.records.run import Round
from fedpace.sim.rounds import Simulation

SCHEMES: dict[str, dict[str, Any]] = {"pace-async": {}, "pace": {}, "random": {"k": 10}, "fedbuff": {}}
WHO = ("20% fastest", "10% fastest", "20% random", "10% random")
ONE = "1 fastest"
"""Enough for a backdoor."""
USUAL = tuple(name for name in ATTACKS if name not in (HONEST, GONE) and "omniscient" not in name)
ALPHA, TARGET, HOLD = 0.3, 0.9, 10
PATIENCE = 3.0
"""Times the honest seconds to the target that a run lasts for."""
FEWEST, MOST = 100, 600
"""Steps of a run, at the least and at the most."""
LAST = 10
"""Steps over which the end is averaged."""

Run = tuple[str, str, str, str, int]


def embedded() -> Experiment:
    """Return the experiment."""
    experiment = load_experiment(None, Overrides())
    return replace(experiment, data=replace(experiment.data, alpha=ALPHA))  # type: ignore[type-var]


def federation(experiment: Experiment, scheme: str, how: str, who: str, defence: str, seed: int) -> Simulation:
    """Return a federation of the experiment that is attacked and defended."""
    clients: int = experiment.data.clients  # type: ignore[attr-defined]
    expected = experiment.delays.build(clients, model_bytes=1, seed=seed).expected()
    few = np.empty(0, dtype=np.int64) if who == NOBODY else attackers(who, expected, seed)
    simulation = Simulation(
        experiment.data,
        experiment.model,
        experiment.delays,
        selectors[scheme](**SCHEMES[scheme]),
        training=experiment.training,
        clock=experiment.clock,
        seed=seed,
        **defended(defence, experiment.fleet),
    )
    attack(simulation, few, ATTACKS[how])
    return simulation


def play(simulation: Simulation, *, honest: float | None, fewest: int = FEWEST, most: int = MOST) -> Found:
    """Run a federation; return when it held the target, and what it ends with.

    `honest` are the seconds of the honest run; None = this is one, and lasts for as long as its own seconds say.
    """
    every = float(np.median(simulation.expected_delays))
    clocked: list[tuple[float, float | None]] = []
    rounds: list[Round] = []
    last: deque[tuple[float, Vector]] = deque(maxlen=LAST)
    problem, began = "", time.process_time()
    try:
        for current in simulation.rounds():
            rounds.append(current)
            clocked.append((current.clock, current.metric))
            last.append((current.metric or 0.0, simulation.parameters))
            if current.number >= most:
                break
            if current.number < fewest:
                continue
            base = honest if honest is not None else _held(clocked, every)
            if base is not None and current.clock >= PATIENCE * base + HOLD * every:
                break
    except FedpaceError as error:  # it diverged, or nobody is left to be asked
        problem = str(error)
    taken = [success(simulation, parameters) for _, parameters in last]
    return {
        "seconds": None if problem else _held(clocked, every),
        "final": 0.0 if problem else float(np.mean([metric for metric, _ in last])),
        "success": float(np.mean(taken)),
        "steps": len(rounds) - 1,
        "clock": clocked[-1][0],
        **seen(rounds),
        "problem": problem,
        "cpu": round(time.process_time() - began, 2),
    }


def _held(clocked: Sequence[tuple[float, float | None]], every: float) -> float | None:
    """Return the seconds from which on the target is held; None = it is not, or it is not known yet."""
    held = held_from(clocked, TARGET, "up", hold=HOLD, every=every)[1]
    return None if held is None else clocked[held][0]


def key(scheme: str, how: str, who: str, defence: str, seed: int) -> str:
    """Name a run."""
    return f"{scheme} | {how} | {who} | {defence} | {seed}"


def wanted(
    schemes: Sequence[str], attacks: Sequence[str], who: Sequence[str], defences: Sequence[str], seeds: Sequence[int]
) -> Iterator[Run]:
    """Yield the runs: honest ones and those without the attackers first, and then the most important of the others.

    These are of the fastest 20 %, with schemes that ask the fastest most, with the default or a validation set.
    """
    for scheme, seed in product(schemes, seeds):
        yield scheme, HONEST, NOBODY, OFF, seed
    for group, scheme, seed in product(who, schemes, seeds):
        yield scheme, GONE, group, OFF, seed
    for defence, scheme, seed in product(defences, schemes, seeds):
        if defence != OFF:
            yield scheme, HONEST, NOBODY, defence, seed

    def importance(run: Run) -> int:
        scheme, _, group, defence, _ = run
        return (scheme not in ("pace", "pace-async")) + 2 * (group != WHO[0]) + (defence in RULES)

    order = [defence for defence in (DEFAULT, *VALIDATED, OFF, *RULES) if defence in defences]
    runs = [
        (scheme, how, group, defence, seed)
        for group, defence, scheme, how, seed in product(who, order, schemes, attacks, seeds)
        if group != ONE or how == "backdoor"
    ]
    yield from sorted(runs, key=importance)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="", help="folder of the runs; runs/attacks where left out")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--attacks", default=";".join(USUAL), help=f"separated by semicolons, of {'; '.join(ATTACKS)}")
    parser.add_argument("--who", default=",".join((*WHO, ONE)), help="who attacks")
    parser.add_argument("--defences", default=",".join(DEFENCES))
    parser.add_argument("--part", default="0/1", help="of the runs, so that several processes can share them")
    parser.add_argument("--most", type=int, default=0, help="run so many at the most, and show what there is")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps, two attacks, one group")
    parser.add_argument("--from", dest="source", help="show the runs in this file, and run nothing")
    parser.add_argument("--json", help="write all runs into this file")
    parser.add_argument("--png", help="draw them")
    parser.add_argument("--shown", default=WHO[0], help="the attackers of the picture")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.attacks, options.who = "0", "alie;backdoor", WHO[0]
    done = json.loads(Path(options.source).read_text()) if options.source else run_missing(options)
    if options.json:
        Path(options.json).write_text(json.dumps(dict(sorted(done.items())), indent=0) + "\n")
    found = cells(done)
    shown = {*options.defences.split(","), OFF}
    found = {
        place: cell for place, cell in found.items() if place[3] in shown and (place[3] != OFF or place[2] == NOBODY)
    }
    print(markdown(found, list(SCHEMES), list(ATTACKS), WHO))
    if options.png:
        schemes = [scheme for scheme in SCHEMES if any(place[0] == scheme for place in found)]
        picture(found, schemes, list(ATTACKS), options.shown, Path(options.png))


def run_missing(options: argparse.Namespace) -> dict[str, Found]:
    """Run what is missing; return all that is there."""
    experiment = embedded()
    runs = Runs(options.out or ("runs/attacks-quick" if options.quick else "runs/attacks"), options.part)
    limits = {"fewest": 5, "most": 12} if options.quick else {}
    all_ = wanted(
        options.schemes.split(","),
        options.attacks.split(";"),
        options.who.split(","),
        options.defences.split(","),
        [int(seed) for seed in options.seeds.split(",")],
    )
    made = 0
    for run in runs.mine(all_):
        if key(*run) in runs.done:
            continue
        scheme, _, _, _, seed = run
        base = (scheme, HONEST, NOBODY, OFF, seed)
        if key(*base) not in runs.done:  # another part's, and not there yet
            runs.add(key(*base), play(federation(experiment, *base), honest=None, **limits))
        if run != base:
            # A target that even the honest run did not hold ends no run early.
            honest = runs.done[key(*base)]["seconds"]
            simulation = federation(experiment, *run)
            found = play(simulation, honest=runs.done[key(*base)]["clock"] if honest is None else honest, **limits)
            runs.add(key(*run), found)
        made += 1
        if made == options.most:
            break
    return runs.done


if __name__ == "__main__":
    main()
