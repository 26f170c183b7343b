from __future__ import annotations

import html
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects as go
import pytest
from curves import metric_over_time
from matplotlib.image import imread

from fedpace._base.errors import MissingExtraError
from fedpace.report import figures, plotly_figures
from fedpace.report.comparison import summarise
from fedpace.report.figures import (
    MAX_POINTS,
    cohort_over_rounds,
    histogram,
    log_time,
    long_tailed,
    looks,
)
from fedpace.report.page import render_page, write_page
from fedpace.report.picture import write_png
from fedpace.report.plotly_figures import plotly_figure
from fedpace.report.style import NEUTRAL, PALETTE, SCHEMES, scheme_looks

EVIL = "<script>alert(1)</script>"
TAIL = tuple(float(value) for value in np.geomspace(1, 1000, 40))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def every_case(make_run):
    tailed = {"expected_delays": TAIL}
    return {
        "one run": [make_run("a", 0, [(10, 0.5), (10, 0.95)])],
        "no target": [make_run("a", 0, [(10, 0.5)], target=None), make_run("b", 0, [(5, 0.5)], target=None)],
        "long tail": [make_run("a", 0, [(10, 0.5), (900, 0.95)], **tailed), make_run("b", 0, [(1, 0.2)], **tailed)],
        "diverged, logarithmic": [make_run("a", 0, [(9, 0.95)], **tailed), make_run("b", 0, [], status="diverged")],
        "diverged at once": [make_run("wild", 0, [], status="diverged"), make_run("a", 0, [(10, 0.95)])],
        "nothing but the start": [make_run("wild", 0, [], status="diverged", target=None)],
        "no delays": [make_run("a", 0, [(10, 0.95)], expected_delays=())],
        "equal delays": [make_run("a", 0, [(10, 0.95)], expected_delays=(5.0,) * 9)],
        "instant clients": [make_run("a", 0, [(0.0, 0.5), (0.0, 0.95)], expected_delays=(0.0,) * 9)],
        "a client that never answers": [make_run("a", 0, [(10, 0.95)], expected_delays=(1.0, None, float("inf")))],
        "strange labels": [
            make_run("_$x^{$ 随机 & <b>", 0, [(10, 0.95)]), make_run(EVIL, 0, [(10, 0.5)]),
            make_run("m" * 90, 0, [(9, 0.5)]),
        ],
        "many schemes": [make_run(f"s{i}", 0, [(10 + i, 0.95)]) for i in range(30)],
    }  # fmt: skip


CASES = list(every_case(lambda *_, **__: None))


@pytest.mark.parametrize("case", CASES)
def test_every_case_makes_a_picture_and_a_page(case, make_run, tmp_path):
    runs = every_case(make_run)[case]
    comparison = summarise(runs)
    write_png(runs, comparison, tmp_path / "report.png")
    image = imread(tmp_path / "report.png")
    height, width = image.shape[:2]
    assert width > 1000
    assert height > 600
    ink = (image[:, :, :3] < 0.9).any(axis=2)
    assert 0.005 < ink.mean() < 0.5
    assert not ink[0].any()  # nothing is cut off at the edges
    assert not ink[-1].any()
    assert not ink[:, 0].any()
    assert not ink[:, -1].any()
    page = render_page(runs, comparison, title="t", plotly="")
    for name, figure in embedded(page).items():
        for part in figure.values() if name in ("metric", "speed") else [figure]:
            go.Figure(part)  # refuses whatever plotly does not know; the map is put together by the page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.png"]


def test_the_picture_is_the_same_for_the_same_runs(three_schemes, tmp_path):
    for name in ("a.png", "b.png"):
        write_png(three_schemes, summarise(three_schemes), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_picture_has_the_schemes_colours(three_schemes, tmp_path):
    write_png(three_schemes, summarise(three_schemes), tmp_path / "a.png")
    pixels = (imread(tmp_path / "a.png")[:, :, :3] * 255).round().astype(int) @ [65536, 256, 1]
    for colour in {look.colour for look in looks(summarise(three_schemes)).values()} | {NEUTRAL}:
        assert (pixels == int(colour[1:], 16)).sum() > 100


def test_the_page_fetches_nothing(three_schemes, tmp_path):
    write_page(three_schemes, summarise(three_schemes), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("plotly.js v") == 1
    assert "default-src 'none'" in page
    assert 'src="http' not in page
    shell = render_page(three_schemes, summarise(three_schemes), title="t", plotly="")
    assert "//" not in re.sub(r"\s// .*", "", shell)  # no address of any kind outside of plotly.js
    for tag, attributes in Tags(shell).found:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base")
        assert not {"src", "href", "srcset", "action"} & set(attributes)


def test_what_users_typed_is_escaped_everywhere(make_run):
    runs = [
        make_run(EVIL, 0, [(10, 0.95)], selector=EVIL, commit=EVIL, versions={EVIL: EVIL}, experiment={EVIL: EVIL}),
        make_run("random", 0, [(20, 0.95)]),
    ]
    page = render_page(runs, summarise(runs, baseline=EVIL), title=EVIL, plotly="")
    assert EVIL not in page
    assert page.count("<script") == page.count("</script>") == 4
    assert html.escape(EVIL) in page
    for name in ("figures", "data"):
        assert "<" not in page.split(f'id="{name}">')[1].split("</script>")[0]  # JSON cannot close its element
    # Plotly reads its texts as HTML of its own, so they are escaped once more inside of the JSON.
    names = {trace.get("name") for trace in embedded(page)["metric"]["time"]["data"]}
    assert html.escape(EVIL) in names
    assert EVIL not in names


def test_the_page_says_what_the_table_says(three_schemes):
    page = render_page(three_schemes, summarise(three_schemes), title="My fleet", plotly="")
    assert "<h1>My fleet</h1>" in page
    assert "not reached" in page
    assert "quick was the fastest" in page
    assert "abc123+" in page
    assert "fedpace 0.1.0" in page
    assert set(embedded(page)) == {"metric", "times", "map", "speed", "cohort", "delays"}


def test_the_page_without_a_target_has_no_times(make_run):
    runs = [make_run("a", 0, [(1, 0.8)], target=None)]
    found = set(embedded(render_page(runs, summarise(runs), title="t", plotly="")))
    assert found == {"metric", "map", "speed", "cohort", "delays"}


def test_marks_of_seeds_tell_who_arrived(three_schemes):
    traces = plotly_figure(figures.times_chart(summarise(three_schemes)))["data"]
    marks = {(trace["name"], trace["marker"]["symbol"]): trace["x"] for trace in traces}
    assert marks == {("random", "circle"): [100, 200], ("quick", "circle"): [50, 50], ("stuck", "x"): [10, 10]}


def test_labels_are_not_plotlys_templates(make_run):
    runs = [make_run("%{x} costs $1$", 0, [(10, 0.95)])]
    (hover,) = {trace["hovertemplate"] for trace in plotly_figure(figures.times_chart(summarise(runs)))["data"]}
    assert hover.count("%{") == 2  # seed and time are its own
    assert "$" not in hover


def test_curves_are_steps_over_a_common_grid(make_run):
    runs = [make_run("a", 0, [(10, 0.4), (10, 0.8)]), make_run("a", 1, [(15, 0.6)])]
    curve = metric_over_time(runs)
    assert curve is not None
    assert curve.x.tolist() == [0, 10, 15, 20]
    # The second run keeps 0.6 after its end.
    assert curve.mean.tolist() == pytest.approx([0.1, 0.25, 0.5, 0.7])
    assert curve.low.tolist() == pytest.approx([0.1, 0.1, 0.4, 0.6])
    assert curve.high.tolist() == pytest.approx([0.1, 0.4, 0.6, 0.8])


def test_diverged_runs_stay_out_of_the_mean_unless_alone(make_run):
    sound, wild = make_run("a", 0, [(10, 0.8)]), make_run("a", 1, [(2, 0.0)], status="diverged")
    both, alone = metric_over_time([sound, wild]), metric_over_time([wild])
    assert both is not None
    assert alone is not None
    assert both.mean.tolist() == [0.1, 0.8]
    assert alone.mean.tolist() == [0.1, 0.0]


def test_long_runs_are_thinned_with_both_ends(make_run):
    run = make_run("a", 0, [(1.0, 0.5)] * 5000)
    curve, cohort = metric_over_time([run]), cohort_over_rounds([run])
    assert curve is not None
    assert cohort is not None
    assert (len(curve.x), curve.x[0], curve.x[-1]) == (MAX_POINTS, 0, 5000)
    assert (len(cohort.x), cohort.x[0], cohort.x[-1]) == (MAX_POINTS, 1, 5000)


def test_time_is_logarithmic_for_long_tails_and_wide_spans(make_run):
    even = [make_run("a", 0, [(10, 0.5)]), make_run("b", 0, [(290, 0.5)])]
    wide = [make_run("a", 0, [(10, 0.5)]), make_run("b", 0, [(310, 0.5)])]
    tailed = [make_run("a", 0, [(10, 0.5)], expected_delays=TAIL)]
    assert [log_time(runs, summarise(runs)) for runs in (even, wide, tailed)] == [False, True, True]
    assert long_tailed(np.array(TAIL))
    assert not long_tailed(np.linspace(15, 130, 100))


@pytest.mark.parametrize("delays", [TAIL, (1.0, 2.0, 3.0), (5.0,) * 4, (0.0, 1.0, 99.0)])
def test_the_histogram_counts_every_client(delays):
    counts, edges, _ = histogram(np.array(delays))
    assert counts.sum() == len(delays)
    assert (np.diff(edges) > 0).all()


def test_random_is_neutral_and_looks_differ(make_run):
    runs = [make_run(name, 0, [(1, 0.95)]) for name in ("s0", "random", *(f"s{i}" for i in range(1, 20)))]
    found = looks(summarise(runs))
    assert found["random"].colour == NEUTRAL
    assert len({found[f"s{i}"].colour for i in range(6)}) == 6, "colours first, then dashes"
    assert len(set(found.values())) == 21


def test_a_scheme_has_the_same_colour_in_every_figure():
    alone = scheme_looks([("pace-async", "pace-async")])["pace-async"]
    assert alone.colour == PALETTE[0]
    among = scheme_looks([("mine", "mine"), *((name, name) for name in reversed(SCHEMES)), ("random", "random")])
    assert among["pace-async"] == alone
    assert len(set(among.values())) == len(among) - 1, "of 26 schemes only the one without a fixed look shares one"
    variants = scheme_looks([("pace-async(work_price=0.1)", "pace-async"), ("pace-async", "pace-async")])
    assert variants["pace-async(work_price=0.1)"] == alone
    assert variants["pace-async"] != alone


def test_nothing_shares_a_colour_with_our_schemes_while_others_are_free():
    """In README's picture the line of over-selection was once as orange as that of pace."""
    demo = ("random", "pace", "pace-async", "fedbuff", "fed-cs", "delayhet-submodular", "delayhet-sampling")
    found = scheme_looks([*((name, name) for name in demo), ("over-selection", "random")])
    assert len({look.colour for look in found.values()}) == 7, "all colours are taken"
    assert found["over-selection"].colour not in {found["pace"].colour, found["pace-async"].colour}


def test_there_is_never_an_empty_figure(make_run):
    """A server whose clients evaluate records no metric: the page shows the training loss instead."""
    run = make_run("pace", 0, [(10, 0.5), (10, 0.9)], expected_delays=())
    dark = replace(run, rounds=tuple(replace(r, metric=None, train_loss=2.0 - r.number) for r in run.rounds))
    page = render_page([dark], summarise([dark]), title="t", plotly="")
    line = next(t for t in embedded(page)["metric"]["time"]["data"] if t.get("meta") == "line")
    assert line["y"] == [2.0, 1.0, 0.0]
    assert "training loss" in page
    blind = replace(run, rounds=tuple(replace(r, metric=None) for r in run.rounds))
    page = render_page([blind], summarise([blind]), title="t", plotly="")
    assert "metric" not in embedded(page)
    assert "id='at'" not in page
    nothing = replace(blind, rounds=blind.rounds[:1])
    assert embedded(render_page([nothing], summarise([nothing]), title="t", plotly="")) == {}


def test_the_page_says_first_what_was_run_and_shows_the_curve_above_the_table(make_run):
    table = {"data": {"name": "digits"}, "model": {"name": "softmax"}, "delays": {"name": "lognormal"}}
    runs = [make_run(label, seed, [(10, 0.95)], experiment=table) for label in ("random", "pace") for seed in (0, 1)]
    page = render_page(runs, summarise(runs), title="t", plotly="")
    said = "Digits data, 4 clients, model softmax, lognormal delays"
    assert 0 < page.index(said) < page.index("class='lead'") < page.index("figure-metric") < page.index("<table")
    shown = re.search(r"<table class=sortable>.*?</thead>", page, re.DOTALL)[0]
    assert re.findall(r"class='sort'>(.*?)</button>", shown) == [
        "Scheme", "Time to<br>target", "Speed-up", "Rounds<br>needed", "Clients<br>per round", "Final<br>accuracy",
    ]  # fmt: skip
    assert "data-order='10'" in page


@pytest.mark.parametrize(
    ("write", "module", "missing"),
    [(write_png, "matplotlib.figure", "matplotlib"), (write_page, "plotly.offline", "plotly")],
)
def test_a_missing_package_is_named_with_its_extra(write, module, missing, three_schemes, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"needs '{missing}'.*fedpace\[report\]"):
        write(three_schemes, summarise(three_schemes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_names_of_curves_stand_near_their_ends_and_within_the_axes():
    """Two curves begin together and part; the names must not stand where they are one line."""
    along = np.linspace(0.0, 1.0, 200)
    paths = [np.column_stack([along, np.where(along < 0.5, 0.1, high)]) for high in (0.4, 0.9)]
    ruled = np.column_stack([along, np.full(200, 0.42)])
    for path, place in zip(paths, plotly_figures.line_names(paths, ["slow", "fast"], 0.01, ruled), strict=True):
        assert place is not None
        anchor, side = place
        assert path[anchor, 0] > 0.8
        # Above the slow curve is another line, and no name covers a line.
        assert side in (
            ("bottom", "bottom left") if path[-1, 1] == 0.4 else ("top", "bottom", "top left", "bottom left")
        )


def test_a_name_stands_out_of_the_axes_rather_than_on_a_mark():
    """Two marks near the left edge: the name of the first fits beside it only over the second."""
    marks, names = [(0.19, 0.24), (0.12, 0.26)], ["pace", "pace-async"]
    sides = plotly_figures.name_sides(marks, names, 0.028)
    assert sides == ["bottom", "top"]
