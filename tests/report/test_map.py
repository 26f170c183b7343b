"""Who was chosen: the cohort map, and participation by speed."""

from __future__ import annotations

import dataclasses

import pytest

from fedpace.records.run import RunRecord
from fedpace.report.comparison import summarise
from fedpace.report.figures import COLUMNS, REASONS, ROWS, cohort_map, participation, speed_chart, work_chart


def chosen(run: RunRecord, *cohorts, **changes) -> RunRecord:
    """Give the rounds of a run their cohorts: dictionaries of weights."""
    rounds = [run.rounds[0]]
    for current, cohort in zip(run.rounds[1:], cohorts, strict=True):
        rounds.append(dataclasses.replace(current, clients=tuple(cohort), weights=tuple(cohort.values()), **changes))
    return RunRecord(run.info, tuple(rounds))


def test_clients_lie_by_their_delays(make_run):
    run = make_run("a", 0, [(1, 0.5)] * 2, expected_delays=(9.0, 1.0, None))
    found = cohort_map(chosen(run, {0: 0.25, 1: 0.75}, {2: 1.0}))
    assert found.rows == ["client 1, 1.00 s", "client 0, 9.00 s", "client 2, never"]
    cells = dict(zip(zip(found.row, found.column, strict=True), found.weight, strict=True))
    assert cells == {(1, 0): 0.25, (0, 0): 0.75, (2, 1): 1.0}
    assert (found.per_row, found.per_column, found.rounds) == (1, 1, 2)


def test_failures_weigh_nothing_and_are_counted(make_run):
    found = cohort_map(chosen(make_run("a", 0, [(1, 0.5)]), {0: 0.5, 1: 0.5}, failed=(1,)))
    assert list(zip(found.row, found.weight, found.failed, strict=True)) == [(0, 0.5, 0), (1, 0.0, 1)]


def test_large_fleets_and_long_runs_are_put_into_boxes(make_run):
    clients, rounds = 10 * ROWS, 3 * COLUMNS
    run = make_run("a", 0, [(1, 0.5)] * rounds, expected_delays=tuple(1.0 + i for i in range(clients)))
    found = cohort_map(chosen(run, *[{3: 0.25, 7: 0.25, 11: 0.5}] * rounds))
    assert (found.per_row, found.per_column, len(found.rows)) == (10, 3, ROWS)
    assert (max(found.row), max(found.column)) == (1, COLUMNS - 1)
    assert set(zip(found.row, found.weight, strict=True)) == {(0, 0.5), (1, 0.5)}  # per round
    assert found.rows[0] == "10 clients, 1.00 s to 10.0 s"


def test_reasons_are_kept_once_and_up_to_a_limit(make_run):
    run = make_run("a", 0, [(1, 0.5)] * 3)
    told = {"reasons": {"0": "rare data", "1": "rare data"}}
    found = cohort_map(chosen(run, *[{0: 0.5, 1: 0.5}] * 3, facts=told))
    assert found.reasons == ["rare data"]
    assert found.why == [0] * 6
    long = {"reasons": {"0": "x" * REASONS, "1": "short"}}
    assert cohort_map(chosen(run, *[{0: 0.5, 1: 0.5}] * 3, facts=long)).reasons == ["short"]


def test_clients_of_a_server_have_names_and_no_delays(make_run):
    run = make_run("a", 0, [(1, 0.5)] * 2, expected_delays=())
    found = cohort_map(chosen(run, {"<b>phone</b>": 1.0}, {"<b>phone</b>": 0.5, "tablet": 0.5}))
    assert found.rows == ["client <b>phone</b>", "client tablet"]  # who was chosen most comes first
    assert found.ticks == ["", ""]
    assert participation(chosen(run, {"a": 1.0}, {"b": 1.0})) is None


def test_nobody_was_chosen(make_run):
    assert cohort_map(make_run("a", 0, [])) is None
    assert participation(make_run("a", 0, [])) is None


def test_participation_counts_answers_by_tenths(make_run):
    run = make_run("a", 0, [(1, 0.5)] * 2, expected_delays=tuple(float(20 - i) for i in range(20)))
    shares = participation(chosen(run, {19: 0.5, 18: 0.5}, {17: 0.4, 0: 0.6}))
    assert shares == pytest.approx([0.5, 0.25, 0, 0, 0, 0, 0, 0, 0, 0.25])
    lost = chosen(run, {19: 0.5, 18: 0.5}, {17: 0.4, 0: 0.6}, failed=(0,))
    assert participation(lost) == pytest.approx([2 / 3, 1 / 3, 0, 0, 0, 0, 0, 0, 0, 0])


def test_the_figures_of_costs_hold_the_numbers(make_run):
    runs = [make_run("a", seed, [(10, 0.5), (10, 0.95)]) for seed in range(2)]
    assert work_chart(summarise(runs)) is None
    assert speed_chart(runs, summarise(runs), of="metric") is None
    known = [
        RunRecord(
            run.info,
            tuple(dataclasses.replace(r, work=5.0 * (seed + 1), by_speed=(0.9, 0.7 + 0.1 * seed)) for r in run.rounds),
        )
        for seed, run in enumerate(runs)
    ]
    seeds, mean = work_chart(summarise(known)).series
    assert (seeds.x.tolist(), seeds.y.tolist()) == ([20.0, 20.0], [10.0, 20.0])
    assert (mean.x.tolist(), mean.y.tolist(), mean.name) == ([pytest.approx(20.0)], [pytest.approx(200**0.5)], "a")
    (line,) = speed_chart(known, summarise(known), of="metric").series
    assert line.y == pytest.approx([0.9, 0.75])


def test_work_is_told_with_the_reason(make_run):
    run = make_run("a", 0, [(1, 0.5)])
    told = {"reasons": {"0": "rare data"}, "work": {"0": 0.25, "1": 2.0}}
    found = cohort_map(chosen(run, {0: 0.4, 1: 0.4, 2: 0.2}, facts=told))
    assert found.reasons == ["rare data; trained 0.25 times as much as usual", "trained 2 times as much as usual"]
    assert sorted(found.why) == [-1, 0, 1]
