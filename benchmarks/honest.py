"""What the default defence does to honest clients: nothing, or the benchmark says FAIL.

    python benchmarks/honest.py --json benchmarks/honest.json        everything; what is there is not run again
    python benchmarks/honest.py --part 0/2 & python benchmarks/honest.py --part 1/2      two processes share the runs
    python benchmarks/honest.py --federations flower-20,sorted-10 --schemes pace --seeds 0
    python benchmarks/honest.py --from benchmarks/honest.json        nothing is run: the table
    python benchmarks/honest.py --defence zeno --federations own-class-20,nine-few-60   a rule with a validation set
    python benchmarks/honest.py --quick                              one seed and few steps: whether it runs

Federations in which honest clients differ much (`lib/honest_federations.py`), each with the defence and without, paired
by seed. Simulated ones meet their clients as servers do: delays are learnt, and newcomers are heard beside the others.
Metrics are means over the last quarter of the steps, so that no single step decides. They are the accuracy; of a
regression the part of the first model's loss that is gone; on Flower the mean of the model itself, whose place is
known. `worst` is the accuracy on the class that the model tells worst.

A row passes where, on average over the seeds, metric and worst class are at most 0.01 lower with the defence than
without (on Flower: the model at most 1 % elsewhere), and where nobody was excluded nor any answer refused.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lib import on_flower
from lib.defences import DEFAULT, DEFENCES, OFF, defended, seen
from lib.honest_federations import DELAYS, FEDERATIONS, OnFlower, Simulated
from lib.runs import Found, Runs, table

from fedpace._base.errors import FedpaceError
from fedpace._base.registry import selectors
from fedpace.core.server_rule import Vector
from fedpace.records.run import Round
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation

SCHEMES = ("pace", "pace-async", "random", "fedbuff")
STEPS = {"pace": 60, "pace-async": 100, "random": 60, "fedbuff": 150}
ON_FLOWER = 40
"""Steps on Flower, whatever the scheme."""
LIVE = Fleet(warmup="lazy", delays="observed")
"""How servers meet clients where nothing else is said (`fedpace.flower`)."""
ALLOWED = 0.01

Run = tuple[str, str, int, str]


def options_of(scheme: str, clients: int) -> dict[str, int]:
    """Return the options of a scheme: the default ones, but for fleets that are smaller than its cohort."""
    return {"random": {"k": min(10, clients)}, "fedbuff": {"buffer": min(10, clients // 2)}}.get(scheme, {})


def simulated(federation: Simulated, scheme: str, seed: int, defence: str, steps: int) -> Found:
    """Run a federation of the simulator; return what it ends with, and what the defence did."""
    simulation = Simulation(
        federation.data(seed),
        federation.model,
        DELAYS,
        selectors[scheme](**options_of(scheme, federation.clients)),
        training=federation.training,
        clock=Clock(),
        seed=seed,
        **defended(defence, LIVE),
    )
    accuracy = simulation.trainer.data.metric == "accuracy"
    rounds: list[Round] = []
    metrics: list[float] = []
    worst: list[float] = []
    for current in simulation.rounds(lambda number, clock: number > 0.75 * steps):
        rounds.append(current)
        if current.number and current.metric is not None and current.loss is not None:
            metrics.append(current.metric if accuracy else 1 - current.loss / (rounds[0].loss or math.nan))
            if accuracy:
                worst.append(worst_class(simulation, simulation.parameters))
        if current.number >= steps:
            break
    return {
        "metric": float(np.mean(metrics)),
        "worst": float(np.mean(worst)) if worst else None,
        "clock": rounds[-1].clock,
        **seen(rounds),
    }


def worst_class(simulation: Simulation, parameters: Vector) -> float:
    """Return the accuracy on the class that is told worst."""
    test = simulation.trainer.data.test
    right = np.asarray(simulation.trainer.correct(parameters, test.inputs.reshape(len(test), -1), test.targets))
    return min(float(right[test.targets == label].mean()) for label in np.unique(test.targets))


def on_flowers_grid(federation: OnFlower, scheme: str, seed: int, defence: str, steps: int) -> Found:
    """Run a federation on Flower; return where the model ends, and what the defence did."""
    options = options_of(scheme, federation.clients) | defended(defence)
    means, rounds = on_flower.played(scheme, options, federation.optima, federation.width, seed=seed, steps=steps)
    last = means[math.floor(0.75 * len(means)) :]
    return {"metric": float(np.mean(last)), "worst": None, "clock": rounds[-1].clock, **seen(rounds)}


def run(name: str, scheme: str, seed: int, defence: str, *, quick: bool = False) -> Found:
    """Run one federation; one that cannot go on says why."""
    federation = FEDERATIONS[name]
    steps = 12 if quick else ON_FLOWER if isinstance(federation, OnFlower) else STEPS[scheme]
    began = time.process_time()
    try:
        if isinstance(federation, OnFlower):
            found = on_flowers_grid(federation, scheme, seed, defence, steps)
        else:
            found = simulated(federation, scheme, seed, defence, steps)
    except FedpaceError as error:
        found = {"metric": None, "worst": None, "problem": str(error)}
    return {**found, "steps": steps, "cpu": round(time.process_time() - began, 2)}


def key(name: str, scheme: str, seed: int, defence: str) -> str:
    """Name a run."""
    return f"{name} | {scheme} | {seed} | {defence}"


def wanted(federations: Sequence[str], schemes: Sequence[str], seeds: Sequence[int], defence: str) -> Iterator[Run]:
    """Yield the runs, seed by seed, so that the whole table is there early."""
    for seed, name, scheme, side in product(seeds, federations, schemes, (OFF, defence)):
        yield name, scheme, seed, side


# -- what they say -----------------------------------------------------------------------------------------------


def rows(done: Mapping[str, Found], defence: str = DEFAULT) -> list[dict[str, Any]]:
    """Return one row per federation and scheme: means over the seeds that both sides have, and whether it passes."""
    pairs: dict[tuple[str, str], list[tuple[Found, Found]]] = {}
    for place, found in done.items():
        name, scheme, seed, side = place.split(" | ")
        on = done.get(key(name, scheme, int(seed), defence))
        if side == OFF and on is not None:
            pairs.setdefault((name, scheme), []).append((found, on))
    order = [(name, scheme) for name in FEDERATIONS for scheme in SCHEMES if (name, scheme) in pairs]
    return [row(name, scheme, pairs[name, scheme]) for name, scheme in order]


def row(name: str, scheme: str, pairs: Sequence[tuple[Found, Found]]) -> dict[str, Any]:
    """Return a row of the table."""
    found: dict[str, Any] = {"federation": name, "scheme": scheme, "seeds": len(pairs)}
    found |= {what: sum(on.get(what, 0) for _, on in pairs) for what in ("excluded", "refused", "clipped", "capped")}
    passed = found["excluded"] == found["refused"] == 0
    for what in ("metric", "worst"):
        both = [(off[what], on[what]) for off, on in pairs if off[what] is not None and on[what] is not None]
        if len(both) < len(pairs) and what == "metric":
            passed = False  # a run that ended with an error
        if not both:
            continue
        off, on = np.array(both).T
        change = on - off
        found[what] = {
            "off": float(off.mean()),
            "on": float(on.mean()),
            "change": float(change.mean()),
            "error": float(change.std(ddof=1) / math.sqrt(len(change))) if len(change) > 1 else None,
        }
        if isinstance(FEDERATIONS[name], OnFlower):
            passed &= abs(change.mean()) <= ALLOWED * abs(off.mean())
        else:
            passed &= bool(change.mean() >= -ALLOWED)
    return {**found, "passed": bool(passed)}


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table; its last lines say how many rows pass, and which do not."""
    head = ["federation", "scheme", "seeds", "metric: off", "on", "change", "worst class: off", "on", "change"]
    head += ["excluded", "refused", "clipped", "capped", ""]
    lines = []
    for entry in found:
        cells = [entry["federation"], entry["scheme"], str(entry["seeds"])]
        for what in ("metric", "worst"):
            cells += _shown(entry.get(what))
        cells += [str(entry[what]) for what in ("excluded", "refused", "clipped", "capped")]
        lines.append([*cells, "PASS" if entry["passed"] else "FAIL"])
    failed = [f"{entry['federation']} {entry['scheme']}" for entry in found if not entry["passed"]]
    said = f"{len(found) - len(failed)} of {len(found)} rows PASS."
    return "\n".join([table(head, lines), "", said + (f" FAIL: {', '.join(failed)}." if failed else "")])


def _shown(both: Mapping[str, Any] | None) -> list[str]:
    if both is None:
        return ["", "", ""]
    error = "" if both["error"] is None else f" ± {both['error']:.3f}"
    return [f"{both['off']:.3f}", f"{both['on']:.3f}", f"{both['change']:+.3f}{error}"]


def main() -> None:
    """Run what is missing, and print the table; 1 where a row fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="", help="folder of the runs; runs/honest where left out")
    parser.add_argument("--seeds", default="", help="0,1,2,3,4 where left out")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--federations", default=",".join(FEDERATIONS))
    parser.add_argument("--part", default="0/1", help="of the runs, so that several processes can share them")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--from", dest="source", help="show the runs in this file, and run nothing")
    parser.add_argument("--json", help="write all runs into this file")
    parser.add_argument("--defence", default=DEFAULT, choices=[one for one in DEFENCES if one != OFF])
    options = parser.parse_args()
    if options.source:
        done = json.loads(Path(options.source).read_text())
    else:
        seeds = [int(seed) for seed in (options.seeds or ("0" if options.quick else "0,1,2,3,4")).split(",")]
        runs = Runs(options.out or ("runs/honest-quick" if options.quick else "runs/honest"), options.part)
        for place in runs.mine(
            wanted(options.federations.split(","), options.schemes.split(","), seeds, options.defence)
        ):
            if key(*place) not in runs.done:
                runs.add(key(*place), run(*place, quick=options.quick))
        done = runs.done
    found = rows(done, options.defence)
    print(markdown(found))
    if options.json:
        Path(options.json).write_text(json.dumps(dict(sorted(done.items())), indent=0) + "\n")
    sys.exit(not all(entry["passed"] for entry in found))


if __name__ == "__main__":
    main()
