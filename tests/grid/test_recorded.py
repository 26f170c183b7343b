"""Rows that come back from a result file, and the tables that a sceptic would ask for."""

from __future__ import annotations

import json
import math

import pytest

CELL = "toy/synthetic/independent"


def row(label, seed, seconds, *, beyond=None, selector="", cell=CELL):
    """A run; the hard target takes twice as long as the easy one. `beyond`: it was given up before it held any."""

    def level(times):
        held = None if seconds is None else times * seconds
        return {"target": 0.9, "seconds": held, **({} if beyond is None else {"beyond": times * beyond})}

    return {
        "cell": cell,
        "scheme": label,
        "selector": selector or label,
        "options": {"k": 10},
        "factor": 1.0,
        "mode": "charged",
        "seed": seed,
        "lr": 0.3,
        "status": "cut" if beyond is not None else "limit" if seconds is None else "reached",
        "clock": 1000.0,
        "clients": 5.0,
        "cpu_seconds": 1.0,
        "easy": level(1),
        "hard": level(2),
    }


ROWS = [
    *(row("random", seed, 100.0) for seed in range(5)),
    *(row("pace-async", seed, seconds) for seed, seconds in enumerate((10.0, 20.0, 10.0, 20.0, 10.0))),
    *(row("pace", seed, 16.0) for seed in range(5)),
    # Fast where it arrives, which it does under three of five seeds.
    *(row("fedbuff", seed, seconds) for seed, seconds in enumerate((15.0, 30.0, 15.0, None, None))),
    # Fastest of all under one seed only: that is luck.
    *(row("fed-cs", seed, seconds) for seed, seconds in enumerate((5.0, None, None, None, None))),
    *(row("oort", seed, None, beyond=40.0) for seed in range(5)),
    *(row("flanp+steps", seed, 8.0, selector="flanp") for seed in range(5)),
]


@pytest.fixture
def file(grid, tmp_path):
    path = tmp_path / "results.json"
    facts = {"step_sizes": {CELL: 0.3}, **grid.analysis.summarise(ROWS, flagship="pace-async")}
    path.write_text(grid.recorded.written(facts), encoding="utf-8")
    return path


def test_a_result_file_gives_back_the_rows_that_it_was_made_of(grid, file):
    found = {grid.tuning.key(each): each for each in grid.recorded.read(file)}
    assert len(found) == len(ROWS)
    for each in ROWS:
        again = found[grid.tuning.key(each)]
        assert again["status"] == each["status"]
        assert again["selector"] == each["selector"]
        assert again["easy"] == pytest.approx(each["easy"])
        assert again["hard"] == pytest.approx(each["hard"])
        assert again["clock"] <= each["clock"]
    missed = [each for each in found.values() if each["status"] == "limit"]
    assert len(missed) == 6
    assert all(each["clock"] == 1000 for each in missed)
    before, after = (grid.analysis.summarise(some, flagship="pace-async") for some in (ROWS, found.values()))
    assert before == after


def test_how_long_a_run_went_on_is_told_only_where_it_is_known(grid, file):
    """A file without it told the time of the easy target, as if the run had ended there."""
    facts = json.loads(file.read_text(encoding="utf-8"))
    half = next(cell for cell in facts["cells"] if cell["cell"].endswith("hard"))["schemes"]["pace"]
    half["seconds"]["3"] = None
    for told in ({}, {"tried": {"3": 16.0}}, {"tried": {"3": 900.0}}):
        half.pop("tried", None)
        half.update(told)
        file.write_text(grid.recorded.written(facts), encoding="utf-8")
        again = grid.analysis.summarise(grid.recorded.read(file), flagship="pace-async")
        (found,) = (cell["schemes"]["pace"] for cell in again["cells"] if cell["cell"].endswith("hard"))
        assert found.get("tried", {}) == ({"3": 900.0} if told == {"tried": {"3": 900.0}} else {})


def test_targets_that_a_result_file_does_not_say_count_as_the_same(grid, file):
    recorded = grid.recorded.read(file)[0]
    assert grid.recorded.same_target(recorded, 0.9000049)
    assert not grid.recorded.same_target(recorded, 0.9001)
    assert not grid.recorded.same_target(ROWS[0], 0.9000049)
    recorded["hard"]["target"] = math.nan
    assert grid.recorded.same_target(recorded, 0.5)


def test_a_row_of_the_folder_comes_before_one_of_a_result_file(grid, file, tmp_path):
    results = grid.store.Rows(tmp_path / "results.jsonl", grid.tuning.key)
    own = row("random", 3, 77.0)
    results.add(own)
    grid.recorded.add(results, [str(file)], afresh=["pace-async"])
    assert len(results.rows) == len(ROWS) - 5
    assert "pace-async" not in {each["scheme"] for each in results.rows.values()}
    assert results.rows[grid.tuning.key(own)]["easy"]["seconds"] == 77
    assert len(grid.store.Rows(tmp_path / "results.jsonl", grid.tuning.key).rows) == 1, "nothing is written"


def test_a_rival_that_misses_some_seeds_counts_by_those_that_it_held(grid):
    judged = grid.sceptic.Judged(ROWS, "pace-async")
    assert list(judged.factors) == [f"{CELL}/easy", f"{CELL}/hard"]
    best = judged.best(f"{CELL}/hard", "baseline")
    assert (best.label, best.seeds, best.missed) == ("fedbuff", 3, 2)
    assert best.mean == pytest.approx(1.5)
    assert not judged.factors[f"{CELL}/easy"]["fed-cs"].counts
    oort = judged.factors[f"{CELL}/easy"]["oort"]
    assert oort.bound
    assert oort.mean == pytest.approx(40 / math.exp((3 * math.log(10) + 2 * math.log(20)) / 5), rel=1e-3)
    assert judged.best(f"{CELL}/easy", "control").mean < 1
    # The stricter rule, by which a missed seed takes the rival out, says more.
    strict = grid.analysis.summarise(ROWS, flagship="pace-async")["cells"][0]
    assert strict["best"]["baseline"] == "oort"


def test_the_tables_of_a_sceptic(grid):
    text = grid.sceptic.page(ROWS, "pace-async")
    front, by_task, by_scheme, every_cell = text.split("\n\n")
    assert "| the best rival of each cell | 1.50x | 2 of 2 | 2 | 0 | 1.50 (1.50 to 1.50), missed in 2, fedbuff" in front
    assert "| `pace` | 1.21x |" in front
    assert "| toy | synthetic | 1.50x | fedbuff | 0.61x | flanp+steps | 1.21x |" in by_task
    assert "| `oort` | ≥ 3.03x | 5 | 2 | 0 | 0 | 0 |" in by_scheme
    assert "| `flanp+steps` | 0.61x | 5 | 2 | 2 | 2 | 0 |" in by_scheme
    assert by_scheme.endswith("| `fed-cs` | \N{EN DASH} | 5 | 2 | 0 | 0 | 2 |")
    assert f"| {CELL}/easy | 13 s | fedbuff (k 10) 19 s | 1.50 (1.50 to 1.50), missed in 2 |" in every_cell


def bounded(times, beyond):
    """Rows of a rival that held the target after `times`, and of one that was given up beyond `beyond`, by seed."""
    ours = [row("pace-async", seed, 10.0) for seed in range(len(times))]
    return [*ours, *(row("refl", seed, t, beyond=b) for seed, (t, b) in enumerate(zip(times, beyond, strict=True)))]


@pytest.mark.parametrize(
    ("times", "beyond", "clear"),
    [
        # Whole runs: the interval decides.
        ([30.0, 31.0, 29.0, 30.0, 30.5], [None] * 5, True),
        ([30.0, 9.0, 12.0, 9.0, 11.0], [None] * 5, False),
        # All given up at three times our time: the interval is a point, and what is known are five signs.
        ([None] * 5, [30.0] * 5, True),
        # Four signs are too few, however narrow the interval of their bounds is.
        ([None] * 4, [30.0] * 4, False),
        # Of one seed it is not known who is ahead.
        ([None] * 5, [30.0, 31.0, 29.0, 30.0, 9.9], False),
        # Some given up: the interval of their bounds must exclude 1 as well.
        ([10.1, 10.1, 400.0, 10.1, None], [None] * 4 + [11.0], False),
        # Given up early: nobody knows how much later it would have been, so nobody is behind it.
        ([None] * 5, [5.0] * 5, False),
        ([5.0] * 4 + [None], [None] * 4 + [5.1], False),
    ],
)
def test_clearly_is_said_of_given_up_runs_only_where_their_signs_say_so(grid, times, beyond, clear):
    judged = grid.sceptic.Judged(bounded(times, beyond), "pace-async")
    factor = judged.over("refl", f"{CELL}/easy")
    assert factor.clear is clear
    assert (" to " in factor.text) == (None not in times), "an interval of bounds is not shown"
