"""What secure aggregation and differential privacy cost on cells of the grid: plain, with sums, and with noise.

    nice -n 10 python benchmarks/secure.py benchmarks/secure.json
    python benchmarks/secure.py --picture docs/secure.png benchmarks/secure.json
    python benchmarks/secure.py out.json --cells digits-2/synthetic/rare --schemes fedbuff --modes plain "sums 8"

Cells, targets, step sizes and options are those of the grid (`benchmarks/grid`); a buffer or cohort that is smaller
than the minimum of a sum is raised to it. A run goes on until it holds the hard target, or for `LIMIT` times as long as
the grid recorded for its scheme. Sums are charged with what the protocol costs: with a trusted aggregator, 0.2 s a step
and 60 bytes per upload; with masks (SecAgg+), three round trips of 0.2 s per step, 2 kB per upload and, for
`pace-async`, a second vector down and up per task. Noise is measured by the best accuracy until the budget is spent.
Runs that `out` holds already are not made again; `--add` takes those of other files. The mode was developed on seeds 0
and 1: their runs are summed up apart from those of other seeds.

`exposed`: number of clients about whom alone some combination of all sums of a run tells something
(`fedpace.core.exposure`), counted over the whole run, also where the server starts its own count anew.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from grid.cells import EMBEDDED, LEVELS, cells
from grid.runs import HOLD, prepare
from grid.schemes import Scheme
from grid.tuning import Tuned

from fedpace import TrainingPrivacy
from fedpace.core.exposure import Exposure
from fedpace.core.sums import Group, GroupSum
from fedpace.records.holding import Holding
from fedpace.report.picture import new_figure, save, tidy
from fedpace.report.style import FIXED, INK, PALETTE

GRID = Path(__file__).parent / "grid" / "results.json"
CELLS = tuple(
    f"digits-{data}/{delays}/{rare}"
    for data in ("0.3", "2", "rotated")
    for delays in ("synthetic", "nycmesh")
    for rare in ("independent", "rare")
)
NOISY = "digits-0.3/synthetic/independent"
"""The cell of the runs with noise, which decides there, not the cell."""
SCHEMES = {"pace": "pace", "pace-async": "pace-async", "fedbuff": "fedbuff", "random": "random-tuned"}
"""Scheme -> its label in the grid."""
STEPS, LIMIT = 1500, 4.0
"""Most steps; most seconds, as a multiple of what the grid recorded for the hard target."""
COSTS: dict[str, Any] = {"round_trips": 1, "trip_seconds": 0.2, "client_bytes": 60}
"""Of a trusted aggregator: the server asks it for the sums; keys and nonces come with each upload."""
MASKS: dict[str, Any] = {"protocol": "masks", "round_trips": 3, "trip_seconds": 0.2, "client_bytes": 2000}
"""Of SecAgg+: key exchange, shares, unmasking; the clients keep their memory."""
MODES: dict[str, TrainingPrivacy | None] = {
    "plain": None,
    **{f"sums {least}": TrainingPrivacy("sums", minimum=least, **COSTS) for least in (4, 8, 16)},
    **{f"masks {least}": TrainingPrivacy("sums", minimum=least, **MASKS) for least in (4, 8, 16)},
    "masks 8, 1.5 vectors": TrainingPrivacy("sums", minimum=8, **MASKS),
    "masks 8, one vector": TrainingPrivacy("sums", minimum=8, **MASKS),
    **{
        f"{mechanism} {epsilon}": TrainingPrivacy(
            "sums", minimum=8, epsilon=float(epsilon), clip=0.5, releases=20, mechanism=mechanism, **COSTS
        )
        for mechanism in ("gaussian", "ftrl")
        for epsilon in (1, 3, 10)
    },
}
VECTORS = {"masks 8, 1.5 vectors": 1.5, "masks 8, one vector": 1.0}
"""Ablations: the clock is charged with so many vectors per task, each way, in place of two. No protocol does that."""
DEVELOPMENT = (0, 1)
"""Seeds on which sums were developed, and of the ablations; `main` takes others for what is reported."""
REPORTED = ("plain", "sums 4", "sums 8", "sums 16", "masks 4", "masks 8", "masks 16")
NOISES = tuple(mode for mode, privacy in MODES.items() if privacy is not None and privacy.epsilon)
KINDS = {"sums": "a trusted aggregator", "masks": "masks"}
"""Kind of mode -> who adds up."""
LEASTS = (4, 8, 16)
DELAYS = {"synthetic": PALETTE[2], "nycmesh": PALETTE[3]}
"""Delays -> their colour in the picture: not that of a scheme in it."""
Row = dict[str, Any]


def run(cell_name: str, name: str, mode: str, seed: int) -> Row:
    """Return what became of one run."""
    began = time.process_time()
    cell = next(cell for cell in cells(EMBEDDED) if cell.name == cell_name)
    recorded = {each["cell"]: each for each in json.loads(GRID.read_text())["cells"]}
    tuned = Tuned()
    scheme = tuned.scheme(Scheme(SCHEMES[name], name), cell)
    privacy = MODES[mode]
    if privacy is not None:
        fewest = {key: max(scheme.options[key], privacy.minimum) for key in ("k", "buffer") if key in scheme.options}
        scheme = scheme.given({**scheme.options, **fewest}, scheme.factor)
    one = prepare(
        cell,
        scheme.selector(cell.task.data.clients),
        tuned.rate(cell) * scheme.factor,
        seed,
        charged=scheme.warms_up,
        server=scheme.server,
        privacy=privacy,
    )
    if mode in VECTORS:
        one.time.transfers = VECTORS[mode]
    noisy = privacy is not None and privacy.epsilon > 0
    audit = Exposure()
    if one.groups is not None and not noisy:
        opened = one.groups.open

        def watched(group: Group, minimum: int) -> GroupSum | None:
            nonlocal audit
            found = opened(group, minimum)
            if found is not None:
                audit = audit.after([group])
            return found

        one.groups.open = watched  # type: ignore[method-assign]
    plain = recorded[f"{cell_name}/hard"]["schemes"].get(scheme.label, {})
    usual = [seconds for seconds in plain.get("seconds", {}).values() if seconds] or [math.inf]
    every = float(np.median(one.expected_delays))
    held = {
        level: Holding(recorded[f"{cell_name}/{level}"]["targets"][str(seed)], "up", hold=HOLD, every=every)
        for level in LEVELS
    }
    clocks: list[float] = []
    best, last = 0.0, None
    with closing(one.rounds()) as rounds:
        for last in rounds:
            clocks.append(last.clock)
            best = max(best, last.metric or 0.0)
            for each in held.values():
                each.add(last.clock, last.metric)
            over = last.number >= STEPS or last.clock > LIMIT * max(usual)
            if over or (held["hard"].held is not None and not noisy):
                break
    return {
        "cell": cell_name,
        "scheme": name,
        "mode": mode,
        "seed": seed,
        **{level: None if each.held is None else clocks[each.held] for level, each in held.items()},
        "steps": len(clocks) - 1,
        "clock": clocks[-1],
        "best": best,
        "exposed": len(set(audit.clients())) if audit.owners else None,
        "epsilon": None if last is None else last.facts.get("privacy", {}).get("epsilon"),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def summary(runs: list[Row]) -> dict[str, dict[str, Any]]:
    """Return scheme -> mode -> time over the plain one's (geometric mean over runs that both held), and misses."""
    times = {(r["cell"], r["scheme"], r["mode"], r["seed"]): r for r in runs}
    found: dict[str, dict[str, Any]] = {}
    for scheme in dict.fromkeys(r["scheme"] for r in runs):
        for mode in dict.fromkeys(r["mode"] for r in runs):
            some = [each for each in runs if (each["scheme"], each["mode"]) == (scheme, mode)]
            if not some:
                continue
            entry: dict[str, Any] = {"runs": len(some)}
            for level in LEVELS:
                pairs = [(each[level], times.get((each["cell"], scheme, "plain", each["seed"]))) for each in some]
                ratios = [took / plain[level] for took, plain in pairs if took and plain and plain[level]]
                entry[level] = _mean(ratios)
                entry[f"{level} missed"] = sum(each[level] is None for each in some)
                against = [times.get((each["cell"], "fedbuff", mode, each["seed"])) for each in some]
                entry[f"{level}: as fast as fedbuff"] = _mean(
                    [
                        other[level] / each[level]
                        for other, each in zip(against, some, strict=True)
                        if other and other[level] and each[level]
                    ]
                )
            exposed = [each["exposed"] for each in some if each["exposed"] is not None]
            entry["most exposed"] = max(exposed) if exposed else None
            entry["best accuracies"] = [round(each["best"], 3) for each in some] if mode in NOISES else None
            found.setdefault(scheme, {})[mode] = entry
    return found


def _mean(ratios: list[float]) -> float | None:
    return round(math.exp(float(np.mean(np.log(ratios)))), 3) if ratios else None


def over_plain(runs: list[Row], mode: str, delays: str) -> tuple[float, float]:
    """Return the logarithm of pace-async's time to the hard target over plain, and the mean's standard error."""
    plain = {(r["cell"], r["seed"]): r["hard"] for r in runs if (r["scheme"], r["mode"]) == ("pace-async", "plain")}
    found = [
        math.log(r["hard"] / plain[r["cell"], r["seed"]])
        for r in runs
        if (r["scheme"], r["mode"]) == ("pace-async", mode) and f"/{delays}/" in r["cell"] and r["hard"]
        if plain.get((r["cell"], r["seed"]))
    ]
    if len(found) < 2:
        return math.nan, 0.0
    return float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(len(found))


def picture(path: Path, results: Row) -> None:
    """Draw what sums cost `pace-async` by the minimum and by who adds up, and what noise costs by epsilon."""
    runs = results["runs"]
    figure = new_figure(6.6, 7.2)
    upper, lower = figure.subplots(2, 1)
    both = {kind: [m for d in DELAYS if math.isfinite(m := over_plain(runs, f"{kind} 8", d)[0])] for kind in KINDS}
    factors = {kind: math.exp(float(np.mean(found))) for kind, found in both.items() if found}
    said = " and ".join(f"{factor:.1f} times as long with {KINDS[kind]}" for kind, factor in factors.items())
    figure.suptitle(
        "\n".join(textwrap.wrap(f"With sums of at least 8 clients, pace-async takes {said}", 54)),
        x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK,
    )  # fmt: skip
    tidy(upper, "Time to the hard target", "fewest clients in a sum, of 60", "times as long as without sums")
    for place, (delays, colour) in enumerate(DELAYS.items()):
        for kind, who in KINDS.items():
            means = [over_plain(runs, f"{kind} {least}", delays) for least in LEASTS]
            at = np.arange(3) + 0.12 * (place - 0.5) + (0.03 if kind == "masks" else -0.03)
            known = [(x, mean, error) for x, (mean, error) in zip(at, means, strict=True) if math.isfinite(mean)]
            if not known:
                continue
            x, middle = np.array([each[0] for each in known]), np.exp([each[1] for each in known])
            low, high = (np.exp([mean + side * 1.96 * error for _, mean, error in known]) for side in (-1, 1))
            mark, line = ("o", "-") if kind == "sums" else ("s", "none")
            upper.errorbar(
                x, middle, [middle - low, high - middle], marker=mark, ls=line, color=colour,
                label=f"{who}, {delays} delays",
            )  # fmt: skip
    upper.set_xticks(range(3), [str(least) for least in LEASTS])
    upper.axhline(1, color=INK, linewidth=1, linestyle=(0, (5, 4)), zorder=1)
    upper.set_ylim(bottom=0)
    upper.margins(y=0.25)
    upper.legend(frameon=False, fontsize=9, loc="lower left")
    noisy = [mode for mode in NOISES if mode.startswith("gaussian")]
    tidy(lower, "Best accuracy with noise", "epsilon of each client", "accuracy")
    ends: list[tuple[float, str, str]] = []
    for scheme in SCHEMES:
        found = {
            mode.split()[1]: float(np.mean(best))
            for mode in noisy
            if (best := [r["best"] for r in runs if (r["scheme"], r["mode"]) == (scheme, mode)])
        }
        if len(found) > 1:
            lower.plot(list(found), list(found.values()), marker="o", color=FIXED[scheme].colour)
            ends.append((list(found.values())[-1], scheme, list(found)[-1]))
    at_height = -math.inf
    for height, scheme, last in sorted(ends):  # names stand apart where curves end together
        at_height = max(height, at_height + 0.07)
        lower.annotate(
            scheme, (last, at_height), xytext=(9, 0), textcoords="offset points", va="center", fontsize=10,
            color=FIXED[scheme].colour,
        )  # fmt: skip
    lower.set_ylim(0, 1)
    lower.margins(x=0.2)
    save(figure, path)


def main() -> None:
    """Run, or draw what was run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", nargs="+", default=list(CELLS))
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES))
    parser.add_argument("--modes", nargs="+", default=[*REPORTED, *NOISES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    if given.picture is not None:
        picture(given.picture, json.loads(given.out.read_text()))
        return
    files = [path for path in (given.out, *given.add) if path.exists()]
    runs: list[Row] = [each for path in files for each in json.loads(path.read_text())["runs"]]
    known = {(r["cell"], r["scheme"], r["mode"], r["seed"]) for r in runs}
    wanted = [
        (cell, scheme, mode, seed)
        for seed in given.seeds
        for cell in given.cells
        for scheme in given.schemes
        for mode in given.modes
        if cell == NOISY or mode not in NOISES
    ]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for key in [None] if given.add else [key for key in wanted if key not in known]:
        if key is not None:
            runs.append({**run(*key), "commit": commit.stdout.strip()})
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        content = {
            "command": "python benchmarks/secure.py benchmarks/secure.json",
            "commit": commit.stdout.strip(),
            "date": date.today().isoformat(),
            "costs": COSTS,
            "summary": summary([each for each in runs if each["seed"] not in DEVELOPMENT]),
            "development": summary([each for each in runs if each["seed"] in DEVELOPMENT]),
            "runs": runs,
        }
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
