"""Delays: how well the estimator follows them, and how fast a million of them are drawn.

    python benchmarks/delays.py                     one JSON object
    python benchmarks/delays.py --png delays.png    and a picture of both

The estimator's world: clients whose mean delay wanders (0.03 a round on the scale of logarithms), half of them with a
trend to three times or a third over the run, a quarter with one jump of a factor of three; 0.3 of noise a round; and
one answer in five is an outlier, 4 to 15 times as slow. All are seen in round 0, then a fifth of them in each round.
The error is the mean of |log(estimate / true mean)| over clients and rounds from round 10 on: 0.1 is off by a tenth.
The true mean is that without outliers. A deadline cuts off what takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from typing import Any

import numpy as np

from fedpace.core.delay_estimator import DelayEstimator
from fedpace.core.types import DelayConfig
from fedpace.delays.base import summarise
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.delays.synthetic import SyntheticDelays

MILLION = 1_000_000


def world(seed: int, *, clients: int, rounds: int, outliers: float, drift: bool) -> Any:
    """Yield (true means, observed seconds, who is seen) for each round."""
    rng = np.random.default_rng(seed)
    log_mean = np.log(100) + rng.standard_normal(clients)
    sign = rng.choice([-1, 1], (2, clients))
    trend = sign[0] * (rng.random(clients) < 0.5) * np.log(3) / rounds
    jump = sign[1] * (rng.random(clients) < 0.25) * np.log(3)
    when = rng.integers(rounds // 4, rounds, clients)
    for step in range(rounds):
        if drift:
            log_mean = log_mean + 0.03 * rng.standard_normal(clients) + trend + np.where(when == step, jump, 0.0)
        factor = np.where(rng.random(clients) < outliers, rng.uniform(4, 15, clients), 1.0)
        seconds = np.exp(log_mean + 0.3 * rng.standard_normal(clients) - 0.045) * factor
        yield np.exp(log_mean), seconds, rng.random(clients) < (0.2 if step else 1.0)


def follow(
    seed: int,
    *,
    clients: int = 200,
    rounds: int = 100,
    outliers: float = 0.2,
    drift: bool = True,
    deadline: float = np.inf,
) -> Any:
    """Return each estimator's error by round, and the path of client 0; a cut is an answer to the two plain ones."""
    estimator = DelayEstimator()
    state = estimator.init(clients)
    total, count, last = np.zeros(clients), np.zeros(clients), np.full(clients, np.nan)
    errors: dict[str, list[float]] = {"fedpace": [], "plain mean": [], "last value": []}
    path: list[list[float]] = []
    rounds_of = world(seed, clients=clients, rounds=rounds, outliers=outliers, drift=drift)
    for step, (true, seconds, seen) in enumerate(rounds_of):
        rows = np.flatnonzero(seen)
        waited = np.minimum(seconds, deadline)
        state = estimator.fold(state, rows, waited[rows], seconds[rows] <= deadline, step=step)
        total[rows] += waited[rows]
        count[rows] += 1
        last[rows] = waited[rows]
        guesses = (estimator.seconds(state), total / count, last)
        for name, guess in zip(errors, guesses, strict=True):
            errors[name].append(float(np.abs(np.log(guess / true)).mean()))
        path.append([true[0], waited[0] if seen[0] else np.nan, *(guess[0] for guess in guesses)])
    return errors, np.array(path)


def errors_of(seeds: int, **options: Any) -> dict[str, float]:
    """Mean error of each estimator over seeds, from round 10 on."""
    runs = [follow(seed, **options)[0] for seed in range(seeds)]
    return {name: round(float(np.mean([run[name][10:] for run in runs])), 3) for name in runs[0]}


def drawn(config: DelayConfig) -> dict[str, float]:
    """Seconds to build a million clients and to draw a round of them: the best of three."""
    built, one = [], []
    for seed in range(3):
        start = time.perf_counter()
        model = config.build(MILLION, model_bytes=1_600_000, seed=seed)
        middle = time.perf_counter()
        model.draw(1)
        built.append(middle - start)
        one.append(time.perf_counter() - middle)
    return {"build_s": round(min(built), 3), "draw_s": round(min(one), 3)}


def nycmesh(seeds: int) -> dict[str, float]:
    """The nycmesh fleet beside the paper's two numbers."""
    config = NycmeshDelays()
    found = summarise(*(config.build(100, model_bytes=1_600_000, seed=seed) for seed in range(seeds)), rounds=1)
    return {name: round(value, 4) for name, value in found.rows()}


def picture(path: str) -> None:
    """One client's delay as each estimator sees it, the errors by round, and the nycmesh histogram."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    errors, one = follow(3)
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(16, 4.5), layout="constrained")
    left.plot(one[:, 0], color="black", label="true mean")
    left.plot(one[:, 1], "x", color="grey", label="observed")
    for column, name in enumerate(errors, start=2):
        left.plot(one[:, column], label=name)
    left.set(
        yscale="log",
        xlabel="round",
        ylabel="seconds",
        title="One client: drift, 20 % outliers, seen in a fifth of the rounds",
    )
    left.legend()
    for name, values in errors.items():
        middle.plot(values, label=name)
    middle.set(xlabel="round", ylabel="mean |log(estimate / true)|", title="Error over 200 clients", ylim=(0, None))
    middle.legend()
    found = summarise(*(NycmeshDelays().build(100, model_bytes=0, seed=seed) for seed in range(50)), rounds=4, bins=30)
    right.stairs(found.counts / found.counts.sum(), found.edges, fill=True)
    right.axvline(1000, color="black", linestyle=":", label=f"{100 * found.slow:.1f} % above 1000 s")
    right.set(xscale="log", xlabel="seconds", ylabel="share of delays", title="nycmesh, 100 clients, 1.6 MB")
    right.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", metavar="FILE", help="draw the picture too; needs matplotlib")
    parser.add_argument("--seeds", type=int, default=5, help="worlds for the estimator (default 5)")
    arguments = parser.parse_args()
    seeds = arguments.seeds
    result = {
        "benchmark": "delays",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpus": os.cpu_count(),
        "estimator_error": {
            "drift_and_20_percent_outliers": errors_of(seeds),
            "drift_only": errors_of(seeds, outliers=0.0),
            "20_percent_outliers_only": errors_of(seeds, drift=False),
            "neither": errors_of(seeds, outliers=0.0, drift=False),
            "drift_and_deadline_200_s": errors_of(seeds, outliers=0.0, deadline=200.0),
            "drift_outliers_and_deadline_200_s": errors_of(seeds, deadline=200.0),
        },
        "million_clients": {
            config.name: drawn(config) for config in (SyntheticDelays(jitter=0.3), LognormalDelays(), NycmeshDelays())
        },
        "nycmesh_100_clients": nycmesh(300),
    }
    print(json.dumps(result, indent=2))
    if arguments.png:
        picture(arguments.png)


if __name__ == "__main__":
    main()
