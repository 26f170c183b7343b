"""What moments give away, attacked; and what it costs to protect them. Prints one JSON object.

    python benchmarks/privacy.py                       attacks on the clients of the embedded experiment, then the cost
    python benchmarks/privacy.py --seeds 0 --schemes pace --epsilons 3

Attacks are on moments of one batch, of features (pixels), the 1 of a bias and one-hot labels, as `pace` asks for them:

- `alone`: whose class nobody shares in its batch stands in the moment's columns of that class, alone. The attacker
  counts the rows of each class from the diagonal, and reads off those that are alone.
- `pairs`: a batch of two, without labels: the mean and the leading direction around it give both rows.
- `member`: was this image in the batch? Images of the batch against others of the same client, told apart by how far
  the image sticks out of the span of the moment, by its leverage, or by the moment along it, whichever is best. The
  area under the ROC curve: 0.5 is guessing, 1 is certainty.

Each against the exact moment, one cut to 16 directions as servers get it, and the Gaussian mechanism. `recovered` is
the part of the rows found to within 5 % of their length; `likeness` the mean cosine with the row that was sought, and
`blind` that of somebody who guesses the mean image of all other clients' rows of the class.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.registry import selectors
from fedpace._base.rng import stream
from fedpace.config import Experiment, Overrides, load_experiment
from fedpace.moments.factor import compress, moment_rows, private_moment
from fedpace.records.holding import held_from
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.stopping import StopRule, run_until

DELTA, RANK, CLASSES = 1e-5, 16, 10
CLIP = 4.0
"""Rows of the digits are about so long: 64 pixels in [0, 1], a 1, and a one-hot label."""
CLOSE = 0.05
Release = tuple[str, float]
"""`exact`, `cut` or `private`, and its epsilon."""


def release(rows: FloatArray, how: Release, seed: int) -> FloatArray:
    """Return the second moment that the server gets."""
    kind, epsilon = how
    if kind == "private":
        factor = private_moment(rows, epsilon=epsilon, delta=DELTA, clip=CLIP, seed=seed, max_rank=RANK).factor
    else:
        factor = compress(rows / math.sqrt(len(rows)), RANK if kind == "cut" else rows.shape[1]).factor
    return np.asarray(factor.T @ factor)


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Return the cosine of two vectors; 0 where one is 0."""
    return float(a @ b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-300)


def alone(batches: list[tuple[FloatArray, Any]], how: Release) -> dict[str, float]:
    """Attack rows that are the only ones of their class in their batch."""
    likeness, blind, found, rows_in_all = [], [], 0, 0
    for number, (pixels, labels) in enumerate(batches):
        width, count = pixels.shape[1], len(pixels)
        moment = release(moment_rows(pixels, bias=True, labels=labels, classes=CLASSES), how, number)
        rows_in_all += count
        others = [(p, y) for place, (p, y) in enumerate(batches) if place != number]
        for kind in range(CLASSES):
            places = np.flatnonzero(labels == kind)
            if places.size != 1:
                continue
            row, guess = pixels[places[0]], count * moment[:width, width + 1 + kind]
            near = np.linalg.norm(guess - row) <= CLOSE * np.linalg.norm(row)
            found += bool(near)
            likeness.append(cosine(guess, row))
            blind.append(cosine(np.mean([p[y == kind].sum(axis=0) for p, y in others], axis=0), row))
    return {
        "sought": len(likeness),
        "recovered": round(found / len(likeness), 3),
        "of_all_rows": round(found / rows_in_all, 3),
        "likeness": round(float(np.mean(likeness)), 3),
        "blind": round(float(np.mean(blind)), 3),
    }


def pairs(batches: list[tuple[FloatArray, Any]], how: Release) -> dict[str, float]:
    """Attack batches of two rows."""
    likeness, found = [], 0
    for number, (pixels, _) in enumerate(batches):
        two = pixels[:2]
        moment = release(moment_rows(two, bias=True), how, number)
        width = two.shape[1]
        mean = moment[:width, width]
        values, vectors = np.linalg.eigh(moment[:width, :width] - np.outer(mean, mean))
        half = math.sqrt(max(float(values[-1]), 0.0)) * vectors[:, -1]
        if cosine(half, two[0] - two[1]) < 0:
            half = -half  # which of the two is which cannot be known, nor need it be
        for guess, row in ((mean + half, two[0]), (mean - half, two[1])):
            found += bool(np.linalg.norm(guess - row) <= CLOSE * np.linalg.norm(row))
            likeness.append(cosine(guess, row))
    return {"recovered": round(found / len(likeness), 3), "likeness": round(float(np.mean(likeness)), 3)}


def member(batches: list[tuple[FloatArray, Any]], how: Release) -> dict[str, float]:
    """Attack whether a row was in a batch: half of a client's rows are."""
    areas: dict[str, list[float]] = {"outside": [], "leverage": [], "along": []}
    for number, (pixels, labels) in enumerate(batches):
        rows = moment_rows(pixels, bias=True, labels=labels, classes=CLASSES)
        order = stream(3, "membership", number).permutation(len(rows))
        inside, outside = rows[order[: len(rows) // 2]], rows[order[len(rows) // 2 :]]
        moment = release(inside, how, number)
        values, vectors = np.linalg.eigh(moment)
        span = vectors[:, values > 1e-9 * values[-1]]
        inverse = np.linalg.inv(moment + 1e-3 * np.trace(moment) / len(moment) * np.eye(len(moment)))

        def score(
            z: FloatArray, span: FloatArray = span, inverse: FloatArray = inverse, moment: FloatArray = moment
        ) -> dict[str, FloatArray]:
            length = np.linalg.norm(z, axis=1)
            return {
                "outside": -np.linalg.norm(z - z @ span @ span.T, axis=1) / length,
                "leverage": -np.einsum("ij,jk,ik->i", z, inverse, z) / length**2,
                "along": np.einsum("ij,jk,ik->i", z, moment, z) / length**2,
            }

        there, not_there = score(inside), score(outside)
        for name, kept in areas.items():
            kept.append(float(np.mean(there[name][:, None] > not_there[name] + 1e-12)))
    means = {name: round(float(np.mean(kept)), 3) for name, kept in areas.items()}
    return {"auc": max(means.values()), **means}


def cost(experiment: Experiment, scheme: str, epsilon: float | None, rank: int, seed: int) -> float | None:
    """Return virtual seconds until the target is held."""
    protected: dict[str, Any] = {"moment_rank": rank}
    if epsilon is not None:
        protected |= {"moment_epsilon": epsilon, "moment_delta": DELTA, "moment_clip": CLIP}
    simulation = Simulation(
        experiment.data,
        experiment.model,
        experiment.delays,
        selectors[scheme](**({"ridge": 1.0} if scheme == "delayhet-submodular" else {})),
        training=replace(experiment.training, **protected),
        fleet=Fleet(),
        clock=Clock(charge_warmup=False),
        seed=seed,
    )
    delays = simulation.expected_delays.tolist()
    stop = replace(experiment.stop, max_rounds=200)
    played = [
        (current.clock, current.metric)
        for current in run_until(simulation.rounds(), StopRule(stop, experiment.direction, delays))
    ]
    held = held_from(played, stop.target, experiment.direction, hold=stop.hold, every=stop.spacing(delays))[1]
    return None if held is None else round(played[held][0], 1)


def costs(experiment: Experiment, schemes: Sequence[str], epsilons: Sequence[float], seeds: Sequence[int]) -> Any:
    """Return the time to the target per scheme and protection, and over that with exact moments, seed by seed."""
    ways = {"exact": (None, 0), "cut": (None, RANK), **{f"epsilon {e:g}": (e, RANK) for e in epsilons}}
    found: dict[str, Any] = {}
    for scheme in schemes:
        seconds = {way: [cost(experiment, scheme, *how, seed) for seed in seeds] for way, how in ways.items()}
        base = seconds["exact"]
        found[scheme] = {
            way: {"seconds": told, "times": _times(told, base), "never": sum(second is None for second in told)}
            for way, told in seconds.items()
        }
    return found


def _times(told: Sequence[float | None], base: Sequence[float | None]) -> float | None:
    ratios = [math.log(a / b) for a, b in zip(told, base, strict=True) if a is not None and b is not None]
    return round(math.exp(float(np.mean(ratios))), 2) if ratios else None


def main() -> None:
    """Attack, then pay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4", help="of the runs that tell the cost")
    parser.add_argument("--schemes", default="pace,delayhet-submodular")
    parser.add_argument("--epsilons", default="1,3,10")
    options = parser.parse_args()
    experiment = load_experiment(None, Overrides(arithmetic="torch"))  # what the recorded runs were trained with
    epsilons = [float(word) for word in options.epsilons.split(",")]
    data = experiment.data.build(seed=0)
    batches = [(np.asarray(c.inputs, dtype=np.float64), np.asarray(c.targets)) for c in data.train]
    ways: list[Release] = [("exact", 0.0), ("cut", 0.0), *(("private", e) for e in reversed(epsilons))]
    attacks = {
        f"{kind} {epsilon:g}" if epsilon else kind: {
            "alone": alone(batches, (kind, epsilon)),
            "pairs": pairs(batches, (kind, epsilon)),
            "member": member(batches, (kind, epsilon)),
        }
        for kind, epsilon in ways
    }
    lengths = np.concatenate([np.linalg.norm(pixels, axis=1) for pixels, _ in batches])
    told = {
        "benchmark": "privacy",
        "delta": DELTA,
        "clip": CLIP,
        "rank": RANK,
        "rows_per_client": [int(np.quantile([len(y) for _, y in batches], q)) for q in (0.0, 0.5, 1.0)],
        "median_row": round(float(np.median(np.sqrt(lengths**2 + 2))), 2),
        "attacks": attacks,
        "cost": costs(experiment, options.schemes.split(","), epsilons, [int(s) for s in options.seeds.split(",")]),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
