"""Styles and labels of the axes in all pictures."""

from __future__ import annotations

from typing import Any

INK, FAINT, BAR = "#222222", "#d9d9d9", "#9aa7b5"


def tidy(axes: Any, title: str, x: str, y: str) -> None:
    """Apply the common style of all pictures to axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors="#555555", labelsize=9)
    axes.grid(True, color=FAINT, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)


def readable_ticks(axes: Any, logarithmic: bool, *, y: bool = False, room: float = 200) -> None:
    """Label the x axis, or the y axis, with plain numbers, few enough to read.

    `room`: how many times the least the largest may be for 2 and 5 of every decade to be written too.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis = axes.yaxis if y else axes.xaxis
    if logarithmic:
        low, high = axes.get_ylim() if y else axes.get_xlim()
        # A span of less than two decades has too few powers of ten to be read from.
        subs = (1.0, 2.0, 5.0) if high / low < room else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def aside(axes: Any, text: str) -> None:
    """Say at the right of the title what the marks mean."""
    axes.set_title(text, loc="right", fontsize=8.5, color=INK)
