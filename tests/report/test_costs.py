"""Costs beside time, as records, tables and JSON state them."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from fedpace.records.run import RunRecord, parse_round, round_line
from fedpace.report import numbers
from fedpace.report.comparison import seed_cost, summarise, work_so_far
from fedpace.report.tables import cost_table, terminal


def costly(run: RunRecord, *, work=10.0, wasted=0, down=2_000, up=1_500, by_speed=(0.9, 0.5)) -> RunRecord:
    rounds = [dataclasses.replace(run.rounds[0], work=0.0, wasted=0, bytes_down=0, bytes_up=0)]
    costs = {"work": work, "wasted": wasted, "bytes_down": down, "bytes_up": up, "by_speed": by_speed}
    rounds += [dataclasses.replace(current, **costs) for current in run.rounds[1:]]
    return RunRecord(run.info, tuple(rounds))


def shown(comparison, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal(cost_table(comparison)))
    return console.file.getvalue()


def test_costs_are_counted_until_the_target_is_held(make_run):
    run = costly(make_run("a", 0, [(10, 0.5), (10, 0.95), (10, 0.96), (10, 0.97)]), wasted=1)
    cost = seed_cost(run)
    assert (cost.work, cost.tasks, cost.wasted, cost.bytes_down, cost.bytes_up) == (20.0, 4, 2, 4_000, 3_000)
    assert cost.slowest == 0.5
    assert work_so_far(run) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_who_never_holds_it_is_not_cheap(make_run):
    assert seed_cost(costly(make_run("a", 0, [(10, 0.5)] * 7))).work == 70.0


def test_the_table_of_costs(make_run):
    runs = []
    for seed in range(3):
        runs.append(costly(make_run("random", seed, [(10, 0.5), (10, 0.95)]), work=600.0 + seed))
        runs.append(costly(make_run("delayhet-submodular", seed, [(10, 0.95)]), work=40.0, wasted=1))
    text = shown(summarise(runs))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "1,202 s" in text
    assert "50 %" in text
    assert "4.00 kB" in text
    assert "3.00 kB" in text
    assert "0.500" in text
    assert "delayhet-  " in text  # broken at the dash


def test_records_without_costs_are_still_read(make_run, three_schemes):
    old = round_line(three_schemes[0].rounds[1])
    bare = {"work", "wasted", "bytes_down", "bytes_up", "by_speed"}
    line = json.dumps({key: value for key, value in json.loads(old).items() if key not in bare})
    assert parse_round(line) == three_schemes[0].rounds[1]
    comparison = summarise(three_schemes)
    assert cost_table(comparison) is None
    assert comparison["random"].cost.work is None
    mixed = summarise([*three_schemes, costly(make_run("new", 0, [(10, 0.95)]))])
    assert "new" in shown(mixed)
    assert mixed.as_json()["schemes"][0]["cost"]["work"] is None
    assert mixed.as_json()["schemes"][-1]["cost"]["work"]["mean"] == 10.0
    assert work_so_far(three_schemes[0]) is None


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pace", ["pace"]),
        ("delayhet-submodular", ["delayhet-", "  submodular"]),
        ("optimal-client-sampling", ["optimal-", "  client-", "  sampling"]),
    ],
)
def test_long_names_are_broken_at_their_dashes(name, lines):
    assert numbers.wrapped(name, 12).splitlines() == lines


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1_234, "1.23 kB"), (999_600, "1.00 MB"), (5.5e12, "5.50 TB")]
)
def test_sizes(count, text):
    assert numbers.size(count) == text
