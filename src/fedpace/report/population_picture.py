"""The picture of a simulated population: accuracy over time, load over the day, and each group's share and answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpace.population.simulator import LOAD_SECONDS, Result
from fedpace.report.picture import new_figure, save, tidy
from fedpace.report.style import NEUTRAL, PALETTE

HOUR = 3600.0


def write_population_png(results: Mapping[str, Result], path: Path) -> None:
    """Draw the results, one per label, into a PNG file."""
    figure = new_figure(13.5, 4.2)
    learns = any(result.evaluations for result in results.values())
    axes = list(figure.subplots(1, 3 if learns else 2))
    colours = dict(zip(results, (PALETTE * (1 + len(results) // len(PALETTE)))[: len(results)], strict=True))
    if learns:
        curve = axes.pop(0)
        for label, result in results.items():
            hours = np.array([evaluation.clock / HOUR for evaluation in result.evaluations])
            values = [evaluation.accuracy for evaluation in result.evaluations]
            curve.plot(hours, values, color=colours[label], label=label)
        tidy(curve, "Accuracy on the population's data", "virtual hours", "accuracy")
        curve.legend(frameon=False, fontsize=8)
    load, groups = axes
    for label, result in results.items():
        hours = (np.arange(result.load.size) + 0.5) * LOAD_SECONDS / HOUR
        load.plot(hours, result.load, color=colours[label], label=label)
    load.set(yscale="log")
    tidy(load, "Check-ins per second", "virtual hours", "check-ins per second")
    if not learns:
        load.legend(frameon=False, fontsize=8)
    first = next(iter(results.values()))
    places = np.arange(len(first.groups))
    width = 0.8 / (len(results) + 1)
    groups.bar(places, first.shares, width, color=NEUTRAL, label="share of the population")
    for number, (label, result) in enumerate(results.items(), 1):
        groups.bar(places + number * width, result.weight, width, color=colours[label], label=label)
    groups.set_xticks(places + 0.4, [group.name for group in first.groups], rotation=30, ha="right", fontsize=8)
    tidy(groups, "Weight of each group in the steps", "", "part of the weight")
    groups.legend(frameon=False, fontsize=8)
    save(figure, path)
