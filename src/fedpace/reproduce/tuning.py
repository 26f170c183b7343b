"""Tunes the quick profile as a paper would: on seeds that no table reports, with everything that was tried kept.

1. The step size of a data set is the one with which random is furthest after `rounds` rounds (mean of the last three),
   and all schemes share it.
2. Its target is what random has then, over two seeds, rounded towards easy; that of Quadratic is the paper's.
3. The options of FLANP and of ApproxOptSampling are the fastest of three for each data set and delay model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.reproduce.columns import COLUMNS, TUNED_OPTIONS
from fedpace.reproduce.paper import PAPER_DELAYS, PaperTask, Tuned, task
from fedpace.reproduce.runs import Note, PaperRun, play
from fedpace.runner import Watcher

SEEDS = (100, 101)
LAST = 3
"""Rounds over whose mean a run is judged."""
STEP = 0.01
"""Targets are multiples of it."""


def tune(
    names: tuple[str, ...], store: Path, tuned: Tuned, watch: Watcher | None, note: Note, keep: Callable[[Tuned], None]
) -> None:
    """Choose what is not chosen yet, and hand everything to `keep` after each data set."""
    for name in names:
        mine = tuned.tasks.setdefault(name, {})
        if "lr" not in mine:
            mine.update(_rate(task(name, "quick", tuned), store, watch, note))
            keep(tuned)
            note(f"{name}: lr {mine['lr']}, target {mine.get('target', 'as in the paper')}")
    for name in names:
        mine = tuned.tasks[name]
        if "options" not in mine:
            mine["options"] = _options(task(name, "quick", tuned), store, watch, note)
            keep(tuned)
            note(f"{name}: {_said(mine['options'])}")


def _rate(wanted: PaperTask, store: Path, watch: Watcher | None, note: Note) -> dict[str, Any]:
    found = {rate: _after(wanted, rate, SEEDS[0], store, watch, note) for rate in wanted.rates}
    sign = -1 if wanted.metric == "loss" else 1
    best = max(found, key=lambda rate: sign * found[rate])
    said: dict[str, Any] = {"lr": best, "tried": {str(rate): round(value, 4) for rate, value in found.items()}}
    if wanted.metric == "accuracy":
        reached = [found[best], *(_after(wanted, best, seed, store, watch, note) for seed in SEEDS[1:])]
        said["target"] = round(math.floor(float(np.mean(reached)) / STEP) * STEP, 2)
        said["reached"] = [round(value, 4) for value in reached]
    return said


def _after(wanted: PaperTask, rate: float, seed: int, store: Path, watch: Watcher | None, note: Note) -> float:
    """Return what random has after the expected number of rounds."""
    never = 0.0 if wanted.metric == "loss" else 1.0
    goal = replace(
        wanted, training={**wanted.training, "lr": rate}, target=never, max_rounds=wanted.rounds, profile="quick"
    )
    run = PaperRun(goal, PAPER_DELAYS[0], next(column for column in COLUMNS if column.label == "random"), seed)
    play([run], store, watch, note=note)
    record = run.record(store)
    if record is None or record.info.status == "diverged":
        return math.inf if wanted.metric == "loss" else -math.inf
    return float(np.mean([current.metric for current in record.evaluated[-LAST:]]))


def _options(wanted: PaperTask, store: Path, watch: Watcher | None, note: Note) -> dict[str, Any]:
    shorter = replace(wanted, max_rounds=2 * wanted.rounds)
    found: dict[str, Any] = {}
    for delays in PAPER_DELAYS:
        for label, settings in TUNED_OPTIONS.items():
            column = next(column for column in COLUMNS if column.label == label)
            tried = []
            for options in settings(wanted.k):
                run = PaperRun(shorter, delays, column, SEEDS[0], options)
                play([run], store, watch, note=note)
                record = run.record(store)
                reached = None if record is None else record.reached
                tried.append({"options": options, "seconds": None if reached is None else round(reached.clock, 1)})
            best = min(tried, key=lambda each: math.inf if each["seconds"] is None else each["seconds"])
            found.setdefault(delays, {})[label] = {"chosen": best["options"], "tried": tried}
    return found


def _said(options: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{delays} {label} {found['chosen']}" for delays, each in options.items() for label, found in each.items()
    )
