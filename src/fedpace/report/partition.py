"""Draws a partition: the number of samples per client and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.report.axes import BAR, tidy
from fedpace.report.plots import new_figure, save

SHOWN_TICKS = 20
"""Class labels beyond which only some are written."""


def write_partition_png(histograms: FloatArray, path: Path, *, title: str) -> None:
    """Draw (clients, classes) counts to `path`: each client's mix as colours, its size as a bar beside it."""
    clients, classes = histograms.shape
    sizes = histograms.sum(axis=1)
    figure = new_figure(9.0, float(np.clip(0.055 * clients + 2.0, 3.5, 12.0)))
    mixes, bars = figure.subplots(1, 2, width_ratios=(3, 1), sharey=True)
    shares = 100 * histograms / np.maximum(sizes, 1)[:, None]
    # Sequential, and told apart in grey and with every common colour blindness.
    drawn = mixes.imshow(shares, aspect="auto", interpolation="nearest", cmap="cividis", vmin=0)
    tidy(mixes, title, "class", "client")
    mixes.grid(False)
    step = -(-classes // SHOWN_TICKS)
    mixes.set_xticks(range(0, classes, step))
    figure.colorbar(drawn, ax=mixes, label="% of the client's samples", pad=0.02)
    tidy(bars, "samples of a client", "samples", "")
    bars.barh(np.arange(clients), sizes, height=1.0, color=BAR)
    bars.set_xlim(left=0)
    save(figure, path)
