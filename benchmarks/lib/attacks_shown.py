"""What attacks do, as tables and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lib.attacks import GONE, HONEST
from lib.defences import DEFAULT, DEFENCES, OFF, VALIDATED
from lib.runs import Found, table

from fedpace.report.picture import new_figure, save, tidy
from fedpace.report.style import INK

POINTS, TIMES = 0.03, 2.0
"""What an attack may cost: points of accuracy below the honest run, and times its seconds."""
DEEPEST = 0.3
"""Points at which the colours of the picture end."""
NOBODY, BACKDOOR = "nobody", "backdoor"


@dataclass(frozen=True)
class Cell:
    """What became of an attack, over the seeds.

    Args:
        final: accuracy at the end.
        lost: how far that is below the honest run without a defence.
        times: seconds to the target over those of the honest run, seed by seed; infinite = it was not held.
        without: the same over those of the fleet without the attackers. NaN: what it is compared with did not hold it.
        success: of the trigger; None where the attack is no backdoor.
        excluded: attackers and others that were not asked any more, over all seeds.
    """

    final: float
    lost: float
    times: tuple[float, ...]
    without: tuple[float, ...]
    success: float | None
    excluded: int

    @property
    def good(self) -> bool:
        """Whether it ends near the honest run, and is nearly as fast, under every seed."""
        return self.lost <= POINTS and _within(self.times)

    @property
    def good_without(self) -> bool:
        """The same, but as fast as the fleet without the attackers: with the fastest gone nobody can be faster."""
        return self.lost <= POINTS and _within(self.without)


def _within(times: Sequence[float]) -> bool:
    """Whether all that can be compared are fast enough, and any can be."""
    known = [value for value in times if not math.isnan(value)]
    return bool(known) and max(known) <= TIMES


Cells = dict[tuple[str, str, str, str], Cell]
"""(scheme, attack, who, defence) -> what became of it."""


def cells(done: Mapping[str, Found]) -> Cells:
    """Return what became of each attack; of those alone whose honest runs are there."""
    found: dict[tuple[str, str, str, str], list[tuple[Found, Found, Found | None]]] = {}
    for name, run in done.items():
        scheme, attack, who, defence, seed = name.split(" | ")
        honest = done.get(" | ".join((scheme, HONEST, NOBODY, OFF, seed)))
        if honest is not None:
            gone = done.get(" | ".join((scheme, GONE, who, OFF, seed)))
            found.setdefault((scheme, attack, who, defence), []).append((run, honest, gone))
    return {place: _cell(runs, backdoor=place[1] == BACKDOOR) for place, runs in found.items()}


def _cell(runs: Sequence[tuple[Found, Found, Found | None]], *, backdoor: bool) -> Cell:
    return Cell(
        final=float(np.mean([run["final"] for run, _, _ in runs])),
        lost=float(np.mean([honest["final"] - run["final"] for run, honest, _ in runs])),
        times=tuple(_times(run, honest) for run, honest, _ in runs),
        without=tuple(_times(run, gone) for run, _, gone in runs),
        success=float(np.mean([run["success"] for run, _, _ in runs])) if backdoor else None,
        excluded=sum(run.get("excluded", 0) for run, _, _ in runs),
    )


def _times(run: Found, base: Found | None) -> float:
    """Return how many times as long a run took to the target as another."""
    if base is None or base["seconds"] is None:
        return math.nan
    return math.inf if run["seconds"] is None else float(run["seconds"] / max(base["seconds"], 1e-9))


def times_shown(values: Sequence[float]) -> str:
    """Return the geometric mean of what got there, and how often it did not."""
    known = [value for value in values if not math.isnan(value)]
    reached = [value for value in known if math.isfinite(value)]
    if not known:
        return "?"
    if not reached:
        return "never"
    mean = math.exp(float(np.mean(np.log(np.maximum(reached, 1e-9)))))
    lost = len(known) - len(reached)
    return f"{mean:.2g}x" + (f", {lost}/{len(known)} never" if lost else "")


def markdown(found: Cells, schemes: Sequence[str], attacks: Sequence[str], who: Sequence[str]) -> str:
    """Return an overview for the first of the groups `who`, the goals for all of them, and a table per scheme."""
    defences = _defences(found)
    parts = [overview(found, schemes, attacks, who[0]), "", goals(found, who), ""]
    for scheme in schemes:
        lines = []
        for group, attack in [(group, attack) for group in (NOBODY, who[0]) for attack in attacks]:
            told = [found.get((scheme, attack, group, defence)) for defence in defences]
            if any(told):
                lines.append([attack, *(_shown(cell, group == NOBODY) for cell in told)])
        if lines:
            parts += [f"**{scheme}**, {who[0]}\n", table(("attack", *defences), lines), ""]
    return "\n".join(parts)


def overview(found: Cells, schemes: Sequence[str], attacks: Sequence[str], who: str) -> str:
    """Return one table for all schemes: the default and the strongest defence side by side."""
    columns = [(scheme, defence) for scheme in schemes for defence in (DEFAULT, VALIDATED[-1])]
    lines = []
    for attack in attacks:
        group = NOBODY if attack == HONEST else who
        told = [found.get((scheme, attack, group, defence)) for scheme, defence in columns]
        if any(told):
            lines.append([attack, *(_shown(cell, group == NOBODY) for cell in told)])
    return table((f"{who}", *(f"{scheme}, {defence}" for scheme, defence in columns)), lines)


def _shown(cell: Cell | None, honest: bool) -> str:
    """Return the accuracy, and the time over that of the honest run or of the fleet without the attackers."""
    if cell is None:
        return ""
    success = "" if cell.success is None else f", {cell.success:.0%}"
    return f"{cell.final:.2f} ({times_shown(cell.times if honest else cell.without)}){success}"


def goals(found: Cells, who: Sequence[str]) -> str:
    """Return how many cells of each defence meet the goals, and by name those that miss one with a validation set."""
    lines, open_ = [], []
    for defence in _defences(found):
        counts = []
        for group in who:
            attacked = {
                place: cell
                for place, cell in found.items()
                if place[2:] == (group, defence) and place[1] not in (HONEST, GONE, BACKDOOR)
            }
            near = sum(cell.lost <= POINTS for cell in attacked.values())
            soon = sum(cell.good_without for cell in attacked.values())
            counts.append(f"{near}, {soon} of {len(attacked)}" if attacked else "")
            if defence in VALIDATED:
                missed = sorted(place for place, cell in attacked.items() if not cell.good_without)
                open_ += [f"- {', '.join((defence, *place[:3]))}: {_shown(found[place], False)}" for place in missed]
        if any(counts):
            lines.append([defence, *counts])
    said = (
        f"Cells within {100 * POINTS:.0f} points of the honest run, and also within {TIMES:g}x the time of the fleet "
    )
    said += "without the attackers:"
    remaining = ["", "With a validation set, these miss a goal:", "", *(open_ or ["- none"])]
    return "\n".join([said, "", table(("defence", *who), lines), *remaining])


def _defences(found: Cells) -> list[str]:
    there = {place[3] for place in found}
    return [defence for defence in DEFENCES if defence in there]


def picture(found: Cells, schemes: Sequence[str], attacks: Sequence[str], who: str, path: Path) -> None:
    """Draw one panel per scheme, attack by defence: points lost against the honest run, and the accuracy that is left.

    Of the backdoor, its success. Grey cells were not run.
    """
    defences = [each for each in _defences(found) if each != OFF]
    rows = [
        HONEST,
        *(attack for attack in attacks if any((s, attack, who, d) in found for s in schemes for d in defences)),
    ]
    rows = list(dict.fromkeys(row for row in rows if row != GONE))
    figure = new_figure(7.6, 1.6 + len(schemes) * (0.5 + 0.27 * len(rows)))
    panels = np.atleast_1d(figure.subplots(len(schemes), 1, sharex=True)).ravel()
    image: Any = None
    for panel, scheme in zip(panels, schemes, strict=True):
        depth = np.full((len(rows), len(defences)), np.nan)
        for y, attack in enumerate(rows):
            for x, defence in enumerate(defences):
                cell = found.get((scheme, attack, NOBODY if attack == HONEST else who, defence))
                if cell is None:
                    continue
                depth[y, x] = cell.lost if cell.success is None else DEEPEST * cell.success
                text = f"{cell.final:.2f}" if cell.success is None else f"{cell.success:.0%}"
                if cell.success is None and any(math.isinf(value) for value in cell.times):
                    text += " ▾"
                dark = depth[y, x] > 0.6 * DEEPEST
                panel.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else INK)
        tidy(panel, scheme, "", "")
        panel.grid(False)
        panel.set_facecolor("#e4e4e4")
        image = panel.imshow(depth, cmap="YlOrRd", vmin=0.0, vmax=DEEPEST, aspect="auto")
        panel.set_yticks(range(len(rows)), rows, fontsize=9)
        panel.set_xticks(range(len(defences)), [each.replace("-", "\n") for each in defences], fontsize=9)
        panel.tick_params(length=0, labelbottom=True)
        panel.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=panels.tolist(), location="bottom", shrink=0.6, aspect=40, pad=0.02)
    bar.set_label("accuracy lost against the honest run; of the backdoor, its success from 0 to 100%", fontsize=9)
    figure.supxlabel("▾ some run did not hold the target; grey: not run", fontsize=9, color=INK)
    figure.suptitle(_message(found, who), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    save(figure, path)


def _message(found: Cells, who: str) -> str:
    """Return the title: how many attacks the default and the strongest defence withstand."""
    counts = []
    for defence, how in ((DEFAULT, "by default"), (VALIDATED[-1], f"with {VALIDATED[-1]}")):
        told = [
            cell.lost <= POINTS
            for place, cell in found.items()
            if place[2:] == (who, defence) and place[1] not in (HONEST, GONE, BACKDOOR)
        ]
        counts.append(f"{sum(told)} of {len(told)} {how}")
    return f"Attacks by the {who} that end within {100 * POINTS:.0f} points of\nthe honest run: {', '.join(counts)}"
