"""What `benchmarks/time_to_target.py` runs and tunes, and who takes part."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import islice

import numpy as np
import pytest

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import View
from fedpace.records.holding import held_from


@pytest.mark.parametrize("scheme", ["pace", "pace-async"])
def test_classes_that_only_slow_clients_hold_are_learnt_before_random_learns_them(grid, scheme):
    """Without a memory, `pace` forgets them in the rounds without their holders."""
    (cell,) = grid.cells.cells(grid.cells.HELD)
    assert cell.name == "digits-held/slow-holders"
    rows = {}
    for name in ("random", scheme):
        job = grid.runs.Job(grid.schemes.Scheme(name, name), (cell,), 0.3, 7, {"easy": 0.85, "hard": 0.85})
        (rows[name],) = grid.runs.run(job)
    assert rows[scheme]["hard"]["seconds"] < rows["random"]["hard"]["seconds"]


def test_only_the_first_clients_hold_the_held_classes_and_are_slow(grid):
    (cell,) = grid.cells.cells(grid.cells.HELD)
    data = cell.task.data.build(seed=3)
    labels = data.label_histograms()
    assert (labels[:5, 8:] > 0).all()
    assert not labels[:5, :8].any()
    assert not labels[5:, 8:].any()
    seconds = cell.delays.build(data.clients, model_bytes=1000, seed=3).expected()
    assert seconds[:5] == pytest.approx(20 * np.median(seconds[5:]))


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
    # The best rival so far takes 2.5 times as long: a run that takes longer under its own seed cannot be the best.
    beating = dataclasses.replace(saving, beat={cell.name: 2.5, other.name: 2.5})
    assert [beating.limits(seed)[cell.name] for seed in (0, 1, 2)] == [25.0, 75.0, 120.0]
    assert saving.limits(0) == saving.cuts
    assert beating.serves({**cut, "hard": {"seconds": None, "beyond": 26.0}})
    assert not beating.serves({**cut, "seed": 1})
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
    server = grid.schemes.SERVER_RATE
    own = [one for one in best["tried"] if server not in one["options"]]
    assert {key: value for key, value in best["options"].items() if key != server} in scheme.choices()
    assert len(own) == len(scheme.choices())
    rates = [one["options"][server] for one in best["tried"] if server in one["options"]]
    assert rates[:2] == [0.5, 2.0]
    assert best["options"].get(server, 1.0) not in (min(rates), max(rates)), "it goes on while an end is the best"
    whole = [one for one in best["tried"] if len(one["seconds"]) == 4]
    assert 1 <= len([one for one in whole if one in own]) <= grid.racing.SURVIVORS, "only the fastest go on"

    def cost(one):
        times = list(one["seconds"].values())
        met = [math.log(seconds) for seconds in times if not isinstance(seconds, str)]
        return len(times) - len(met), sum(met) / max(1, len(met))

    assert min(whole, key=cost)["options"] == best["options"]
    known = {grid.tuning.key(row): row for row in found.rows}
    again = grid.racing.race(dataclasses.replace(job, known=known))
    assert again.rows == [], "what is there is not run again"
    assert again.best == found.best


def test_a_setting_runs_until_it_holds_or_is_far_behind_the_yardstick(grid, task):
    cell = grid.cells.cells([task])[0]
    scheme = grid.schemes.Scheme("fedbuff", "fedbuff")
    aims = {seed: {"easy": 0.5, "hard": 2.0} for seed in grid.tuning.SEEDS}
    bounds = {(cell.name, seed): 900.0 for seed in grid.tuning.SEEDS}
    job = grid.racing.Race(scheme, (cell,), {cell.name: 0.3}, aims, {}, {}, bounds=bounds)
    found = grid.racing.race(job)
    assert {row["status"] for row in found.rows} == {"cut"}
    assert all(row["hard"]["beyond"] > 900.0 for row in found.rows)
    chosen = found.best["synthetic"]["options"]
    first = {json.dumps(row["options"]): row["easy"]["seconds"] for row in found.rows if row["seed"] == 100}
    near = [json.loads(text) for text in sorted(first, key=first.get)]
    near = [one for one in near if one in scheme.choices()][: grid.racing.SURVIVORS]
    assert any({**one, "lr": 0} == {**chosen, "lr": 0} for one in near), "the easy target decides, not the order"


def test_a_race_around_a_choice_tunes_the_server_rate_only(grid, task, tmp_path):
    cell = grid.cells.cells([task])[0]
    scheme = grid.schemes.Scheme("fedbuff", "fedbuff")
    aims = {seed: {"easy": 0.4, "hard": 0.5} for seed in grid.tuning.SEEDS}
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"other": {"options": {"synthetic": {"fedbuff": {"options": {"buffer": 4}}}}}}))
    around = grid.tuning.Tuned(path).chosen_on("other", "fedbuff")
    assert grid.tuning.Tuned(path).chosen_on("", "fedbuff") == {}
    job = grid.racing.Race(scheme, (cell,), {cell.name: 0.3}, aims, {}, {}, heats=1, around=around)
    found = grid.racing.race(job)
    tried = [one["options"] for one in found.best["synthetic"]["tried"]]
    assert tried[:3] == [{"buffer": 4}, {"buffer": 4, "lr": 0.5}, {"buffer": 4, "lr": 2.0}]
    assert {(row["seed"], row["cell"]) for row in found.rows} == {(100, cell.name)}, "one heat"
    held = [row["hard"]["seconds"] for row in found.rows if row["hard"]["seconds"]]
    cut = [row["hard"]["beyond"] for row in found.rows if row["status"] == "cut"]
    assert all(beyond > min(held) for beyond in cut), "a run ends once another setting was sooner"
    as_it_is = grid.racing.race(dataclasses.replace(job, heats=0))
    assert (as_it_is.best["synthetic"]["options"], as_it_is.rows) == ({"buffer": 4}, [])


@pytest.mark.slow
def test_step_sizes_are_extended_while_the_largest_is_the_best(grid, task, tmp_path):
    small = dataclasses.replace(task, rates=(0.01, 0.03), larger=(0.1, 0.3), full_rounds=25, easy=0.2, hard=0.1)
    cells = grid.cells.cells([small])[:1]
    tuned = grid.tuning.Tuned(tmp_path / "tuned.json")
    grid.tuning.tune_rates(small, cells, tmp_path, 1, tuned=tuned)
    found = json.loads((tmp_path / "tuned.json").read_text())["tiny"]
    assert set(found["plateaus"]) > {"0.01", "0.03"}
    assert grid.tuning.Tuned(tmp_path / "tuned.json").rate(cells[0]) == found["cells"][cells[0].name]


@pytest.mark.slow
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
    assert {"fedasync", "ringleader", "malenia", "ace", "rescaled-asgd", "fadas", "m-sync"} <= set(labels)
    (own,) = grid.schemes.chosen("fedpace.selectors.flanp:Flanp", [])
    assert own.selector(50) == make_selector("flanp")
    variant = grid.schemes.parse("bold=fedpace.selectors.flanp:Flanp:k=5")
    assert (variant.label, variant.selector(50).k) == ("bold", 5)
    with pytest.raises(InputError, match="cannot be imported"):
        grid.schemes.chosen("fedpace.selectors.flanp:Nobody", [])
    slow = grid.schemes.parse("slow=random:k=5,server.lr=0.5")
    assert (slow.selector(50), slow.server.lr) == (make_selector("random", k=5), 0.5)
    with pytest.raises(InputError, match="expected a variant"):
        grid.schemes.parse("bold")
    with pytest.raises(InputError, match="no scheme 'nobody'"):
        grid.schemes.chosen("nobody", [])
