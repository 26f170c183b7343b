"""What `flower_seconds.py` found, as tables and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpace.report.style import FIXED

NODES = 12
Result = dict[str, Any]
SENT, PART, BEGAN, SLEPT, ENDED, SEEN = range(6)
"""Columns of a run's `tasks`."""
WHATS = (
    "waiting for nodes and names",
    "looking for nodes",
    "sending",
    "waiting",
    "reading replies",
    "deciding",
    "screening",
    "stepping",
    "settling",
    "saving",
    "evaluating",
)
"""What a server's seconds go on."""
SPENT = ("seconds", "times", "longest", "work", "most_work")
COLOURS = ("pace-async", "pace", "fedbuff", "random")
"""Schemes whose colour a contestant has if its name begins with theirs; others have that of `fed-cs`."""


def tables(found: Sequence[Result], contestants: Sequence[str]) -> Iterator[str]:
    """Yield the lines: seconds to the target, where the nodes' time went, where the server's went."""
    yield from _seconds(found, contestants)
    yield ""
    yield from _journeys(found, contestants)
    yield ""
    yield from server_seconds(found, contestants)


def _seconds(found: Sequence[Result], contestants: Sequence[str]) -> Iterator[str]:
    seeds = sorted({result["seed"] for result in found})
    by = {(result["contestant"], result["seed"]): result for result in found}
    first = contestants[0]
    yield f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | against {first} | first step | steps per minute |"
    yield "|---" * (len(seeds) + 4) + "|"
    for name in contestants:
        runs = [by[name, seed] for seed in seeds if (name, seed) in by]
        if not runs:
            continue
        cells = {r["seed"]: f"{r['held']:.0f}" if r["held"] else f"> {r['seconds']:.0f}" for r in runs}
        pairs = [(by.get((first, r["seed"]), {}).get("held"), r["held"]) for r in runs]
        gains = [theirs / mine for theirs, mine in pairs if theirs and mine]
        gain = f"{statistics.geometric_mean(gains):.2f}" if len(gains) == len(seeds) else ""
        began = statistics.mean(r["curve"][1][0] for r in runs)
        pace = 60 * sum(r["steps"] for r in runs) / sum(r["seconds"] for r in runs)
        columns = " | ".join(cells.get(seed, "") for seed in seeds)
        yield f"| {name} | {columns} | {gain} | {began:.0f} s | {pace:.1f} |"


def journeys(result: Result) -> dict[str, float]:
    """Return means over a run's tasks to train, and shares of what its nodes' time was."""
    tasks = [row for row in result["tasks"] if row[BEGAN] is not None]
    there = [row[BEGAN] - row[SENT] for row in tasks]
    works = [row[ENDED] - row[BEGAN] for row in tasks]
    back = [row[SEEN] - row[ENDED] for row in tasks]
    whole = NODES * result["seconds"]
    still_out = sum(result["seconds"] - row[SENT] for row in result["tasks"] if row[SEEN] is None)
    return {
        "there": statistics.mean(there),
        "sleep": statistics.mean(row[SLEPT] for row in tasks),
        "train": statistics.mean(work - row[SLEPT] for work, row in zip(works, tasks, strict=True)),
        "back": statistics.mean(back),
        "working": 100 * sum(works) / whole,
        "travelling": 100 * (sum(there) + sum(back)) / whole,
        "idle": 100 * (1 - (sum(there) + sum(works) + sum(back) + max(0.0, still_out)) / whole),
    }


def _journeys(found: Sequence[Result], contestants: Sequence[str]) -> Iterator[str]:
    heads = ("a task, s", "sent to begun", "sleeps", "trains", "done to seen", "nodes at work, %", "under way", "idle")
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name in contestants:
        each = [journeys(result) for result in found if result["contestant"] == name]
        if each:
            mean = {key: statistics.mean(one[key] for one in each) for key in each[0]}
            parts = [f"{mean[key]:.1f}" for key in ("there", "sleep")] + [f"{mean['train']:.2f}", f"{mean['back']:.1f}"]
            shares = [f"{mean[key]:.0f}" for key in ("working", "travelling", "idle")]
            yield f"| {name} | {' | '.join(parts + shares)} |"


def server_seconds(found: Sequence[Result], contestants: Sequence[str]) -> Iterator[str]:
    """Yield where fedpace's servers spent their seconds: the share of them, the mean time, and the mean work in it."""
    runs = {name: [r for r in found if r["contestant"] == name and r["spent"]] for name in contestants}
    shown = [name for name in contestants if runs[name]]
    worked = all("work" in spent_on(run, "deciding") for name in shown for run in runs[name])
    yield f"| the server, % of its seconds, ms per time{' (of work)' if worked else ''} | {' | '.join(shown)} |"
    yield "|---" * (len(shown) + 1) + "|"
    for what in WHATS:
        cells = []
        for name in shown:
            spent = [spent_on(run, what) for run in runs[name] if what in run["spent"]]
            total = {key: sum(one.get(key, 0.0) for one in spent) for key in SPENT}
            share = 100 * total["seconds"] / sum(run["seconds"] for run in runs[name])
            each, work = (1000 * total[key] / max(1, total["times"]) for key in ("seconds", "work"))
            words = f"{share:.1f} %, {each:.1f} ms" + (f" ({work:.1f})" if worked else "")
            cells.append(words if spent else "")
        if any(cells):
            yield f"| {what} | {' | '.join(cells)} |"
    rows = {"the longest decision": "longest"} | ({"the most work in one decision": "most_work"} if worked else {})
    for words, key in rows.items():
        most = [max(1000 * spent_on(run, "deciding")[key] for run in runs[name]) for name in shown]
        yield f"| {words} | {' | '.join(f'{one:.0f} ms' for one in most)} |"


def spent_on(run: Result, what: str) -> dict[str, float]:
    """Return what something took; of older records the seconds, the times and the longest, without the work."""
    spent = run["spent"][what]
    return spent if isinstance(spent, dict) else dict(zip(SPENT, spent, strict=False))


def draw(found: Sequence[Result], contestants: Sequence[str], target: float, path: Path) -> None:
    """Draw accuracy over real seconds for every seed; below, what the nodes did under the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    seeds = sorted({result["seed"] for result in found})
    by = {(result["contestant"], result["seed"]): result for result in found}
    shown = (contestants[0], contestants[-1])
    figure: Any = pyplot.figure(figsize=(11, 8.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    panels = above.subplots(1, len(seeds), sharey=True, squeeze=False)[0]
    for panel, seed in zip(panels, seeds, strict=True):
        for name in contestants:
            colour = FIXED[next((scheme for scheme in COLOURS if name.startswith(scheme)), "fed-cs")].colour
            if (run := by.get((name, seed))) is not None:
                times, reached = zip(*run["curve"], strict=True)
                panel.step(times, reached, where="post", color=colour, linewidth=1.4, label=name)
                if run["held"]:
                    panel.plot([run["held"]], [target], "o", color=colour, markersize=8, markeredgecolor="white")
        panel.axhline(target, color="#bbbbbb", linewidth=0.8, zorder=0)
        panel.set_title(f"seed {seed}", fontsize=10)
        panel.set_xlabel("real seconds")
        panel.set_ylim(0.3, 1.0)
        panel.set_xlim(left=0)
    panels[0].set_ylabel("test accuracy; a dot: held from here")
    panels[0].legend(fontsize=8, loc="lower right", frameon=False)
    both = [by[name, seeds[0]] for name in shown]
    rows = below.subplots(2, 1, sharex=True)
    for panel, run, name in zip(rows, both, shown, strict=True):
        order = {part: place for place, part in enumerate(np.argsort(_delays(both)))}
        for row in run["tasks"]:
            if row[PART] is None or row[BEGAN] is None:
                continue
            height = order[int(row[PART])]
            panel.barh(height, row[SEEN] - row[SENT], left=row[SENT], color="#d9d9d9", height=0.8)
            panel.barh(height, row[ENDED] - row[BEGAN], left=row[BEGAN], color="#0072b2", height=0.8)
        panel.axvline(run["held"] or run["seconds"], color="#d2001e", linewidth=1.4)
        panel.set_title(f"{name}: what the nodes do, the fastest below (seed {seeds[0]})", fontsize=10)
        panel.set_yticks([])
    rows[-1].set_xlim(0, max(run["seconds"] for run in both))
    rows[-1].set_xlabel("real seconds; the red line: the target is held from here")
    marks = [Patch(color="#0072b2"), Patch(color="#d9d9d9"), Patch(facecolor="white", edgecolor="#999999")]
    rows[0].legend(marks, ["at work", "in Flower's hands", "without a task"], fontsize=8, loc="lower right")
    figure.savefig(path, dpi=110)


def _delays(runs: Sequence[Result]) -> np.ndarray:
    """Return how long each node slept on average."""
    slept: list[list[float]] = [[] for _ in range(NODES)]
    for run in runs:
        for row in run["tasks"]:
            if row[BEGAN] is not None:
                slept[int(row[PART])].append(row[SLEPT])
    return np.array([statistics.mean(one) if one else np.inf for one in slept])
