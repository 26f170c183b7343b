"""Runs that are made up, so that the size of their pages is known."""

from __future__ import annotations

import numpy as np

from fedpace.records.run import Round, RunInfo, RunRecord

NAMES = (
    "random", "pace", "fedbuff", "fed-cs", "oort", "delayhet-submodular", "delayhet-sampling", "power-of-choice",
    "optimal-client-sampling", "clustered-sampling", "tifl", "divfl",
)  # fmt: skip
MARKUP = "<img src=x onerror=\"console.error('ran')\"> & %{x} $1$"


def a_run(label: str, seed: int, *, clients: int, rounds: int, target: float, server: bool = False) -> RunRecord:
    """A run whose metric climbs at a pace of the scheme's own; a server's clients have names and no known delays."""
    rng = np.random.default_rng([seed, *label.encode()])
    delays = np.exp(np.random.default_rng(seed).normal(4, 1.5, clients))
    speed = rng.uniform(10, 60)
    ids = [f"{MARKUP} {number}" for number in range(clients)] if server else list(range(clients))
    played = [Round(0, 0.0, 0.0, 0.0, 0.1, 2.3, work=0.0, wasted=0, bytes_down=0, bytes_up=0)]
    clock = 0.0
    for number in range(1, rounds + 1):
        chosen = np.sort(rng.choice(clients, min(15, clients), replace=False))
        seconds = float(np.quantile(delays[chosen], rng.uniform(0.5, 1)))
        clock += seconds
        metric = 0.95 * (1 - np.exp(-number / speed)) + 0.01 * rng.normal()
        weights = rng.dirichlet(np.ones(chosen.size))
        played.append(
            Round(
                number, clock, seconds, 0.0, float(metric), 1.0,
                clients=tuple(ids[client] for client in chosen), weights=tuple(weights.tolist()),
                failed=tuple(ids[client] for client in chosen[:1]) if number % 9 == 0 else (),
                facts={
                    "reasons": {str(ids[i]): f"in with {w:.1%}" for i, w in zip(chosen, weights, strict=True)},
                    **(bounded(ids, number) if server else {}),
                },
                work=float(np.minimum(delays[chosen], seconds).sum()), wasted=int(number % 9 == 0),
                bytes_down=15_000, bytes_up=14_000, by_speed=tuple((metric - 0.01 * np.arange(10)).tolist()),
            )
        )  # fmt: skip
    info = RunInfo(
        label=label,
        selector="random" if label == "over-selection" else label,
        options={},
        seed=seed,
        metric="accuracy",
        direction="up",
        target=target,
        experiment={"name": "browser", "clock": {"charge_warmup": True}, "fleet": {"delays": "expected"}},
        expected_delays=() if server else tuple(delays.tolist()),
        status="finished",
        hold=5,
        hold_every=float(np.median(delays)),
        versions={"fedpace": "0.1.0"},
    )
    return RunRecord(info, tuple(played))


def bounded(ids: list[str], number: int) -> dict[str, object]:
    """What a server says of a round in which it bounded a few clients."""
    said: dict[str, object] = {"clipped": {ids[1]: 0.12}, "capped": {ids[2]: 0.05}, "left out": [ids[number % 5]]}
    return {**said, "excluded": [ids[3]]} if number == 4 else said


CASES = {
    "one": {"names": ["pace"], "seeds": 1, "rounds": 30, "clients": 100, "target": 0.6},
    "twelve": {"names": NAMES, "seeds": 5, "rounds": 200, "clients": 100, "target": 0.9},
    "never": {"names": NAMES[:3], "seeds": 3, "rounds": 40, "clients": 50, "target": 0.999},
    "markup": {"names": [MARKUP, "random"], "seeds": 3, "rounds": 20, "clients": 12, "target": 0.3, "server": True},
    "large": {"names": NAMES[:4], "seeds": 3, "rounds": 60, "clients": 10_000, "target": 0.6},
}
