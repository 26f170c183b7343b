"""The grid at a glance: a table for the terminal, and a heat map of the speed-ups over random."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

ORDER = {"ours": 0, "paper": 1, "baseline": 2, "control": 3}


def table(summary: dict[str, Any], shown: int = 8) -> str:
    """One line a cell: the fastest schemes with their speed-ups over random, and where the flagship stands."""
    lines = []
    for cell in summary["cells"]:
        fastest = [
            f"{label} {entry['speed_up']['mean']:.2f}"
            for label, entry in cell["schemes"].items()
            if entry["speed_up"] is not None
        ][:shown]
        failed = [f"{label} ({entry['failed']})" for label, entry in cell["schemes"].items() if entry["failed"]]
        failed += [f"{label} given up" for label, entry in cell["schemes"].items() if "given_up" in entry]
        standing = cell["standing"] or "-"
        lines.append(f"{cell['cell']:<42} {standing:<8} {'  '.join(fastest)}")
        if failed:
            lines.append(f"{'':<52}failed: {', '.join(failed)}")
    verdict = {key: value for key, value in summary["verdict"].items() if key != "speed_up_over_random"}
    lines += [f"{key}: {value}" for key, value in verdict.items()]
    for name, other in summary["otherwise"].items():
        said = {key: value for key, value in other.items() if key not in ("speed_up_over_random", "cells")}
        lines.append(f"{name}: {said}")
    for label, entry in summary["verdict"]["speed_up_over_random"].items():
        mean = entry["geometric_mean_where_reached"]
        lines.append(
            f"  {label:<32} {'-' if mean is None else f'{mean:.2f}':>7}x where reached; "
            f"failed in {entry['cells_with_a_failure']} of {entry['cells']} cells"
        )
    return "\n".join(lines)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw cells against schemes: colour is the log of the speed-up over random; grey is failure, white is not run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = summary["cells"]
    overall = summary["verdict"]["speed_up_over_random"]
    camps = {label: entry["camp"] for cell in cells for label, entry in cell["schemes"].items()}

    def place(label: str) -> tuple[int, bool, int, float]:
        mine = overall[label]
        mean = mine["geometric_mean_where_reached"] or 0.0
        return ORDER[camps[label]], label != summary["flagship"], mine["cells_with_a_failure"], -mean

    labels = sorted(camps, key=place)
    values = np.full((len(cells), len(labels)), np.nan)
    texts: dict[tuple[int, int], str] = {}
    for y, cell in enumerate(cells):
        for x, label in enumerate(labels):
            entry = cell["schemes"].get(label)
            if entry is None:
                continue
            if entry["speed_up"] is None:
                texts[y, x] = f"{entry['failed']}✗" if entry["failed"] else f"{entry['given_up']}…"
            else:
                mean = entry["speed_up"]["mean"]
                values[y, x] = math.log2(mean)
                texts[y, x] = f"{mean:.1f}" if mean < 9.95 else f"{mean:.0f}"
    figure, axes = pyplot.subplots(figsize=(2.6 + 0.52 * len(labels), 1.9 + 0.27 * len(cells)), layout="constrained")
    widest = 5.0
    colours = pyplot.get_cmap("RdBu").copy()
    colours.set_bad("white")
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=-widest, vmax=widest, aspect="auto")
    for (y, x), text in texts.items():
        if np.isnan(values[y, x]):
            axes.add_patch(pyplot.Rectangle((x - 0.5, y - 0.5), 1, 1, color="#d0d0d0", linewidth=0))
        dark = abs(values[y, x]) > 0.6 * widest if np.isfinite(values[y, x]) else False
        ahead = cells[y]["standing"] == "fastest"
        best = labels[x] == (summary["flagship"] if ahead else cells[y]["best"]["of_all_others"])
        axes.text(
            x,
            y,
            text,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
            weight="bold" if best else "normal",
        )
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(range(len(cells)), [cell["cell"] for cell in cells], fontsize=8)
    for edge in range(1, len(labels)):
        if camps[labels[edge]] != camps[labels[edge - 1]]:
            axes.axvline(edge - 0.5, color="black", linewidth=1.5)
    tasks = [cell["cell"].split("/")[0] for cell in cells]
    for edge in range(1, len(cells)):
        if tasks[edge] != tasks[edge - 1]:
            axes.axhline(edge - 0.5, color="black", linewidth=1.5)
    axes.set_title(
        "Speed-up over random in the time until a target is held, warm-ups charged, options tuned\n"
        "ours | the paper's | baselines | controls with the steps of pace\n"
        "(bold: the fastest that competes, which neither variants of pace nor controls do; "
        "✗: seeds that missed the target; …: seeds given up, far behind; white: not run, or does not apply)",
        fontsize=10,
    )
    bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01)
    ticks = np.arange(-widest, widest + 1)
    bar.set_ticks(ticks, labels=[f"{2.0**tick:g}" for tick in ticks])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
