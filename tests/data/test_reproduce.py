"""`fedpace reproduce`, a miniature of every table end to end, on stand-ins of the data sets."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedpace.cli import app
from fedpace.reproduce import command
from fedpace.reproduce import paper_runs as plans
from fedpace.reproduce.paper import task_names
from fedpace.reproduce.paper_runs import PLANS, RUNS, Request, jobs_of, planned, play, together
from fedpace.reproduce.paper_tables import ReproducedResults, SeedOutcome, TableEntry

SETS = ("mnist", "fashion-mnist", "cifar10", "femnist", "shakespeare")


@pytest.fixture
def sets(folder, parquet, monkeypatch):
    """All data sets, as stand-ins."""
    for name in SETS:
        parquet.generate(folder, name)
    monkeypatch.setenv("FEDPACE_DATA", str(folder))


def call(*arguments):
    result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_every_table_from_its_first_run_to_its_last_form(sets, tmp_path):
    out = tmp_path / "runs"
    columns = "random,delayhet-submodular,pace"
    tables = ("table1", "table2", "table3", "motivation", "constants", "headline", "overhead")
    said = call(*tables, "--profile", "tiny", "--seeds", 1, "--selectors", columns, "--out", out)

    for title in ("Table 1", "Table 2", "Table 3", "Figure 2", "Hidden constants", "Against the paper", "Server overh"):
        assert title in said
    assert "not run" not in said  # every cell was
    found = json.loads((out / "results.json").read_text())
    assert all(len(entry["seeds"]) == entry["wanted"] for entry in found["entries"].values())
    for table in ("table1", "table2"):
        for name in task_names():
            assert {f"{table}/{name}/{column}" for column in columns.split(",")} <= set(found["entries"])
    assert set(found["facts"]["overhead"]) == {"quadratic", "rotated-cifar10", "shakespeare"}
    assert r"\begin{tabular}" in (out / "tables.tex").read_text()
    assert "| Data set | Target |" in (out / "tables.md").read_text()
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(entry["seeds"]) for entry in found["entries"].values())

    runs = sorted((out / RUNS).iterdir())
    before = [(run / "rounds.jsonl").stat().st_mtime_ns for run in runs]
    again = call("table1", "--profile", "tiny", "--seeds", 1, "--selectors", columns, "--out", out)
    assert "0 to go" in again
    assert [(run / "rounds.jsonl").stat().st_mtime_ns for run in runs] == before


def test_figures_are_pictures_and_pages_of_what_has_been_run(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SHOWN", ("motivation/both", "table1/femnist"))  # the paper has seven
    monkeypatch.setattr(plans, "MOTIVATION", ("random", "flanp"))
    out = tmp_path / "runs"
    said = call(
        "figures", "--profile", "tiny", "--seeds", 1, "--only", "quadratic", "--selectors", "random", "--out", out
    )
    drawn = {path.relative_to(out / "figures").as_posix() for path in (out / "figures").glob("*/report.*")}
    assert drawn == {"motivation-both/report.png", "motivation-both/report.html"}
    assert "Drawn" in said
    assert not (out / "tables.md").exists()  # nor is one overwritten that was asked for earlier


def test_a_set_that_is_missing_keeps_no_other_from_being_run(tmp_path):
    out = tmp_path / "runs"
    said = call(
        *("table1", "--profile", "tiny", "--seeds", 1, "--out", out),
        *("--only", "quadratic,femnist", "--selectors", "random,flanp"),
    )
    found = json.loads((out / "results.json").read_text())["entries"]
    assert len(found["table1/quadratic/flanp"]["seeds"]) == 1
    assert found["table1/femnist/flanp"] == {"wanted": 1, "seeds": {}}
    assert "femnist, synthetic, random, seed 0 was not run" in said
    assert "not run" in said.split("FEMNIST")[1]


def test_what_looks_at_no_delays_is_trained_once(tmp_path):
    request = Request("tiny", ("quadratic",), (0,), ("random", "divfl", "flanp"))
    runs = [each.run for each in planned(request, ["table1", "table2"])]
    assert [len(group) for group in together(runs)] == [2, 2, 1, 1]
    assert play(runs, tmp_path) == 0
    records = {(run.column.label, run.delays): run.record(tmp_path) for run in runs}
    assert records["random", "nycmesh"].info.clocked_from == "synthetic"
    assert records["flanp", "nycmesh"].info.clocked_from is None
    assert records["random", "nycmesh"].rounds[-1].clock != records["random", "synthetic"].rounds[-1].clock
    assert jobs_of(runs, tmp_path) == []


def test_tables_share_the_runs_that_they_have_in_common():
    request = Request("tiny", ("quadratic",), (0,))
    keys = {name: {each.run.key for each in plan(request)} for name, plan in PLANS.items()}
    assert keys["table1"].isdisjoint(keys["table2"])
    assert keys["constants"] & keys["table1"]  # the constants of the tables
    assert keys["motivation"] & keys["table2"]  # figure 2 (c) is a row of table 2


def test_nothing_is_run_to_show_what_came_with_fedpace(tmp_path):
    said = call("table1", "headline", "--show", "--out", tmp_path / "nothing")
    assert "What came with fedpace" in said
    assert not (tmp_path / "nothing").exists()


def test_only_what_did_not_come_with_fedpace_is_run(tmp_path, monkeypatch):
    """Of three runs one came with fedpace, and one is of another configuration than the one that came."""
    request = Request("tiny", ("quadratic",), (0,), ("random", "flanp", "divfl"))
    wanted = planned(request, ["table2"])
    outcomes = {each.place: SeedOutcome(123.4, 5, 123.4, 2.0, "reached", each.run.key) for each in wanted}
    random, flanp, divfl = outcomes
    came = {random: outcomes[random], flanp: replace(outcomes[flanp], key="another")}
    packaged = ReproducedResults(
        "tiny", {place: TableEntry(1, {0: outcome}) for place, outcome in came.items()}, {"some": "fact"}
    )
    monkeypatch.setattr(command.Command, "_packaged", lambda self: packaged)

    said = call(
        *("table2", "--profile", "tiny", "--seeds", 1, "--only", "quadratic"),
        *("--selectors", "random,flanp,divfl", "--missing", "--out", tmp_path),
    )
    assert "1 of 3 came with fedpace" in said
    assert "2 runs, 2 to go" in said
    found = ReproducedResults.read(tmp_path / "results.json")
    assert found[random] == packaged[random]
    assert found[flanp].outcomes[0].key == outcomes[flanp].key != "another"
    assert found[divfl].run
    assert found.facts == {"some": "fact"}
    assert {path.name for path in (tmp_path / RUNS).iterdir()} == {outcomes[place].key for place in (flanp, divfl)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("table9",), "there is no 'table9' to reproduce"),
        (("table1", "--only", "imagenet"), "the paper has no data set 'imagenet'"),
        (("table1", "--seeds", "0"), "--seeds must be at least 1"),
        (("table1", "--selectors", ","), "--selectors names nothing"),
        (("table1", "--profile", "tiny", "--missing"), "no results of profile tiny come with fedpace"),
    ],
)
def test_a_wrong_request_says_what_there_is(arguments, words):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)
