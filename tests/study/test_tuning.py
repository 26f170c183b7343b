"""`fedpace tune`: what is searched, that the search goes on, and that it finds what is better."""

from __future__ import annotations

import json
import math
import shlex

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


@pytest.mark.parametrize("text", ["buffer", "buffer=", "=3", "buffer=1||2", "buffer=1,buffer=2", "", ","])
def test_a_text_without_names_or_values_is_refused(text):
    with pytest.raises(InputError, match=r"takes NAME=LOW:HIGH or NAME=A\|B.*such as"):
        parse_space(text, type(make_selector("fedbuff")))


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"buffers": Range(1, 3)}, "has no option 'buffers' to search: it has"),
        ({"buffer": Range(3, 3)}, "expected a range with low < high for buffer"),
        ({"buffer": Choice(())}, "there are none"),
        ({}, "has no options to search"),
        ({"buffer": Choice(("abc",))}, "buffer of fedbuff is 'abc', but it should be a whole number"),
        ({"buffer": Range(0, 4)}, "buffer of fedbuff must be at least 1, but 0 came"),
        ({"buffer": Range(2.5, 4)}, "buffer of fedbuff is 2.5"),
        ({"buffer": Range(1, math.inf)}, "both finite"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(space, said, tmp_path):
    with pytest.raises(InputError, match=said):
        tune(parse_experiment(TABLE, "test"), "fedbuff", space, folder=tmp_path, trials=1)
    assert not list(tmp_path.iterdir()), "nothing was run"


def test_every_question_has_its_own_trials(tmp_path):
    """Another target, limit, delay model, seed, space or scheme begins anew; other schemes in the file do not."""
    space = {"buffer": Choice((2,))}
    stop = {**TABLE["stop"], "max_rounds": 4}

    def search(changes=None, scheme="fedbuff", space=space, seeds=(100,)):
        chosen = parse_experiment({**TABLE, "stop": stop, **(changes or {})}, "test")
        ran = []
        found = tune(chosen, scheme, space, folder=tmp_path, trials=1, seeds=seeds, watch=ran.append)
        return found.folder, len(ran)

    folders = []
    for asked in (
        {},
        {"changes": {"stop": {**stop, "target": 2.0}}},
        {"changes": {"stop": {**stop, "max_rounds": 5}}},
        {"changes": {"delays": {"name": "lognormal", "median": 30.0}}},
        {"changes": {"training": {**TABLE["training"], "lr": 0.03}}},
        {"seeds": (101,)},
        {"space": {"buffer": Choice((3,))}},
        {"scheme": "fedasync", "space": {"alpha": Choice((0.5,))}},
    ):
        folder, ran = search(**asked)
        assert ran == 1, f"{asked} reused the trials of another search"
        folders.append(folder)
    assert len(set(folders)) == len(folders)
    assert sorted(tmp_path.iterdir()) == sorted(folders)
    for folder, scheme in ((folders[0], "fedbuff"), (folders[-1], "fedasync")):
        assert json.loads((folder / "search.json").read_text())["scheme"] == scheme
        assert json.loads((folder / "trial-0" / "seed-100" / "run.json").read_text())
    assert search({"selectors": [{"name": "pace"}], "seeds": 7}) == (folders[0], 0)


def test_a_single_value_is_tried_once_and_the_defaults_come_first(tmp_path):
    chosen = parse_experiment(TABLE, "test")
    single = tune(chosen, "fedbuff", {"buffer": Choice((2,))}, folder=tmp_path, trials=9, seeds=[100])
    assert [trial.options for trial in single.trials] == [{"buffer": 10}, {"buffer": 2}]
    few = {"buffer": Range(1, 2), "lr": Choice((1.0, 2.0))}
    once = tune(chosen, "fedbuff", few, folder=tmp_path, trials=5, seeds=[100])
    tried = [(trial.options["buffer"], trial.options["lr"]) for trial in once.trials]
    assert tried == [(10, 1.0), (1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)]


def test_settings_that_cannot_be_run_are_passed_over(tmp_path):
    """The default k of random is 10, and there are 8 clients."""
    chosen = parse_experiment(TABLE, "test")
    found = tune(chosen, "random", {"k": Choice((9, 4))}, folder=tmp_path, trials=3, seeds=[100])
    assert [trial.options for trial in found.trials] == [{"k": 4}]
    assert (found.default, found.text) == (None, "random(k=4)")
    for _ in range(2):
        with pytest.raises(InputError, match=r"no setting of random that was tried can be run; .* only 8"):
            tune(chosen, "random", {"k": Choice((9,))}, folder=tmp_path, trials=3, seeds=[100])


def test_the_defaults_are_tried_after_an_interruption(tmp_path):
    chosen = parse_experiment(TABLE, "test")

    def stop(trial):
        raise KeyboardInterrupt

    space = {"buffer": Range(1, 9)}
    with pytest.raises(KeyboardInterrupt):
        tune(chosen, "fedbuff", space, folder=tmp_path, trials=1, seeds=[100], watch=stop)
    found = tune(chosen, "fedbuff", space, folder=tmp_path, trials=2, seeds=[100])
    assert len(found.trials) == 2
    assert found.default.options == {"buffer": 10}


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
    assert (whole.folder / "trial-4" / "seed-101" / "rounds.jsonl").exists()


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

    record = read_run(found.folder / "trial-0" / "seed-100")
    assert found.best.seconds == pytest.approx(MISSED * record.rounds[-1].clock)
    assert math.isclose(geometric_seconds([record, record]), found.best.seconds)


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "tune --scheme fedbuff --search buffer=5:20 --trials 2 --seeds 1 --target 0.5 --out there"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert "trial 0: " in done.stdout
    assert "the runs are in there/fedbuff-" in done.stdout.replace("\\", "/")
    again = CliRunner().invoke(app, [*words.split(), "--json"])
    assert len(json.loads(again.stdout)["trials"]) == 2, "nothing is run again"
    wrong = CliRunner().invoke(app, ["tune"])
    assert isinstance(wrong.exception, InputError)


TINY = """
name = "tiny"
data = { name = "quadratic", clients = 8, samples = 12, test_samples = 10, dimension = 4 }
model = { name = "linear" }
delays = { name = "lognormal" }
training = { epochs = 1, lr = 0.02, batch = 0 }
stop = { target = 1.0, hold = 1, max_rounds = 40 }
selectors = [{ name = "random" }]
"""


def said(folder, *words):
    """Return what `fedpace tune` prints for the tiny experiment."""
    file = folder / "tiny.toml"
    file.write_text(TINY)
    call = ["tune", str(file), "--scheme", "fedbuff", "--seeds", "1", "--out", str(folder / "out"), *words]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_suggested_comparison_has_the_target_and_the_delays(tmp_path):
    delays = "lognormal(median=30.0)"
    lines = said(tmp_path, "--search", "lr=3.0", "--target", "0.5", "--delays", delays).splitlines()
    assert "times as fast as the defaults" in lines[-3]
    command = shlex.split(lines[-1].removeprefix("now on other seeds: "))
    assert command[:2] == ["fedpace", "compare"]
    assert command[command.index("--target") + 1] == "0.5"
    assert command[command.index("--delays") + 1] == delays
    done = CliRunner().invoke(app, [*command[1:-1], "1", "--out", str(tmp_path / "compared"), "--json"])
    assert done.exit_code == 0, done.output
    assert "--target" not in said(tmp_path, "--search", "lr=3.0")


def test_no_factor_is_told_where_the_defaults_missed_the_target(tmp_path):
    output = said(tmp_path, "--search", "lr=3.0", "--target", "0.01")
    assert "the defaults never reached the target" in output
    assert "times as fast" not in output
    none = said(tmp_path, "--search", "lr=0.5", "--target", "1e-9")
    assert "none of 2 settings reached the target" in none
    assert "fedpace compare" not in none


def test_it_says_if_the_defaults_are_the_best(tmp_path):
    output = said(tmp_path, "--search", "lr=0.001")
    assert "the defaults are the best of 2: fedbuff, " in output
    assert "fedpace compare" not in output
