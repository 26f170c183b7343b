"""Draws the pictures of the explanations: python docs/explain/draw.py [FOLDER]."""

from __future__ import annotations

import sys
from heapq import heapify, heappop, heappush
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from fedpace._base.rng import stream
from fedpace.data.digits import Digits
from fedpace.moments import factor_from_features
from fedpace.numerics import best_prefix
from fedpace.report.picture import new_figure, save, tidy
from fedpace.report.style import INK, NEUTRAL, PALETTE


def draw_prefix(path: Path) -> None:
    """Every subset of a small fleet, by its round time and its heterogeneity: the prefixes lie on the lower edge."""
    rng = stream(5, "prefix picture")
    clients = 11
    delay = np.sort(rng.lognormal(2.5, 0.8, clients))
    moments = rng.uniform(0.3, 1.7, clients)
    apart = np.abs(moments[:, None] - moments[None, :]) / moments.mean()
    found = best_prefix(apart, delay)
    figure = new_figure(7.5, 4.4)
    axes = figure.subplots()
    tidy(
        axes,
        "All 2,047 subsets of 11 clients",
        "seconds of a round: the slowest client in the set",
        "heterogeneity h(S)",
    )
    sets = [rows for size in range(1, clients + 1) for rows in combinations(range(clients), size)]
    times = [delay[list(rows)].max() for rows in sets]
    spread = [apart[list(rows)].min(axis=0).mean() for rows in sets]
    axes.plot(times, spread, ".", color=NEUTRAL, alpha=0.25, markersize=5, label="a subset")
    ends = [apart[: size + 1].min(axis=0).mean() for size in range(clients)]
    axes.plot(delay, ends, "o-", color=PALETTE[0], markersize=6, label="the fastest 1, 2, 3, ... clients")
    chosen = len(found.clients) - 1
    axes.plot(delay[chosen], ends[chosen], "o", color=PALETTE[1], markersize=12, label="least delay / (1 - 2 h(S)²)")
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)


def draw_moments(path: Path) -> None:
    """How far the fastest clients of the digits are from the population: with equal weights, and with matched ones."""
    data = Digits(clients=60, alpha=0.3).build(seed=0)
    factors = [
        factor_from_features(samples.inputs.reshape(len(samples), -1), bias=True, labels=samples.targets, classes=10)
        for samples in data.train
    ]
    seconds = np.array([factor.T @ factor for factor in factors]).reshape(len(factors), -1)
    goal = seconds.mean(axis=0)
    order = stream(0, "moments picture").permutation(len(factors))
    sizes = np.arange(1, len(factors) + 1)
    equal, matched = [], []
    for size in sizes:
        mine = seconds[order[:size]]
        equal.append(_miss(mine.mean(axis=0), goal))
        # Weights that are not negative and sum to about 1: a row of ones, counted heavily, sees to that.
        heavy = 100.0 * np.linalg.norm(goal)
        weights, _ = nnls(np.vstack([mine.T, np.full((1, size), heavy)]), np.append(goal, heavy))
        matched.append(_miss(weights @ mine, goal))
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    tidy(
        axes, "Digits over 60 clients, Dirichlet 0.3", "clients in the cohort", "distance from the population's moment"
    )
    axes.plot(sizes, equal, color=NEUTRAL, linewidth=2, label="equal weights")
    axes.plot(sizes, matched, color=PALETTE[0], linewidth=2, label="weights that match the moment")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)


def _miss(moment: Any, goal: Any) -> float:
    return float(np.linalg.norm(moment - goal) / np.linalg.norm(goal))


def draw_staleness(path: Path) -> None:
    """Tasks of five clients without rounds, a step after every third answer: what an answer is behind when it comes."""
    delays, buffer, until = [2.0, 2.6, 4.1, 7.3, 15.0], 3, 30.0
    flying = [(delay, client, 0.0, 0) for client, delay in enumerate(delays)]
    heapify(flying)
    done, steps, held = [], [], []
    while flying[0][0] <= until:
        end, client, began, version = heappop(flying)
        held.append(len(done))
        done.append([client, began, end, version, None])
        if len(held) == buffer:
            for number in held:
                done[number][4] = len(steps) - done[number][3]
            steps.append(end)
            held = []
        heappush(flying, (end + delays[client], client, end, len(steps)))
    figure = new_figure(8.5, 3.6)
    axes = figure.subplots()
    tidy(axes, "Tasks without rounds: a step after every third answer", "seconds", "")
    for client, began, end, _, lag in done:
        if lag is None:
            continue  # answered, and in hand still
        colour, ink = (PALETTE[0], "white") if not lag else (PALETTE[3] if lag < 4 else PALETTE[1], INK)
        axes.barh(client, end - began - 0.08, left=began + 0.04, height=0.62, color=colour)
        axes.text((began + end) / 2, client, str(lag), ha="center", va="center", fontsize=8, color=ink)
    for step in steps:
        axes.axvline(step, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
    axes.set_yticks(range(len(delays)), [f"client of {delay:g} s" for delay in delays])
    axes.set_xlim(0, until)
    axes.grid(False)
    save(figure, path)


def main() -> None:
    """Draw all of them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    draw_prefix(folder / "prefix.png")
    draw_moments(folder / "moments.png")
    draw_staleness(folder / "staleness.png")


if __name__ == "__main__":
    main()
