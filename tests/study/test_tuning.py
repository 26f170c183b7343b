"""`fedpace tune`: what is searched, that the search goes on, and that it finds what is better."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from fedpace import make_selector
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.config import parse_experiment
from fedpace.study.tuning import MISSED, Choice, Range, default_space, geometric_seconds, parse_space, tune

pytest.importorskip("optuna")

TABLE = {
    "name": "tiny",
    "data": {"name": "quadratic", "clients": 8, "samples": 12, "test_samples": 10, "dimension": 4},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"epochs": 1, "lr": 0.02, "batch": 0},
    "stop": {"target": 1.0, "hold": 1, "max_rounds": 40},
    "selectors": [{"name": "random"}],
}


def test_what_the_options_declare_is_searched():
    found = default_space(type(make_selector("oort")))
    assert found["k"] == Range(2, 50, whole=True)
    assert found["overcommit"] == Range(1.0, 6.5)
    assert found["clip"].high == 1.0
    assert "epsilon" not in found, "it has no declared range"
    assert default_space(type(make_selector("flanp")))["stop"] == Choice(
        ("released", "period", "statistical", "plateau")
    )
    assert "in_flight" not in default_space(type(make_selector("pace-async"))), "its 0 has a meaning of its own"


def test_a_space_is_read_from_text():
    cls = type(make_selector("fedbuff"))
    assert parse_space("buffer=2:30, lr=0.3:2", cls) == {"buffer": Range(2, 30, whole=True), "lr": Range(0.3, 2)}
    assert parse_space("variant=md|uniform", type(make_selector("random")))["variant"] == Choice(("md", "uniform"))
    with pytest.raises(InputError, match="takes NAME=LOW:HIGH"):
        parse_space("buffer=2:many", cls)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"buffers": Range(1, 3)}, "has no option 'buffers' to search: it has"),
        ({"buffer": Range(3, 3)}, "expected a range with low < high for buffer"),
        ({"buffer": Choice(())}, "there are none"),
        ({}, "has no options to search"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(space, said, tmp_path):
    with pytest.raises(InputError, match=said):
        tune(parse_experiment(TABLE, "test"), "fedbuff", space, folder=tmp_path, trials=1)


def test_a_target_is_needed(tmp_path):
    table = {**TABLE, "stop": {"max_rounds": 5}}
    with pytest.raises(InputError, match="tuning needs a target"):
        tune(parse_experiment(table, "test"), "fedbuff", {"buffer": Range(1, 4, True)}, folder=tmp_path)


def test_it_begins_with_the_defaults_goes_on_and_never_ends_worse(tmp_path):
    """A buffer of 8 of 8 clients waits for the slowest; smaller ones are faster."""
    space = {"buffer": Range(1, 8, whole=True), "staleness": Choice((0.5,))}
    chosen = parse_experiment(TABLE, "test")
    first = tune(chosen, "fedbuff", {"buffer": Range(1, 10, True)}, folder=tmp_path / "a", trials=1, seeds=[100])
    assert first.default.options == {"buffer": make_selector("fedbuff").buffer}
    assert (first.options, first.text) == ({}, "fedbuff")
    half = tune(chosen, "fedbuff", space, folder=tmp_path / "b", trials=2, seeds=[100, 101])
    whole = tune(chosen, "fedbuff", space, folder=tmp_path / "b", trials=5, seeds=[100, 101])
    assert whole.trials[:2] == half.trials
    assert len(whole.trials) == 5
    assert whole.best.seconds == min(trial.seconds for trial in whole.trials) <= whole.default.seconds
    assert len({str(trial.options) for trial in whole.trials}) > 2
    assert (tmp_path / "b" / "trial-4" / "seed-101" / "rounds.jsonl").exists()


def test_a_missed_target_counts_as_a_multiple_of_the_time_that_was_tried(tmp_path):
    table = {**TABLE, "stop": {"target": 1e-12, "hold": 1, "max_rounds": 3}}
    found = tune(
        parse_experiment(table, "test"),
        "fedbuff",
        {"buffer": Range(1, 3, True)},
        folder=tmp_path,
        trials=1,
        seeds=[100],
    )
    assert found.best.missed == 1
    from fedpace.records.run import read_run

    record = read_run(tmp_path / "trial-0" / "seed-100")
    assert found.best.seconds == pytest.approx(MISSED * record.rounds[-1].clock)
    assert math.isclose(geometric_seconds([record, record]), found.best.seconds)


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "tune --scheme fedbuff --search buffer=5:20 --trials 2 --seeds 1 --target 0.5 --out there"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert "trial 0: " in done.stdout
    assert "now on other seeds: fedpace compare --selectors " in done.stdout
    again = CliRunner().invoke(app, [*words.split(), "--json"])
    assert len(json.loads(again.stdout)["trials"]) == 2, "nothing is run again"
    wrong = CliRunner().invoke(app, ["tune"])
    assert isinstance(wrong.exception, InputError)
