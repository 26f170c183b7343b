"""Draws a delay model: the histogram of its seconds on a logarithmic axis."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpace.delays.summary import DelaySummary
from fedpace.report import numbers
from fedpace.report.axes import BAR, INK, readable_ticks, tidy
from fedpace.report.plots import new_figure, save


def write_delays_png(summary: DelaySummary, path: Path, *, title: str) -> None:
    """Draw the histogram to `path`, with the median, the 90 % quantile and a full round marked."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    share = 100 * summary.counts / max(int(summary.counts.sum()), 1)
    tidy(axes, title, "seconds of a client's round", "% of client rounds")
    axes.set_xscale("log")
    axes.bar(
        summary.edges[:-1],
        share,
        width=np.diff(summary.edges),
        align="edge",
        color=BAR,
        edgecolor="white",
        linewidth=0.6,
    )
    top = float(share.max())
    axes.set_ylim(0, top * 1.4)
    readable_ticks(axes, True)
    quantile = dict(zip(summary.levels, summary.quantiles.tolist(), strict=True))
    marks = [("median", quantile.get(0.5), "-"), ("90 % within", quantile.get(0.9), "--")]
    for name, value, line in [*marks, ("a full round", summary.full_round, ":")]:
        if value is not None:
            axes.vlines(
                value, 0, top * 1.06, color=INK, linewidth=1.6, linestyle=line, label=f"{name} {numbers.seconds(value)}"
            )
    axes.legend(loc="upper left", frameon=False, fontsize=9, borderaxespad=0.2)
    save(figure, path)
