"""From rows to statements: geometric means, paired speed-ups, who is fastest, and what is only noise.

A scheme that misses a target in any seed has no mean time: it failed. Its rows still say how long it was tried. Where
random failed, its time is that at which it was given up, so such a speed-up is a lower bound; where the flagship failed
its time is that too, so that such a cell counts against it, and its speed-up is an upper bound.

A run that was given up to save time (`economy.py`) has neither held nor missed its target: it counts with a time that
it certainly took. A factor over such a rival is a lower bound, `at_least`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from scipy import stats

from grid import economy
from grid.cells import LEVELS
from grid.runs import Row
from grid.schemes import BASELINE, PAPERS_BASELINES, Mode, camp

Times = Mapping[int, float]
"""Seconds by seed; infinite = the target was never met."""
Measure = Literal["seconds", "first", "on_grid"]
"""Of a row: when the target is held, when it was met first, and when it is held as looked at on a grid of instants."""
Schemes = dict[str, dict[int, Row]]
"""Rows by label and seed."""


def summarise(rows: Iterable[Row], *, flagship: str = "pace") -> dict[str, Any]:
    """Return everything that is said about the grid: the cells as they are judged, and verdicts of other judgements."""
    rows = list(rows)
    main = judge(rows, flagship=flagship)
    # Rows that come from a result file do not tell when targets were first met, nor what free warm-ups make of it.
    every: list[tuple[str, Mode, Measure]] = [
        ("first_crossing", "charged", "first"),
        ("free_warmup", "free", "seconds"),
        ("free_warmup_first_crossing", "free", "first"),
        ("on_grid", "charged", "on_grid"),
    ]
    free = any(row["mode"] == "free" for row in rows)
    others = [
        (name, mode, measure)
        for name, mode, measure in every
        if (free or mode == "charged") and all(measure in row["hard"] for row in rows)
    ]
    return {
        "flagship": flagship,
        "verdict": _verdict(main, flagship),
        "otherwise": {
            name: _verdict(judge(rows, flagship=flagship, mode=m, measure=w), flagship) for name, m, w in others
        },
        "cells": main,
    }


def judge(
    rows: Iterable[Row], *, flagship: str = "pace", mode: Mode = "charged", measure: Measure = "seconds"
) -> list[dict[str, Any]]:
    """Return what is said about each cell; a scheme without a run in this mode needs no warm-up: all modes are one."""
    table: dict[str, Schemes] = {}
    for wanted in ("charged", mode):
        for row in rows:
            if row["mode"] == wanted:
                table.setdefault(row["cell"], {}).setdefault(row["scheme"], {})[row["seed"]] = row
    return [_cell(name, level, table[name], flagship, measure) for name in sorted(table) for level in LEVELS]


def _cell(name: str, level: str, schemes: Schemes, flagship: str, measure: Measure) -> dict[str, Any]:
    times = {label: {seed: _seconds(row[level][measure]) for seed, row in by.items()} for label, by in schemes.items()}
    # What runs that were given up took at the least: rivals count with that, and never with more.
    at_least = {
        label: {seed: _seconds(economy.known(row, level, measure)) for seed, row in by.items()}
        for label, by in schemes.items()
    }
    cut = {label: sum(at_least[label][seed] < times[label][seed] for seed in by) for label, by in times.items()}
    given_up = {
        label: {seed: value if math.isfinite(value) else schemes[label][seed]["clock"] for seed, value in by.items()}
        for label, by in at_least.items()
    }
    first = {label: next(iter(by.values())) for label, by in schemes.items()}
    camps = {label: camp(label, row["selector"]) for label, row in first.items()}
    found = {
        label: {
            "camp": camps[label],
            **({"selector": first[label]["selector"]} if first[label]["selector"] != label else {}),
            "options": first[label]["options"],
            "factor": first[label]["factor"],
            "seconds": {str(seed): _plain(value) for seed, value in sorted(by.items())},
            "failed": sum(not math.isfinite(value) for value in at_least[label].values()),
            **(_given_up(times[label], at_least[label]) if cut[label] else {}),
            **({"tried": tried} if (tried := _tried(at_least[label], schemes[label])) else {}),
            "geometric_mean": _plain(geometric_mean(by)),
            "speed_up": ratio(given_up.get(BASELINE, {}), by),
            "clients": _plain(float(np.mean([row["clients"] for row in schemes[label].values()]))),
            **({"highest_loss": max(highs)} if (highs := _highest(schemes[label])) else {}),
        }
        for label, by in times.items()
    }
    # Variants of the flagship are itself: they are shown, and compete with nobody. Controls are shown too: they are
    # nobody's scheme, and how far the flagship is ahead of those that take its steps is said apart.
    same = first[flagship]["selector"] if flagship in first else None
    rivals = {label: by for label, by in at_least.items() if first[label]["selector"] != same}
    others = {label: by for label, by in rivals.items() if camps[label] != "control"}
    best = {
        "baseline": _fastest({label: by for label, by in others.items() if camps[label] == "baseline"}),
        "papers_baseline": _fastest({label: by for label, by in others.items() if label in PAPERS_BASELINES}),
        "paper": _fastest({label: by for label, by in others.items() if camps[label] == "paper"}),
        "of_all_others": _fastest(others),
        "control": _fastest({label: by for label, by in rivals.items() if camps[label] == "control"}),
    }
    ours = times.get(flagship)
    against: dict[str, dict[str, Any] | None] = {}
    for what, label in best.items():
        against[what] = None if label is None or ours is None else ratio(at_least[label], given_up[flagship])
        if label is not None and cut[label] and (found_ratio := against[what]) is not None:
            against[what] = {**found_ratio, "at_least": True}
    targets = {seed: row[level]["target"] for by in schemes.values() for seed, row in by.items()}
    return {
        "cell": f"{name}/{level}",
        "targets": {str(seed): round(target, 5) for seed, target in sorted(targets.items()) if not math.isnan(target)},
        "best": best,
        "flagship_over_best": against,
        "standing": None if ours is None else _standing(ours, best["of_all_others"], against["of_all_others"]),
        "standing_among_controls": None if ours is None else _standing(ours, best["control"], against["control"]),
        "misses_what_random_reaches": ours is not None
        and any(
            not math.isfinite(ours.get(seed, 0.0)) for seed, t in times.get(BASELINE, {}).items() if math.isfinite(t)
        ),
        "schemes": dict(sorted(found.items(), key=lambda item: _place(item[1]))),
    }


def _highest(by: Mapping[int, Row]) -> list[float]:
    """Return the highest loss of each run over its first one, where that is known."""
    return [row["highest_loss"] for row in by.values() if row.get("highest_loss") is not None]


def _given_up(times: Times, at_least: Times) -> dict[str, Any]:
    """Return what is known of a scheme of which some runs were given up, seed by seed and in the mean."""
    beyond = {seed: at_least[seed] for seed in sorted(times) if at_least[seed] < times[seed]}
    return {
        "given_up": len(beyond),
        "at_least": _plain(geometric_mean(at_least)),
        "beyond": {str(seed): _plain(value) for seed, value in beyond.items()},
    }


def _tried(at_least: Times, by: Mapping[int, Row]) -> dict[str, float | None]:
    """Return how long the runs that missed the target went on, where that is known."""
    return {
        str(seed): _plain(by[seed]["clock"])
        for seed, value in sorted(at_least.items())
        if math.isinf(value) and not by[seed].get("end_unknown")
    }


def _place(entry: Mapping[str, Any]) -> tuple[int, int, float]:
    return entry["failed"], entry.get("given_up", 0), entry["geometric_mean"] or entry.get("at_least") or 0.0


def _seconds(value: float | None) -> float:
    # Nothing is held before anybody has trained, but a target may be met by the initial model: no ratio of nothing.
    return math.inf if value is None else max(value, 1e-3)


def geometric_mean(times: Times) -> float:
    """Infinite when any is."""
    return float(np.exp(np.mean([math.log(value) for value in times.values()]))) if times else math.inf


def ratio(slow: Times, fast: Times) -> dict[str, float] | None:
    """How many times sooner `fast` is there, seed by seed: geometric mean and 95 % interval; None = it failed."""
    seeds = [seed for seed in fast if seed in slow and math.isfinite(slow[seed])]
    logs = np.array([math.log(slow[seed] / fast[seed]) for seed in seeds if math.isfinite(fast[seed])])
    if not seeds or logs.size < len(seeds):
        return None
    half = 0.0
    if logs.size > 1:
        half = float(stats.t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / math.sqrt(logs.size))
    middle = float(logs.mean())
    return {
        name: round(math.exp(v), 4) for name, v in (("mean", middle), ("low", middle - half), ("high", middle + half))
    }


def _fastest(times: Mapping[str, Times]) -> str | None:
    means = {label: geometric_mean(by) for label, by in times.items()}
    label = min(means, key=means.__getitem__, default=None)
    return label if label is not None and math.isfinite(means[label]) else None


def _standing(ours: Times, best: str | None, over: Mapping[str, float] | None) -> str:
    """`fastest`; `tied`: slower than the fastest, but the interval of the paired ratio holds 1; `slower`; `failed`.

    Behind lower bounds, of runs that were given up, nothing is known to be slower: that is `tied` too.
    """
    if not all(math.isfinite(value) for value in ours.values()):
        return "failed"
    if best is None or (over is not None and over["mean"] >= 1):
        return "fastest"
    return "tied" if over is not None and (over["high"] >= 1 or "at_least" in over) else "slower"


def _verdict(cells: list[dict[str, Any]], flagship: str) -> dict[str, Any]:
    judged = [cell for cell in cells if cell["standing"] is not None]
    delays = sorted({cell["cell"].split("/")[1] for cell in cells})

    def overall(what: str, name: str) -> float | None:
        """Geometric mean over cells of the flagship's speed-up over the best of each."""
        means = [c["flagship_over_best"][what] for c in judged if f"/{name}/" in c["cell"]]
        logs = [math.log(found["mean"]) for found in means if found is not None]
        return round(math.exp(np.mean(logs)), 3) if logs else None

    def standings(which: str) -> dict[str, int]:
        found = [cell[which] for cell in judged]
        return {standing: found.count(standing) for standing in ("fastest", "tied", "slower", "failed")}

    counts = standings("standing")
    return {
        "cells": len(judged),
        "fastest_or_tied": counts["fastest"] + counts["tied"],
        **counts,
        "among_controls": standings("standing_among_controls"),
        "speed_up_over_best_of_all_others": {name: overall("of_all_others", name) for name in delays},
        "speed_up_over_best_baseline": {name: overall("baseline", name) for name in delays},
        "speed_up_over_best_of_the_papers_baselines": {name: overall("papers_baseline", name) for name in delays},
        "speed_up_over_best_of_paper": {name: overall("paper", name) for name in delays},
        "speed_up_over_best_control": {name: overall("control", name) for name in delays},
        # Of them, lower bounds: the best rival's run was given up once it was far behind.
        "factors_at_least": {
            name: sum(
                "at_least" in (cell["flagship_over_best"]["of_all_others"] or {})
                for cell in judged
                if f"/{name}/" in cell["cell"]
            )
            for name in delays
        },
        "misses_what_random_reaches": [cell["cell"] for cell in judged if cell["misses_what_random_reaches"]],
        "not_fastest": {
            cell["cell"]: cell["best"]["of_all_others"] for cell in judged if cell["standing"] in ("slower", "failed")
        },
        "slower_than_a_control": {
            cell["cell"]: cell["best"]["control"]
            for cell in judged
            if cell["standing_among_controls"] in ("slower", "failed")
        },
        "speed_up_over_random": {
            label: _overall_speed_up(cells, label)
            for label in sorted({name for cell in cells for name in cell["schemes"]})
        },
    }


def _overall_speed_up(cells: list[dict[str, Any]], label: str) -> dict[str, Any]:
    entries = [cell["schemes"][label] for cell in cells if label in cell["schemes"]]
    logs = [math.log(entry["speed_up"]["mean"]) for entry in entries if entry["speed_up"] is not None]
    return {
        "geometric_mean_where_reached": round(math.exp(np.mean(logs)), 3) if logs else None,
        "cells": len(entries),
        "cells_with_a_failure": sum(entry["failed"] > 0 for entry in entries),
        "cells_given_up": sum(entry.get("given_up", 0) > 0 for entry in entries),
    }


def _plain(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None
