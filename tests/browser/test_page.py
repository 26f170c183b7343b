"""The page in a real browser: every switch used, nothing cut off, everything readable.

make test-browser          FEDPACE_SHOTS=FOLDER keeps pictures of every page
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from made_up import CASES, MARKUP

from fedpace.report.comparison import summarise
from fedpace.report.tables import scheme_table

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHECKS = (Path(__file__).parent / "checks.js").read_text()
SHOTS = os.environ.get("FEDPACE_SHOTS")
if SHOTS:
    Path(SHOTS).mkdir(parents=True, exist_ok=True)
DRAWN = "return [...document.querySelectorAll('.figure')].every((f) => f.querySelector('.main-svg'))"
SCROLL = "document.querySelectorAll('.figure')[arguments[0]].scrollIntoView({block: 'center'})"


def look(browser, page, **screen):
    """Open a page and scroll through it, as a reader does, until every figure is drawn."""
    browser.open(page, **screen)
    count = browser.run("return document.querySelectorAll('.figure').length")
    for number in range(count):
        browser.run(SCROLL, number)
        browser.wait(f"return document.querySelectorAll('.figure')[{number}].querySelector('.main-svg') !== null")
    browser.run("window.scrollTo(0, 0)")
    assert browser.run(DRAWN)


def errors(browser):
    return [entry["message"] for entry in browser.console() if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, False), (390, True), (1440, True)])
def test_every_page_on_every_screen(browser, pages, case, width, dark):
    look(browser, pages[case], width=width, dark=dark)
    if SHOTS:
        browser.screenshot(Path(SHOTS) / f"{case}-{width}-{'dark' if dark else 'light'}.png")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(CHECKS + "return overlaps()") == []
    assert browser.run(CHECKS + "return crossed()") == []
    assert browser.run(CHECKS + "return faint()") == []
    assert errors(browser) == []


def test_the_largest_page_is_small_and_soon_there(browser, pages):
    assert pages["twelve"].stat().st_size < 8_000_000
    browser.open(pages["twelve"])
    browser.wait("return document.querySelector('#figure-metric .main-svg') !== null")
    took = browser.run("return performance.now()")
    # Stated, and no test: machines differ. `-rP` shows it.
    sys.stdout.write(f"{pages['twelve'].stat().st_size:,} bytes, interactive after {took:,.0f} ms\n")


def test_switches(browser, pages):
    look(browser, pages["twelve"])
    title = "return document.querySelector('#figure-metric .xtitle').textContent"
    press = "document.querySelector(`[data-figure='${arguments[0]}'][data-view='${arguments[1]}']`).click()"
    for view, words in (("rounds", "rounds"), ("work", "client work"), ("time", "virtual time")):
        browser.run(press, "metric", view)
        assert words in browser.run(title)
        pressed = "return [...document.querySelectorAll(\"[data-figure='metric'][aria-pressed='true']\")].length"
        assert browser.run(pressed) == 1
    before = browser.run("return document.querySelector('#figure-speed .ytitle').textContent")
    browser.run(press, "speed", "metric")
    assert browser.run("return document.querySelector('#figure-speed .ytitle').textContent") != before
    assert errors(browser) == []


def test_schemes_are_hidden_and_shown_in_every_figure(browser, pages):
    look(browser, pages["twelve"])
    lines = "return document.querySelectorAll('#figure-speed .scatterlayer .trace').length"
    assert browser.run(lines) == 12
    browser.run("document.querySelectorAll('[data-scheme]')[3].click()")
    assert browser.run(lines) == 11
    assert browser.run("return document.querySelectorAll('#at-values li').length") == 11
    browser.run("document.getElementById('all-schemes').click()")
    assert browser.run(lines) == 12
    assert errors(browser) == []


def test_schemes_are_filtered_by_name_and_shown_alone(browser, pages):
    look(browser, pages["twelve"])
    lines = "return document.querySelectorAll('#figure-speed .scatterlayer .trace').length"
    dimmed = "return document.querySelectorAll('table.sortable')[0].querySelectorAll('tr.off').length"
    write = "const f = document.getElementById('filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))"
    browser.run(write, "delayhet")
    assert (browser.run(lines), browser.run(dimmed)) == (2, 10)
    browser.run(write, "random OORT")
    assert (browser.run(lines), browser.run(dimmed)) == (2, 10)
    browser.run("document.getElementById('all-schemes').click()")
    assert (browser.run(lines), browser.run(dimmed)) == (12, 0)
    assert browser.run("return document.getElementById('filter').value") == ""
    browser.run("document.querySelectorAll('button[data-scheme]')[3].dispatchEvent(new Event('dblclick'))")
    assert browser.run(lines) == 1
    assert errors(browser) == []


SPEED_UPS = """
const head = document.querySelector("[data-column='Speed-up']");
const place = [...head.parentNode.children].indexOf(head);
const rows = [...head.closest("table").querySelectorAll("tbody tr")];
return Object.fromEntries(rows.map((row) => [row.dataset.row, row.children[place].innerText.split(/\\s+/).join(" ")]));
"""
COMPARE = "const b = document.getElementById('baseline'); b.value = arguments[0]; b.dispatchEvent(new Event('change'))"


@pytest.mark.parametrize("case", ["twelve", "never"])
def test_readers_choose_the_scheme_that_others_are_compared_with(browser, pages, made, case):
    """The script computes what `summarise(baseline=...)` does, to the last digit."""
    look(browser, pages[case])
    if not browser.run("return document.getElementById('baseline') !== null"):
        pytest.fail("the page has no list of baselines")
    written = browser.run(SPEED_UPS)
    first = browser.run("return document.getElementById('baseline').value")
    for label in browser.run("return [...document.getElementById('baseline').options].map((o) => o.value)"):
        browser.run(COMPARE, label)
        table = scheme_table(summarise(made[case], baseline=label))
        column = [each.title for each in table.columns].index("Speed-up")
        wanted = {row[0].text: " ".join(filter(None, (row[column].text, row[column].note))) for row in table.rows}
        assert browser.run(SPEED_UPS) == wanted
        assert f"over {label}, seed by seed" in browser.run("return document.body.innerText")
        browser.run("document.querySelector(\"[data-view='speed-up']\").click()")
        assert label in browser.run("return document.querySelector('#figure-metric .ytitle').textContent")
        browser.run("document.querySelector(\"[data-view='time']\").click()")
        heavy = "return [...document.getElementById('figure-metric').data].filter((t) => t.line && t.line.width === 4)"
        assert {each["name"] for each in browser.run(heavy)} == {label}
    browser.run(COMPARE, first)
    assert browser.run(SPEED_UPS) == written
    assert errors(browser) == []


def test_the_table_is_sorted_by_the_column_that_is_clicked(browser, pages):
    look(browser, pages["twelve"])
    click = "document.querySelectorAll('table.sortable')[0].querySelectorAll('.sort')[arguments[0]].click()"
    order = (
        "return [...document.querySelectorAll('table.sortable')[0].querySelectorAll('tbody tr')]"
        ".map((row) => 'order' in row.children[1].dataset ? Number(row.children[1].dataset.order) : null)"
    )
    browser.run(click, 1)
    up = browser.run(order)
    known = [value for value in up if value is not None]
    assert known == sorted(known)
    assert up == known + [None] * (len(up) - len(known)), "rows without a time stay last"
    browser.run(click, 1)
    assert browser.run(order) == known[::-1] + [None] * (len(up) - len(known))
    assert errors(browser) == []


def test_the_metric_at_a_time(browser, pages):
    look(browser, pages["never"])
    told = "return [...document.querySelectorAll('#at-values li b')].map((b) => Number(b.textContent))"
    lines = "document.getElementById('figure-metric').data.filter((t) => t.meta === 'line')"
    end = f"return Math.min(...{lines}.map((t) => t.x[t.x.length - 1]))"
    assert browser.run("return Number(document.getElementById('at').value)") >= browser.run(end), "not rounded down"
    ask = "const at = document.getElementById('at'); at.value = arguments[0]; at.dispatchEvent(new Event('input'));"
    browser.run(ask, 0)
    assert browser.run(told) == [0.1, 0.1, 0.1]
    browser.run(ask, 1e9)
    late = browser.run(told)
    assert all(value > 0.3 for value in late)
    browser.run("const r = document.getElementById('at-range'); r.value = 1000; r.dispatchEvent(new Event('input'));")
    assert browser.run(told) == pytest.approx(late, abs=0.05)


def test_the_map_of_every_scheme(browser, pages):
    look(browser, pages["twelve"])
    choose = (
        "const s = document.getElementById('map-scheme'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"
    )
    seen = set()
    for name in browser.run("return [...document.getElementById('map-scheme').options].map((o) => o.value)"):
        browser.run(choose, name)
        found = browser.run(
            "const d = document.getElementById('figure-map').data[0]; return [d.z.length, JSON.stringify(d.z)]"
        )
        assert found[0] == 100
        seen.add(found[1])
    assert len(seen) == 12
    texts = browser.run(
        "return document.getElementById('figure-map').data[0].text.flat().filter((t) => t.includes('in with'))"
    )
    assert len(texts) > 100
    assert errors(browser) == []


def test_ten_thousand_clients_are_put_into_boxes(browser, pages):
    look(browser, pages["large"])
    assert browser.run("return document.getElementById('figure-map').data[0].z.length") <= 120
    assert "84 clients" in browser.run("return document.getElementById('figure-map').data[0].text.flat().join()")


def test_names_are_text_and_never_markup(browser, pages):
    look(browser, pages["markup"])
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert MARKUP in browser.run("return document.querySelector('h1').textContent")
    names = browser.run("return [...document.querySelectorAll('tbody th .name')].map((s) => s.textContent)")
    assert MARKUP in names
    # Hover over the map: plotly reads its texts as HTML of its own.
    x, y = browser.run(
        "const map = document.getElementById('figure-map'); map.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const { xaxis, yaxis } = map._fullLayout;"
        "const row = map.data[0].z.findIndex((cells) => cells[0] !== null);"
        "const box = map.getBoundingClientRect();"
        "return [box.left + xaxis._offset + xaxis.c2p(1), box.top + yaxis._offset + yaxis.c2p(row)]"
    )
    browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x - 2, y=y)
    browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.wait("return document.querySelector('#figure-map .hovertext') !== null")
    told = browser.run("return document.querySelector('#figure-map .hovertext').textContent")
    assert "<img" in told
    assert "weight" in told
    assert "in with" in told
    assert errors(browser) == []


def test_everything_is_reached_by_keyboard(browser, pages):
    browser.open(pages["twelve"])
    browser.wait("return document.querySelector('#figure-metric .main-svg') !== null")
    reached = set()
    for _ in range(40):
        browser.keys("\ue004")  # tab
        reached.add(
            browser.run(
                "const e = document.activeElement;"
                "return e.id || e.dataset.view || (e.dataset.scheme && 'chip') || e.className || e.tagName"
            )
        )
    assert {
        "scroll",
        "chip",
        "all-schemes",
        "time",
        "rounds",
        "work",
        "at",
        "at-range",
        "map-scheme",
        "share",
    } <= reached
    browser.run("document.querySelector(\"[data-view='rounds']\").focus()")
    browser.keys("\ue007")  # enter
    assert "rounds" in browser.run("return document.querySelector('#figure-metric .xtitle').textContent")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) == "solid"


def test_printing_draws_everything_in_light_colours(browser, pages):
    browser.open(pages["twelve"], dark=True)
    browser.wait("return document.querySelector('#figure-metric .main-svg') !== null")
    assert not browser.run(DRAWN)  # most are below the screen
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run(DRAWN)
    assert (
        browser.run("return getComputedStyle(document.documentElement).getPropertyValue('--page').trim()") == "#ffffff"
    )
    ink = "return document.querySelector('#figure-metric .xtitle').style.fill"
    assert browser.run(ink) == "rgb(29, 36, 48)"
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run(ink) == "rgb(230, 234, 240)"
    printed = browser.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000
    if SHOTS:
        (Path(SHOTS) / "twelve.pdf").write_bytes(printed)
