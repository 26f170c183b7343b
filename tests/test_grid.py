"""What `benchmarks/time_to_target.py` runs, tunes and concludes, and who takes part."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from fedpace import make_selector
from fedpace.core.errors import InputError
from fedpace.core.types import View
from fedpace.data.digits import Digits
from fedpace.models.softmax import Softmax
from fedpace.records.holding import held_from
from fedpace.sim.trainer import Training

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def grid():
    """The benchmark's package; its folder must not stay on the path, where a file shadows Python's `selectors`."""
    sys.path.append(str(BENCHMARKS))
    try:
        from grid import analysis, cells, economy, markdown, racing, runs, schemes, tuning

        every = (analysis, cells, economy, markdown, racing, runs, schemes, tuning)
        parts = {part.__name__.split(".")[1]: part for part in every}
        yield type("Grid", (), parts)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def task(grid):
    data = Digits(clients=24, alpha=0.5)
    return grid.cells.Task("tiny", data, Softmax(), Training(epochs=1, batch=16, lr=0.3), (0.1, 0.3), max_rounds=60)


def rows(times, *, free=()):
    """label -> seconds by seed; None = missed. The hard target takes twice as long; all are first met in half."""
    return [
        {
            "cell": "toy/synthetic/independent",
            "scheme": label,
            "selector": label.split("+steps")[0].split("-variant")[0],
            "options": {"k": 10},
            "factor": 1.0,
            "mode": mode,
            "seed": seed,
            "clock": 1000.0,
            "clients": 5.0,
            "easy": {"target": 0.9, "seconds": seconds, "first": 0.5 * (seconds or 20.0)},
            "hard": {"target": 0.95, "seconds": None if seconds is None else 2 * seconds, "first": seconds},
        }
        for mode, some in (("charged", times), ("free", dict(free)))
        for label, by in some.items()
        for seed, seconds in enumerate(by)
    ]


def test_who_is_fastest_and_by_how_much(grid):
    found = grid.analysis.summarise(
        rows(
            {
                "random": [100.0, 100.0],
                "fed-cs": [40.0, 90.0],
                "delayhet-sampling": [50.0, None],
                "fed-cs+steps": [5.0, 7.5],
                "pace": [20.0, 30.0],
                "pace-variant": [1.0, 1.0],
            }
        )
    )
    easy = found["cells"][0]
    assert easy["best"] == {
        "baseline": "fed-cs",
        "papers_baseline": "random",
        "paper": None,
        "of_all_others": "fed-cs",
        "control": "fed-cs+steps",
    }
    assert (easy["standing"], easy["standing_among_controls"]) == ("fastest", "slower"), "controls do not compete"
    assert easy["flagship_over_best"]["baseline"]["mean"] == pytest.approx(6**0.5, abs=1e-4)
    verdict = found["verdict"]
    assert verdict["speed_up_over_best_baseline"] == {"synthetic": pytest.approx(6**0.5, abs=1e-3)}
    assert verdict["speed_up_over_best_of_the_papers_baselines"] == {"synthetic": pytest.approx(4.082, abs=1e-3)}
    assert verdict["speed_up_over_best_control"] == {"synthetic": pytest.approx(0.25, abs=1e-3)}
    assert verdict["speed_up_over_random"]["delayhet-sampling"]["cells_with_a_failure"] == 2
    assert verdict["fastest_or_tied"] == 2
    assert verdict["slower_than_a_control"] == dict.fromkeys(
        ("toy/synthetic/independent/easy", "toy/synthetic/independent/hard"), "fed-cs+steps"
    )
    text = grid.markdown.page(found)
    assert "| toy | synthetic | 2.45x | fed-cs | 0.25x | fed-cs+steps | 4.08x | 2 / 0 / 0 / 0 |" in text
    assert "| toy/synthetic/independent/hard | 49 s | fed-cs (k 10) 120 s |" in text


@pytest.mark.parametrize(
    ("pace", "standing", "misses", "over"),
    [
        ([95.0, 110.0, 101.0], "tied", False, 0.982),
        ([150.0, 160.0, 155.0], "slower", False, 0.645),
        # A miss counts as the time after which it was given up: leaving it out would flatter.
        ([10.0, 10.0, None], "failed", True, 2.154),
    ],
)
def test_what_is_only_noise(grid, pace, standing, misses, over):
    found = grid.analysis.summarise(rows({"random": [100.0, 100.0, 100.0], "pace": pace}))
    cell = found["cells"][0]
    assert cell["standing"] == standing
    assert cell["misses_what_random_reaches"] is misses
    assert cell["flagship_over_best"]["of_all_others"]["mean"] == pytest.approx(over, abs=1e-3)


def test_other_ways_to_judge(grid):
    """With its warm-up free it is fastest; random needs none, so its run serves both. First crossings are read too."""
    found = grid.analysis.summarise(
        rows({"random": [100.0, 100.0], "pace": [120.0, 120.0]}, free={"pace": [50.0, 50.0]})
    )
    assert found["verdict"]["not_fastest"] == {
        "toy/synthetic/independent/easy": "random",
        "toy/synthetic/independent/hard": "random",
    }
    assert found["otherwise"]["free_warmup"]["fastest"] == 2
    assert found["otherwise"]["first_crossing"]["speed_up_over_best_of_all_others"] == {"synthetic": 0.833}
    assert found["otherwise"]["free_warmup_first_crossing"]["speed_up_over_best_of_all_others"] == {"synthetic": 2.0}


def given_up(found, label, beyond):
    """Let all runs of a scheme be given up: its targets are not held before `beyond`, and not met before twice that."""
    for row in found:
        if row["scheme"] == label:
            row["status"], row["clock"] = "cut", 2 * beyond
            for level in ("easy", "hard"):
                row[level] = {"target": row[level]["target"], "seconds": None, "first": None, "beyond": beyond}
    return found


def test_a_rival_that_was_given_up_counts_with_the_least_that_it_took(grid):
    """The best rival is the one that takes least: one given up later than that changes nothing."""
    times = {"random": [400.0, 400.0], "fed-cs": [40.0, 90.0], "flanp": [None, None], "pace": [10.0, 15.0]}
    whole = grid.analysis.summarise(given_up(rows(times), "random", 300.0))
    for cell in whole["cells"]:
        assert cell["best"]["of_all_others"] == "fed-cs"
        assert "at_least" not in cell["flagship_over_best"]["of_all_others"]
        entry = cell["schemes"]["random"]
        assert (entry["failed"], entry["given_up"], entry["at_least"], entry["geometric_mean"]) == (0, 2, 300.0, None)
        assert cell["misses_what_random_reaches"] is False
    assert whole["verdict"]["factors_at_least"] == {"synthetic": 0}
    # Given up before the best of the others is there, it may have been the best: the factor is a lower bound.
    bounded = grid.analysis.summarise(given_up(rows(times), "random", 50.0))
    easy = bounded["cells"][0]
    assert easy["best"]["of_all_others"] == "random"
    assert easy["flagship_over_best"]["of_all_others"]["mean"] == pytest.approx(50 / 150**0.5, abs=1e-3)
    assert easy["flagship_over_best"]["of_all_others"]["at_least"] is True
    assert bounded["verdict"]["factors_at_least"] == {"synthetic": 2}
    text = grid.markdown.page(bounded)
    assert "random (k 10) \u2265 50 s | \u2265 4.08" in text
    assert "| charged, held | \u2265 " in text
    # By first crossings it is known to be later: until its last round nothing was met.
    first = grid.analysis.judge(given_up(rows(times), "random", 50.0), measure="first")[0]
    assert first["schemes"]["random"]["at_least"] == 100.0


# -- runs --------------------------------------------------------------------------------------------------


def test_one_run_of_a_blind_scheme_is_that_of_every_cell(grid, task):
    cells = [*grid.cells.cells([task]), *grid.cells.cells([task], delays=grid.cells.delay_models("devices"))]
    random = grid.schemes.Scheme("random", "random", {"k": 4})
    assert random.blind("charged")
    targets = {"easy": 0.5, "hard": 0.7}
    together = grid.runs.run(grid.runs.Job(random, tuple(cells), 0.3, 3, targets))
    for cell, row in zip(cells, together, strict=True):
        (alone,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets))
        same = [key for key in row if key != "cpu_seconds"]
        assert {key: row[key] for key in same} == {key: alone[key] for key in same}
        assert row["status"] == "reached"
        assert row["easy"]["first"] <= row["easy"]["seconds"] <= row["hard"]["seconds"] < row["clock"]


def test_a_run_ends_as_soon_as_the_hold_is_known_and_not_before(grid, task):
    cell = grid.cells.cells([task])[0]
    random = grid.schemes.Scheme("random", "random", {"k": 4})
    (row,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, {"easy": 0.5, "hard": 0.7}))
    simulation = grid.runs.prepare(cell, make_selector("random", k=4), 0.3, 3)
    rounds = []
    for current in simulation.rounds():
        rounds.append((current.clock, current.metric))
        crossed, held = held_from(rounds, 0.7, "up", hold=10, every=float(np.median(simulation.expected_delays)))
        if held is not None:
            break
    assert (row["rounds"], row["hard"]["round"]) == (len(rounds) - 1, held)
    assert row["hard"]["first"] == rounds[crossed][0]


def test_a_run_may_be_judged_on_a_grid_of_instants_too(grid, task):
    """A scheme that steps at every answer: where it is first seen by chance does not count."""
    cell = grid.cells.cells([task])[0]
    scheme = grid.schemes.Scheme("fedbuff", "fedbuff", {"buffer": 1, "lr": 0.3})
    job = grid.runs.Job(scheme, (cell,), 0.3, 3, {"easy": 0.5, "hard": 0.6})
    (plain,), (both,) = grid.runs.run(job), grid.runs.run(dataclasses.replace(job, on_grid=True))
    simulation = grid.runs.prepare(cell, scheme.selector(24), 0.3, 3)
    played = [(current.clock, current.metric) for current in islice(simulation.rounds(), both["rounds"] + 1)]
    assert plain["rounds"] <= both["rounds"]
    for level, target in {"easy": 0.5, "hard": 0.6}.items():
        assert both[level]["seconds"] == plain[level]["seconds"]
        held = held_from(played, target, "up", hold=10, every=both["every"], looks="grid")[1]
        assert both[level]["on_grid"] == played[held][0]
        assert "on_grid" not in plain[level]
    found = grid.analysis.summarise([both])
    assert "on_grid" in found["otherwise"]
    assert "looked at on one grid" in grid.markdown.page(found)


def test_a_run_that_is_too_slow_is_given_up(grid, task):
    cell = grid.cells.cells([task])[0]
    random = grid.schemes.Scheme("random", "random", {"k": 4})
    targets = {"easy": 0.5, "hard": 0.7}
    (whole,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets))
    seconds = whole["hard"]["seconds"]
    (cut,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets, cuts={cell.name: 0.9 * seconds}))
    assert (cut["status"], cut["hard"]["seconds"]) == ("cut", None)
    (kept,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets, cuts={cell.name: seconds}))
    assert kept["hard"]["seconds"] == seconds
    par = {cell.name: 0.04 * seconds}
    (slow,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets, pars=par))
    assert slow["status"] == "limit", "more than twenty times as long as random"
    out_of_reach = {"easy": 0.5, "hard": 1.1}
    (short,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, out_of_reach))
    (longer,) = grid.runs.run(
        grid.runs.Job(random, (cell,), 0.3, 3, out_of_reach, pars={cell.name: short["clock"] * 1.2})
    )
    assert (short["rounds"], longer["status"]) == (60, "limit")
    assert 60 < longer["rounds"] <= 180, "short rounds: random would still be running"


def test_what_a_run_that_is_given_up_knows_is_a_lower_bound(grid, task):
    """Whatever the run is given up after, its target is held no sooner than it says."""
    cell = grid.cells.cells([task])[0]
    random = grid.schemes.Scheme("random", "random", {"k": 4})
    targets = {"easy": 0.5, "hard": 0.7}
    (whole,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets))
    for part in (0.1, 0.5, 0.99):
        cut = part * whole["hard"]["seconds"]
        (row,) = grid.runs.run(grid.runs.Job(random, (cell,), 0.3, 3, targets, cuts={cell.name: cut}))
        assert cut < row["hard"]["beyond"] <= whole["hard"]["seconds"]
        for level in ("easy", "hard"):
            known = grid.economy.known(row, level, "seconds")
            assert known <= whole[level]["seconds"]
            assert (row[level]["seconds"] is None) == ("beyond" in row[level])


def test_when_runs_are_given_up(grid, task, tmp_path):
    cell, other = grid.cells.cells([task])[:2]
    tuned = grid.tuning.Tuned(tmp_path / "tuned.json")
    yardstick = grid.schemes.Scheme("pace-async", "pace-async")

    def ran(cell, seed, seconds, **more):
        found = {"cell": cell.name, "scheme": "pace-async", "options": {}, "seed": seed, "lr": tuned.rate(cell)}
        return {**found, "mode": "charged", "status": "reached", "hard": {"seconds": seconds}, **more}

    so_far = [ran(cell, 0, 10.0), ran(cell, 1, 30.0), ran(cell, 2, 999.0, lr=9.0), ran(other, 0, None)]
    saving = grid.economy.Economy.of(so_far, yardstick, [cell, other], tuned, 4.0)
    assert saving.cuts == {cell.name: 120.0}, "nothing is given up where the yardstick missed its target"
    cut = ran(cell, 0, None, status="cut", hard={"seconds": None, "beyond": 45.0})
    assert saving.serves(cut), "more than four times as long as under its own seed"
    assert not saving.serves({**cut, "seed": 1})
    assert not grid.economy.Economy().serves(cut), "who gives nothing up wants the whole run"
    assert saving.serves(so_far[0])
    assert (saving.par(None), saving.par(cut), saving.par(so_far[0])) == (math.inf, math.inf, 10.0)
    assert grid.economy.Economy().par(None) is None


def test_a_charged_warm_up_is_on_the_clock(grid, task):
    cell = grid.cells.cells([task])[0]
    match = grid.schemes.Scheme("moment-match", "moment-match")
    assert match.modes == ("charged", "free")
    assert grid.schemes.Scheme("flanp", "flanp").modes == ("charged",), "expected delays are known to all"
    targets = {"easy": 0.3, "hard": 0.5}
    found = {
        mode: grid.runs.run(grid.runs.Job(match, (cell,), 0.3, 3, targets, mode))[0] for mode in grid.schemes.MODES
    }
    assert found["charged"]["easy"]["first"] > found["free"]["easy"]["first"]


# -- tuning ------------------------------------------------------------------------------------------------


def test_a_race_finds_the_best_setting_and_says_what_it_tried(grid, task):
    cells = tuple(cell for cell in grid.cells.cells([task]) if cell.delays.name == "synthetic")
    scheme = grid.schemes.Scheme("flanp", "flanp")
    aims = {seed: {"easy": 0.5, "hard": 0.75} for seed in grid.tuning.SEEDS}
    rates = {cell.name: 0.3 for cell in cells}
    job = grid.racing.Race(scheme, cells, rates, aims, {}, {})
    found = grid.racing.race(job)
    best = found.best["synthetic"]
    assert best["options"] in scheme.choices()
    assert len(best["tried"]) == len(scheme.choices())
    whole = [one for one in best["tried"] if len(one["seconds"]) == 4]
    assert 1 <= len(whole) <= grid.racing.SURVIVORS, "only the fastest of the first heat go on"

    def cost(one):
        times = list(one["seconds"].values())
        met = [math.log(seconds) for seconds in times if not isinstance(seconds, str)]
        return len(times) - len(met), sum(met) / max(1, len(met))

    assert min(whole, key=cost)["options"] == best["options"]
    known = {grid.tuning.key(row): row for row in found.rows}
    again = grid.racing.race(dataclasses.replace(job, known=known))
    assert again.rows == [], "what is there is not run again"
    assert again.best == found.best


def test_step_sizes_are_extended_while_the_largest_is_the_best(grid, task, tmp_path):
    small = dataclasses.replace(task, rates=(0.01, 0.03), larger=(0.1, 0.3), full_rounds=25, easy=0.2, hard=0.1)
    cells = grid.cells.cells([small])[:1]
    tuned = grid.tuning.Tuned(tmp_path / "tuned.json")
    grid.tuning.tune_rates(small, cells, tmp_path, 1, tuned=tuned)
    found = json.loads((tmp_path / "tuned.json").read_text())["tiny"]
    assert set(found["plateaus"]) > {"0.01", "0.03"}
    assert grid.tuning.Tuned(tmp_path / "tuned.json").rate(cells[0]) == found["cells"][cells[0].name]


def test_a_column_that_comes_later_leaves_targets_and_step_sizes_of_the_others(grid, task, tmp_path):
    small = dataclasses.replace(task, rates=(0.1, 0.3), full_rounds=25, easy=0.2, hard=0.1)
    first = grid.cells.cells([small])[:1]
    tuned = grid.tuning.Tuned(tmp_path / "tuned.json")
    grid.tuning.tune_rates(small, first, tmp_path, 1, tuned=tuned)
    before = json.loads((tmp_path / "tuned.json").read_text())["tiny"]
    later = grid.cells.cells([small], delays=grid.cells.delay_models("devices"))
    assert [cell.name for cell in later] == ["tiny/devices/independent", "tiny/devices/rare"]
    grid.tuning.tune_rates(small, later[:1], tmp_path, 1, tuned=tuned)
    after = json.loads((tmp_path / "tuned.json").read_text())["tiny"]
    assert set(after["cells"]) == {first[0].name, later[0].name}
    assert {key: after[key] for key in ("reference", "plateaus")} == {
        key: before[key] for key in ("reference", "plateaus")
    }
    assert after["cells"][first[0].name] == before["cells"][first[0].name]


def test_the_grid_names_its_delay_models(grid):
    assert [model.name for model in grid.cells.delay_models()] == ["synthetic", "nycmesh"], "the 32 cells stay"
    with pytest.raises(InputError, match="known are synthetic, nycmesh, devices"):
        grid.cells.delay_models("tractors")


def test_schemes_have_the_options_that_were_chosen(grid, task, tmp_path):
    cell = grid.cells.cells([task])[0]
    tuned = grid.tuning.Tuned(tmp_path / "tuned.json")
    scheme = grid.schemes.Scheme("flanp", "flanp")
    assert tuned.scheme(scheme, cell) == scheme
    tuned.keep(task, {"reference": 0.3, "cells": {cell.name: 0.1}})
    tuned.keep_options(cell, "flanp", {"options": {"k": 5}, "factor": 3.0, "tried": []})
    given = grid.tuning.Tuned(tmp_path / "tuned.json").scheme(scheme, cell)
    assert (given.selector(12).k, given.factor, given.label) == (5, 3.0, "flanp")


# -- who takes part ----------------------------------------------------------------------------------------


def test_a_control_chooses_as_its_scheme_does_and_steps_as_pace_does(grid):
    control = next(one for one in grid.schemes.everybody() if one.label == "fed-cs+steps").given({"k": "all"})
    view = View(
        step=0,
        now=0.0,
        available=np.ones(20, bool),
        share=np.full(20, 1 / 20),
        delay=np.arange(1.0, 21.0),
        loss=np.full(20, np.nan),
        loss_step=np.full(20, -1),
        participations=np.zeros(20, int),
    )
    plain, _ = make_selector("fed-cs", k=20).select(None, view, np.random.default_rng(0))
    cohort, _ = control.selector(20).select(None, view, np.random.default_rng(0))
    assert cohort.clients.tolist() == plain.clients.tolist()
    assert control.selector(20).server == make_selector("pace").server
    assert grid.schemes.camp(control.label, control.name) == "control"
    for one in grid.schemes.everybody():
        if one.steps:
            assert {options["k"] for options in one.choices()} == {10, 20, 30, "all"}, one.label


def test_every_registered_scheme_takes_part_and_variants_can_be_given(grid):
    everybody = grid.schemes.everybody()
    labels = [scheme.label for scheme in everybody]
    assert len(set(labels)) == len(labels)
    assert {"random", "random-tuned", "pace", "delayhet-submodular", "oort", "flanp+steps"} <= set(labels)
    for scheme in everybody:
        untuned = scheme.label in ("random", "random-deadline", "pace", "pace-async")
        assert (len(scheme.choices()) == 1) == untuned, scheme.label
        for options in scheme.choices():
            scheme.given(options).selector(50)
    variant = grid.schemes.parse("bold=flanp:k=5,growth=3.0")
    assert (variant.label, variant.selector(50).k) == ("bold", 5)
    with pytest.raises(InputError, match="expected a variant"):
        grid.schemes.parse("bold")
    with pytest.raises(InputError, match="no scheme 'nobody'"):
        grid.schemes.chosen("nobody", [])
