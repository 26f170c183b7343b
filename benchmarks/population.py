"""Admission policies on simulated fleets of 10^6 to 10^8 anonymous devices; see docs/scale.md.

python benchmarks/population.py decisions          # admission decisions per second on one core
python benchmarks/population.py load               # a week of 10^6, 10^7 and 10^8 devices: load, memory, outage
python benchmarks/population.py tune               # rivals' buffer and server step, on a seed of their own
python benchmarks/population.py learn              # time to a held target, rivals tuned, ours not
python benchmarks/population.py why                # ablations, and what oracles would give
python benchmarks/population.py edges              # edge aggregators between devices and root, one of them dead
python benchmarks/population.py large              # 10^8 devices, 10^4 at a time, rivals tuned for it

Results are kept in --store, line by line: a run that is recorded is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpace import make_server, stream
from fedpace.population import Admission, CheckIn, Edges, Group, Limits, Steering, make_admission, scenario, simulate
from fedpace.population.simulator import _Run, held_since

STORE = Path(__file__).parent / "population.jsonl"
DEVELOPMENT_SEED = 100
SEEDS = (10, 11, 12, 13, 14)
SCENARIOS = ("rare", "alike", "zones")
TARGETS = (0.9, 0.94, 0.96)
CONCURRENCY, HORIZON, EVERY = 1000, 5400.0, 30.0
Given = tuple[str, dict[str, Any], dict[str, Any]]
"""Name and options of a policy, and changes to the experiment: see `learnt`."""


def _fedbuff(
    buffer: int, lr: float, staleness: float, momentum: float = 0.0, average: float = 0.0, **changes: Any
) -> Given:
    options = {"buffer": buffer, "lr": lr, "staleness": staleness, "momentum": momentum, "average": average}
    return "first-come", {**options, "over_selection": 1.0}, changes


TUNED: dict[str, list[Given]] = {
    "FedBuff": [
        *(_fedbuff(10, lr, 0.0) for lr in (0.3, 0.6)),
        *(_fedbuff(30, lr, 0.0) for lr in (0.5, 1.0, 2.0)),
        *(_fedbuff(100, lr, 0.0) for lr in (1.0, 2.0, 4.0)),
        *(_fedbuff(30, lr, 0.5) for lr in (2.0, 4.0, 8.0)),
        *(_fedbuff(100, lr, 0.5) for lr in (4.0, 8.0, 16.0)),
        _fedbuff(30, 0.1, 0.0, 0.9),
        _fedbuff(100, 0.5, 0.5, 0.9),
        _fedbuff(30, 2.0, 0.0, concurrency=500),
        _fedbuff(30, 4.0, 0.5, concurrency=500),
    ],
    "FedBuff, averaged model": [
        _fedbuff(*each, average=0.1)
        for each in ((30, 1.0, 0.0), (30, 2.0, 0.0), (100, 4.0, 0.0), (30, 4.0, 0.5), (30, 8.0, 0.5), (100, 16.0, 0.5))
    ],
    "synchronous, 130 %": [
        ("over-selection", {"goal": goal, "lr": lr, "momentum": momentum}, {})
        for goal, lr, momentum in ((0, 1.0, 0.0), (0, 4.0, 0.0), (300, 2.0, 0.0), (0, 0.5, 0.9))
    ],
}
OURS: dict[str, Given] = {"paced": ("paced", {}, {})}
ABLATIONS: dict[str, Given] = {
    "weights are shares, step size 1": ("paced", {"damping": 0.0, "lr": 1.0}, {}),
    "all answers of a group weigh the same": ("paced", {"freshness": 0.0}, {}),
    "the last model": ("paced", {"average": 0.0}, {}),
    "places match shares (power 0)": ("paced", {"power": 0.0}, {}),
    "arrivals match shares (power 1)": ("paced", {"power": 1.0}, {}),
}
ORACLES: dict[str, dict[str, Any]] = {
    "20 times the samples per device": {"samples": 400, "batch": 200},
    "answers to the current model": {"fresh": True},
}
"""What exact updates, and updates without delay, would give FedBuff: neither exists outside a simulation."""
EDGES: dict[str, dict[str, Any]] = {
    "none: devices answer the root": {},
    "sums every 10 s": {"edges": 10.0},
    "sums every 60 s": {"edges": 60.0},
    "sums every 10 s, one edge dead from 10 to 40 min": {"edges": 10.0, "dead": {"+8 h": [[600.0, 2400.0]]}},
}
"""One edge aggregator per time zone under `paced`. The one that dies has the night, and so most of the devices."""
LARGE = {"devices": 10**8, "concurrency": 10_000}
TUNED_LARGE: dict[str, list[Given]] = {
    rival: [_fedbuff(*each, average=average) for each in settings]  # type: ignore[misc]
    for rival, average, settings in (
        (
            "FedBuff",
            0.0,
            (
                (100, 0.3, 0.0),
                (100, 0.6, 0.0),
                (300, 0.5, 0.0),
                (300, 1.0, 0.0),
                (300, 2.0, 0.0),
                (1000, 1.0, 0.0),
                (1000, 2.0, 0.0),
                (300, 4.0, 0.5),
                (300, 8.0, 0.5),
                (1000, 8.0, 0.5),
                (300, 0.1, 0.0, 0.9),
            ),
        ),
        ("FedBuff, averaged model", 0.1, ((300, 1.0, 0.0), (300, 4.0, 0.5))),
    )
}
"""The settings of `TUNED` with ten times the buffer, for ten times the devices."""
LARGE_OURS: dict[str, Given] = {
    "paced": ("paced", {}, {}),
    "weights are shares, step size 1": ("paced", {"damping": 0.0, "lr": 1.0}, {}),
}
LARGE_SEEDS = SEEDS[:3]


class _Fresh:
    """An oracle: every answer counts as if the device had trained from the current model."""

    def __call__(self, run: Any, version: int, number: int) -> Any:
        group = np.concatenate(run._versions[version]._groups)[number : number + 1]
        key = (run.seed, "fresh", run.admission.book.version, version, number)
        return run.trainer.updates(run.model, group, stream(*key))[0]


def learnt(scene: str, name: str, options: dict[str, Any], changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return when a policy holds each target in a scenario, and how it treats groups.

    `changes`: devices, concurrency, server (the name of a rule), samples and batch of a device, the oracle fresh,
    seconds between messages of edges, and which of them is dead when.
    """
    data = {each: changes[each] for each in ("samples", "batch") if each in changes}
    groups, learning = scenario(scene, changes.get("devices", 1_000_000), seed=seed, **data)
    began = time.process_time()
    update = _Run._update
    if changes.get("fresh"):
        _Run._update = lambda run, version, number: _Fresh()(run, version, number)  # type: ignore[method-assign,assignment]
    try:
        result = simulate(
            groups,
            make_admission(name, **options),
            limits=Limits(concurrency=changes.get("concurrency", CONCURRENCY)),
            learning=learning,
            server=make_server(changes["server"]) if "server" in changes else None,
            seconds=HORIZON,
            start_hour=20,
            rollout=7200,
            edges=_edges(groups, **{each: changes[each] for each in ("edges", "dead") if each in changes}),
            evaluate_every=EVERY,
            seed=seed,
        )
    except ValueError as problem:
        return {"held": [None] * len(TARGETS), "problem": str(problem)}
    finally:
        _Run._update = update  # type: ignore[method-assign]
    facts = result.summary()
    late = result.evaluations[-20:]
    return {
        "held": [held_since(result, target, 10, EVERY) for target in TARGETS],
        "accuracy": float(np.mean([evaluation.accuracy for evaluation in late])),
        "worst_group": float(np.mean([evaluation.groups.min() for evaluation in late])),
        "groups": np.mean([evaluation.groups for evaluation in late], axis=0).tolist(),
        "weight": result.weight.tolist(),
        "steps": result.steps,
        "lag": facts["mean_lag"],
        "wasted": (facts["lost"] + facts["abandoned"]) / facts["admitted"],
        "answered": facts["answered"],
        "received": facts["vectors_received"],
        "cpu_seconds": time.process_time() - began,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _edges(groups: list[Group], edges: float | None = None, dead: dict[str, Any] | None = None) -> Edges | None:
    return None if edges is None else replace(Edges.of_zones(groups, edges), outages=dead or {})


def decisions(seconds: float = 3.0) -> dict[str, Any]:
    """Return decisions per second of processor time, check-in by check-in, with pace steering."""
    found: dict[str, Any] = {}
    for name in ("paced", "first-come", "random", "over-selection"):
        for groups in (6, 60):
            shares = {f"g{row}": 1.0 for row in range(groups)}
            admission = Admission(
                make_admission(name), Limits(concurrency=10_000), shares=shares, steering=Steering(20_000.0)
            )
            visits = [CheckIn(f"g{row % groups}", visit="again") for row in range(1000)]
            count, began = 0, time.process_time()
            while time.process_time() - began < seconds:
                for check_in in visits:
                    admission.admit(check_in, count * 5e-5)  # 20,000 check-ins per second of the server's clock
                    count += 1
            found[f"{name}, {groups} groups"] = count / (time.process_time() - began)
    return found


def load(devices: int, policy: str, steer: float, zones: bool) -> dict[str, Any]:
    """Play a week of a fleet without a model in a process of its own, so that its peak memory is its own."""
    done = subprocess.run(
        [sys.executable, __file__, "one-load", str(devices), policy, str(steer), str(int(zones))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_load(devices: int, policy: str, steer: float, zones: bool) -> dict[str, Any]:
    """Return load and memory of a week; an hour without a server on the sixth day brings a herd."""
    groups, _ = scenario("rare-shy", devices)
    if not zones:
        groups = [type(group)(**{**vars(group), "zone": 0.0}) for group in groups]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    day = 86_400.0
    result = simulate(
        groups,
        make_admission(policy),
        limits=Limits(concurrency=100),  # few tasks: the load is that of devices that are rejected
        steering=Steering(steer) if steer else None,
        seconds=7 * day,
        outages=[(5 * day + 23 * 3600, 6 * day)],
    )
    spent = time.process_time() - began
    per_day = result.load.reshape(7, -1)
    calm = per_day[2:5]
    after = per_day[6, :12]
    return {
        "mean_per_second": float(calm.mean()),
        "peak_to_mean": float(calm.max() / calm.mean()),
        "trough_to_mean": float(calm.min() / calm.mean()),
        "first_day_peak_to_mean": float(per_day[0].max() / calm.mean()),
        "herd_to_mean": float(after.max() / calm.mean()),
        "admitted_per_second": float(result.admitted.sum() / (7 * day)),
        "answers": (result.answered / result.answered.sum()).tolist(),
        "shares": result.shares.tolist(),
        "cpu_seconds": spent,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mib_of_the_fleet": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def fairness(store: Store, scene: str, schemes: dict[str, Given]) -> None:
    """Print each group's share of the population, its part of the weight and its accuracy as a table in Markdown."""
    groups, _ = scenario(scene)
    total = sum(group.devices for group in groups)
    print(f"\n| group | share | {' | '.join(f'{label}: weight, accuracy' for label in schemes)} |")
    print("|---|---|" + "---|" * len(schemes))
    for row, group in enumerate(groups):
        cells = []
        for given in schemes.values():
            results = [played(store, scene, given, seed) for seed in SEEDS]
            weight, accuracy = (np.mean([result[name][row] for result in results]) for name in ("weight", "groups"))
            cells.append(f"{weight:.3f}, {accuracy:.3f}")
        print(f"| {group.name} | {group.devices / total:.2f} | {' | '.join(cells)} |")


class Store:
    """Results by key, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known: dict[str, Any] = {entry["key"]: entry["result"] for entry in map(json.loads, lines)}

    def get(self, key: list[Any], make: Any) -> Any:
        """Return the recorded result, or make and record it."""
        name = json.dumps(key)
        if name not in self.known:
            self.known[name] = make()
            with self.path.open("a") as file:
                file.write(json.dumps({"key": name, "result": self.known[name]}) + "\n")
            print(name, json.dumps(self.known[name])[:300], flush=True)
        return self.known[name]


def cost(result: dict[str, Any]) -> float:
    """Return the sum of log times to the targets; one that is not held counts as twice the horizon."""
    return sum(math.log(2 * HORIZON if held is None else max(held, EVERY)) for held in result["held"])


def tuned(store: Store, settings: list[Given], scene: str, **changes: Any) -> Given:
    """Return the settings that are best in a scenario on the development seed."""
    tried = []
    for place, (name, options, others) in enumerate(settings):
        given = name, options, {**others, **changes}
        tried.append((cost(played(store, scene, given, DEVELOPMENT_SEED)), place))
    return settings[min(tried)[1]]


def played(store: Store, scene: str, given: Given, seed: int) -> dict[str, Any]:
    """Return the result of one run, from the store if it is there."""
    found: dict[str, Any] = store.get(["learn", scene, *given, seed], lambda: learnt(scene, *given, seed))
    return found


def table(
    store: Store,
    scene: str,
    schemes: dict[str, Given],
    changes: dict[str, Any] | None = None,
    seeds: tuple[int, ...] = SEEDS,
) -> None:
    """Print times to the targets as a table in Markdown; runs that are not recorded are made."""
    print(f"\n**{scene}**\n\n| scheme | {' | '.join(map(str, TARGETS))} | worst group | wasted |")
    print("|---|" + "---|" * (len(TARGETS) + 2))
    for label, (name, options, others) in schemes.items():
        results = [played(store, scene, (name, options, {**others, **(changes or {})}), seed) for seed in seeds]
        cells = []
        for place in range(len(TARGETS)):
            times = [result["held"][place] for result in results]
            missed = sum(held is None for held in times)
            mean = math.exp(np.mean([math.log(2 * HORIZON if held is None else max(held, EVERY)) for held in times]))
            several = "missed" if missed == len(times) else f"≥ {mean:,.0f} ({missed} missed)"
            cells.append(several if missed else f"{mean:,.0f}")
        worst = np.mean([result.get("worst_group", 0.0) for result in results])
        wasted = np.mean([result.get("wasted", 0.0) for result in results])
        print(f"| {label} | {' | '.join(cells)} | {worst:.3f} | {wasted:.0%} |", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decisions", "load", "tune", "learn", "why", "edges", "large", "one-load"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--store", type=Path, default=STORE)
    given = parser.parse_args()
    if given.what == "one-load":
        devices, policy, steer, zones = given.rest
        print(json.dumps(one_load(int(devices), policy, float(steer), bool(int(zones)))))
        return
    store = Store(given.store)
    if given.what == "decisions":
        print(json.dumps(store.get(["decisions"], decisions), indent=2))
    elif given.what == "load":
        for devices in (10**8, 10**6, 10**7):
            steer = max(20.0, devices / 86_400 / 4)
            for policy, rate in (("first-come", 0.0), ("paced", steer)):
                for zones in (True, False) if devices == 10**8 else (True,):
                    store.get(
                        ["load", devices, policy, round(rate, 3), zones],
                        lambda devices=devices, policy=policy, rate=rate, zones=zones: load(
                            devices, policy, rate, zones
                        ),
                    )
    elif given.what == "tune":
        for scene in given.rest or SCENARIOS:
            for rival in TUNED:
                print(scene, rival, tuned(store, TUNED[rival], scene))
    elif given.what == "learn":
        for scene in given.rest or SCENARIOS:
            schemes = {rival: tuned(store, settings, scene) for rival, settings in TUNED.items()} | OURS
            table(store, scene, schemes)
            fairness(store, scene, schemes)
            for rival, settings in TUNED.items():
                print(f"{rival}: {tuned(store, settings, scene)[1:]}")
    elif given.what == "why":
        table(store, "rare", OURS | ABLATIONS)
        name, options, changes = tuned(store, TUNED["FedBuff"], "rare")
        oracles = {label: (name, options, {**changes, **oracle}) for label, oracle in ORACLES.items()}
        table(store, "rare", {"FedBuff": (name, options, changes), **oracles})
    elif given.what == "edges":
        trees: dict[str, Given] = {label: ("paced", {}, changes) for label, changes in EDGES.items()}
        table(store, "rare", trees)
        for label, tree in trees.items():
            runs = [played(store, "rare", tree, seed) for seed in SEEDS]
            vectors, answers = (
                np.mean([run.get(each, run["answered"]) for run in runs]) / HORIZON for each in ("received", "answered")
            )
            print(f"{label}: {vectors:.2f} vectors per second at the root, from {answers:.2f} answers")
    else:
        rivals = {rival: tuned(store, settings, "rare", **LARGE) for rival, settings in TUNED_LARGE.items()}
        table(store, "rare", rivals | LARGE_OURS, LARGE, LARGE_SEEDS)
        for rival, chosen in rivals.items():
            print(f"{rival}: {chosen[1]}")


if __name__ == "__main__":
    main()
