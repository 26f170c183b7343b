"""The names beside the marks of the picture of costs."""

from __future__ import annotations

from itertools import combinations

from fedpace.report.comparison import summarise
from fedpace.report.picture import new_figure, write_names, write_png

DEMO = {
    "random": (27826.0, 49002.0),
    "pace": (287.0, 9213.0),
    "pace-async": (91.7, 5424.0),
    "fedbuff": (333.0, 20007.0),
    "over-selection": (1257.0, 18867.0),
    "fed-cs": (1419.0, 6338.0),
    "delayhet-submodular": (7529.0, 91875.0),
    "delayhet-sampling": (1611.0, 20479.0),
}


def test_names_do_not_cover_each_other():
    figure = new_figure(4.0, 4.0)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    for point in DEMO.values():
        axes.plot(*point, "o")
    axes.margins(0.16)
    write_names(axes, list(DEMO.values()), list(DEMO))
    figure.canvas.draw()
    assert [text.get_text() for text in axes.texts] == list(DEMO)
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    over = [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
    assert over == []


def test_the_picture_says_whether_the_warm_up_was_charged(three_schemes, tmp_path, monkeypatch):
    written, titles = [], []
    monkeypatch.setattr("matplotlib.legend.Legend.set_title", lambda self, text, **how: written.append(text))
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda self, text, **how: titles.append(text))
    comparison = summarise(three_schemes)
    write_png(three_schemes, comparison, tmp_path / "picture.png")
    assert titles == [], "two seeds do not show which scheme is the fastest"
    said = written[-1].replace("\n", " ")
    assert all(condition in said for condition in comparison.conditions)
    assert "target accuracy ≥ 0.9" in said
