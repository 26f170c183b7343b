"""Admission policies on simulated fleets of 10^6 to 10^8 anonymous devices; see docs/scale.md.

python benchmarks/population.py decisions          # admission decisions per second on one core
python benchmarks/population.py load               # a week of 10^6, 10^7 and 10^8 devices: load, memory, outage
python benchmarks/population.py tune               # rivals' buffer and server step, on a seed of their own
python benchmarks/population.py learn              # time to a held target, rivals tuned, ours not; ablations
python benchmarks/population.py show               # tables in Markdown from the recorded results

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
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.population import Admission, CheckIn, Limits, Steering, make_admission, scenario, simulate
from fedpace.population.simulator import held_since
from fedpace.server.fedavgm import Fedavgm
from fedpace.server.nesterov import Nesterov

STORE = Path(__file__).parent / "population.jsonl"
DEVELOPMENT_SEED = 100
SEEDS = (0, 1, 2)
SCENARIOS = ("rare", "rare-shy", "alike")
TARGETS = (0.9, 0.94, 0.96)
CONCURRENCY, HORIZON, EVERY = 1000, 5400.0, 30.0
SERVERS = {"nesterov": Nesterov(), "average": Fedavgm(0.0, 1.0)}
STEPS = [
    (30, 1.0, 0.0),
    (30, 2.0, 0.0),
    (30, 4.0, 0.0),
    (100, 1.0, 0.0),
    (100, 2.0, 0.0),
    (100, 4.0, 0.0),
    (100, 8.0, 0.0),
    (100, 0.3, 0.9),
]
"""Buffer, server step size and server momentum that tuning tries."""
ROUNDS = [(0, 1.0, 0.0), (0, 2.0, 0.0), (0, 4.0, 0.0), (300, 2.0, 0.0), (0, 0.5, 0.9)]
TUNED: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "fedbuff": [
        ("first-come", {"buffer": k, "lr": lr, "momentum": m, "staleness": 0.5, "over_selection": 1.3}, "")
        for k, lr, m in STEPS
    ],
    "fedbuff, no staleness weight": [
        ("first-come", {"buffer": k, "lr": lr, "momentum": m, "staleness": 0.0, "over_selection": 1.3}, "")
        for k, lr, m in STEPS
    ],
    "synchronous, 130 %": [("over-selection", {"goal": k, "lr": lr, "momentum": m}, "") for k, lr, m in ROUNDS],
    "paced, tuned as fedbuff": [("paced", {"buffer": k}, f"{lr} {m}") for k, lr, m in STEPS],
}
OURS: dict[str, tuple[str, dict[str, Any], str]] = {"paced": ("paced", {}, "")}
ABLATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "paced, arrivals match shares (power 1)": ("paced", {"power": 1.0}, ""),
    "paced, equal weights": ("paced", {"catch_up": 0.0, "power": 1.0}, ""),
    "paced, plain average": ("paced", {}, "average"),
    "paced, buffer of 30": ("paced", {"buffer": 30}, ""),
    "fedbuff with our server step": ("first-come", {"buffer": 100, "staleness": 0.5}, "nesterov"),
    "fedbuff, no staleness weight, our server step": ("first-come", {"buffer": 100, "staleness": 0.0}, "nesterov"),
}


def learnt(scene: str, name: str, options: dict[str, Any], server: str, seed: int) -> dict[str, Any]:
    """Return when a policy holds each target in a scenario, and how it treats groups."""
    groups, learning = scenario(scene, 1_000_000, seed=seed)
    began = time.perf_counter()
    try:
        result = simulate(
            groups,
            make_admission(name, **options),
            limits=Limits(concurrency=CONCURRENCY),
            learning=learning,
            server=_server(server),
            seconds=HORIZON,
            start_hour=20,
            rollout=7200,
            evaluate_every=EVERY,
            seed=seed,
        )
    except ValueError as problem:
        return {"held": [None] * len(TARGETS), "problem": str(problem)}
    facts = result.summary()
    late = result.evaluations[-20:]
    return {
        "held": [held_since(result, target, 10, EVERY) for target in TARGETS],
        "accuracy": float(np.mean([evaluation.accuracy for evaluation in late])),
        "worst_group": float(np.mean([evaluation.groups.min() for evaluation in late])),
        "weight": result.weight.tolist(),
        "steps": result.steps,
        "answers_per_step": facts["mean_answers_per_step"],
        "lag": facts["mean_lag"],
        "wasted": (facts["lost"] + facts["abandoned"]) / facts["admitted"],
        "answered": facts["answered"],
        "wall_seconds": time.perf_counter() - began,
    }


def _server(text: str) -> Any:
    """Return a server rule by its name here, or FedAvgM by its step size and momentum; None = that of the policy."""
    if not text or text in SERVERS:
        return SERVERS.get(text)
    lr, momentum = map(float, text.split())
    return Fedavgm(momentum, lr)


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
    began = time.perf_counter()
    day = 86_400.0
    result = simulate(
        groups,
        make_admission(policy),
        limits=Limits(concurrency=100),  # few tasks: the load is that of devices that are rejected
        steering=Steering(steer) if steer else None,
        seconds=7 * day,
        outages=[(5 * day + 23 * 3600, 6 * day)],
    )
    wall = time.perf_counter() - began
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
        "wall_seconds": wall,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mib_of_the_fleet": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


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


def tuned(store: Store, rival: str, scene: str) -> tuple[str, dict[str, Any], str]:
    """Return the options of a rival that are best in a scenario on the development seed."""
    tried = []
    for place, given in enumerate(TUNED[rival]):
        key = ["learn", scene, *given, DEVELOPMENT_SEED]
        found = store.get(key, lambda given=given: learnt(scene, *given, DEVELOPMENT_SEED))
        tried.append((cost(found), place))
    return TUNED[rival][min(tried)[1]]


def learn(store: Store, scenes: tuple[str, ...] = SCENARIOS) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return scenario -> scheme -> result per seed."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for scene in scenes:
        schemes = {rival: tuned(store, rival, scene) for rival in TUNED} | OURS
        if scene == "rare":
            schemes |= ABLATIONS
        for seed in SEEDS:
            for label, (name, options, server) in schemes.items():
                key = ["learn", scene, name, options, server, seed]
                result = store.get(key, lambda given=(scene, name, options, server, seed): learnt(*given))
                found.setdefault(scene, {}).setdefault(label, []).append(result)
    return found


def show(store: Store) -> None:
    """Print the recorded results as tables in Markdown."""
    for scene, schemes in learn(store).items():
        wanted = " | ".join(map(str, TARGETS))
        print(f"\n### {scene}\n\n| scheme | seconds to {wanted} | worst group | wasted |")
        print("|---|---|---|---|---|---|")
        for label, results in schemes.items():
            cells = []
            for place in range(len(TARGETS)):
                times = [result["held"][place] for result in results]
                missed = sum(held is None for held in times)
                mean = math.exp(np.mean([math.log(2 * HORIZON if held is None else held) for held in times]))
                cells.append(("≥ " if missed else "") + f"{mean:,.0f}" + (f" ({missed} missed)" if missed else ""))
            worst = np.mean([result.get("worst_group", 0.0) for result in results])
            wasted = np.mean([result.get("wasted", 0.0) for result in results])
            print(f"| {label} | {' | '.join(cells)} | {worst:.3f} | {wasted:.0%} |")
        for rival in TUNED:
            print(f"\n{rival}: {tuned(store, rival, scene)[1]}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decisions", "load", "tune", "learn", "show", "one-load"])
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
                print(scene, rival, tuned(store, rival, scene))
    elif given.what == "learn":
        learn(store, tuple(given.rest) or SCENARIOS)
    else:
        show(store)


if __name__ == "__main__":
    main()
