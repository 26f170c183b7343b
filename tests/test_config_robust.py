"""Robust rules in an experiment: `[robust]`, `--robust`, `robust=`; what is wrong with one is said at the start."""

from __future__ import annotations

import json

import pytest
from experiments import TEXT
from typer.testing import CliRunner

import fedpace
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.config import Overrides, load_experiment, parse_experiment
from fedpace.records.run import read_run
from fedpace.trust.robust import ROBUST, Fltrust, Krum, Median, TrimmedMean, Zeno

SMALL = ("--selectors", "random(k=6)", "--max-rounds", "2", "--target", "0.999", "--engine", "inline")


def robust(write, given):
    return load_experiment(write(f"{TEXT}\n[robust]\n{given}\n"))


def test_the_table_names_a_rule_its_options_and_the_validation_set(write):
    plain = load_experiment(write(TEXT))
    assert (plain.robust, plain.validation) == (None, 0)
    assert "robust" not in plain.as_table()
    found = robust(write, 'name = "trimmed-mean"\nfraction = 0.3')
    assert (found.robust, found.validation) == (TrimmedMean(fraction=0.3), 0)
    held = robust(write, 'name = "zeno"\nrho = 0.1\nvalidation = 40')
    assert (held.robust, held.validation) == (Zeno(rho=0.1), 40)
    assert held.as_table()["robust"] == {
        "name": "zeno",
        "rho": 0.1,
        "epsilon": 0.0,
        "server_vote": 1.0,
        "rescale": False,
        "validation": 40,
    }
    for experiment in (plain, found, held):
        assert parse_experiment(experiment.as_table(), "again") == experiment
    assert parse_experiment({**plain.as_table(), "robust": "median"}, "by name").robust == Median()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('name = "trimed-mean"', r"\[robust\]: there is no robust rule 'trimed-mean'\. Did you mean 'trimmed-mean'"),
        ('name = "krum"\nfractoin = 0.3', r"\[robust\] has no key 'fractoin'\. Did you mean 'fraction'"),
        ('name = "krum"\nfraction = 0.7', r"\[robust\]: fraction of krum must lie in \[0, 0\.5\), but 0\.7 came"),
        ('name = "krum"\nfraction = "x"', r"\[robust\]: fraction is 'x'"),
        ("fraction = 0.3", r"\[robust\] lacks its name; known: bulyan, centered-clipping"),
        ('name = "fltrust"', r"\[robust\]: fltrust compares updates with one .* validation set"),
        ('name = "median"\nvalidation = 9', r"\[robust\]: there is a validation set, but median does not use it"),
        ("validation = 9", r"\[robust\]: there is a validation set, but there is no robust rule"),
        ('name = "zeno"\nvalidation = -1', r"\[robust\]: validation must be at least 0"),
        ('name = "zeno"\nvalidation = 1.5', r"\[robust\]: validation is 1\.5"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_where_it_stands(write, given, words):
    with pytest.raises(InputError, match=rf"experiment\.toml, {words}"):
        robust(write, given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"robust": {"name": "krumm"}}, r"^--robust: there is no robust rule 'krumm'\. Did you mean 'krum'"),
        ({"robust": {"name": "krum", "f": 1}}, r"^--robust, krum has no key 'f'"),
        ({"robust": {"name": "zeno"}}, r"^--robust: zeno compares updates .* validation set"),
        ({"validation": 5}, r"^--validation: there is a validation set, but there is no robust rule"),
        ({"robust": {"name": "krum"}, "validation": 5}, r"^--robust, --validation: .* krum does not use it"),
    ],
)
def test_what_is_wrong_in_an_option_is_not_blamed_on_the_file(changes, words):
    with pytest.raises(InputError, match=words):
        load_experiment(None, Overrides(**changes))


def test_the_command_line_replaces_the_rule_or_the_size_of_its_validation_set(write):
    file = write(f'{TEXT}\n[robust]\nname = "fltrust"\nvalidation = 10\n')
    assert load_experiment(file, Overrides(validation=30)).validation == 30
    other = load_experiment(file, Overrides(robust={"name": "krum"}))
    assert (other.robust, other.validation) == (Krum(), 0)


@pytest.mark.parametrize(
    "text", ["trimmed-mean,fraction=0.3", "trimmed-mean:fraction=0.3", "trimmed-mean(fraction=0.3)"]
)
def test_compare_takes_a_rule_on_the_command_line(tmp_path, text):
    done = CliRunner().invoke(
        app, ["compare", *SMALL, "--seeds", "1", "--robust", text, "--out", str(tmp_path / "runs"), "--json"]
    )
    assert done.exit_code == 0, done.output
    (place,) = (tmp_path / "runs").rglob("run.json")
    info = read_run(place.parent).info
    assert info.robust == {"name": "trimmed-mean", "fraction": 0.3} == info.experiment["robust"]


def test_run_takes_a_rule_with_a_validation_set(tmp_path):
    arguments = ["run", "--selector", *SMALL[1:], "--robust", "fltrust", "--validation", "50", "--out"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    record = read_run(tmp_path / "run")
    assert record.info.robust == {"name": "fltrust", "server_vote": 1.0, "validation": 50}
    assert len(record.rounds) == 3


def test_records_without_a_rule_do_not_speak_of_it(tmp_path):
    done = CliRunner().invoke(app, ["run", "--selector", *SMALL[1:], "--out", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.output
    assert "robust" not in json.loads((tmp_path / "run" / "run.json").read_text())
    assert read_run(tmp_path / "run").info.robust == {}


def test_programs_name_a_rule_or_hand_one_over(tmp_path):
    parts = {"data": "digits", "model": "softmax", "schemes": "random(k=6)", "seeds": 1, "rounds": 2, "progress": False}
    found = fedpace.compare(**parts, robust="fltrust", validation=50, out=tmp_path / "runs")
    assert found.records[0].info.robust == {"name": "fltrust", "server_vote": 1.0, "validation": 50}
    made = fedpace.compare(**parts, robust=fedpace.make_robust("krum", fraction=0.1))
    assert made.records[0].info.robust == {"name": "krum", "fraction": 0.1}
    again = fedpace.compare(**parts, robust="fltrust", validation=50, out=tmp_path / "runs", resume=True)
    assert again.records[0].rounds == found.records[0].rounds
    with pytest.raises(InputError, match="another comparison, whose robust differ"):
        fedpace.compare(**parts, robust="krum", out=tmp_path / "runs", resume=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"robust": "medain"}, r"robust: there is no robust rule 'medain'\. Did you mean 'median'"),
        ({"robust": "fltrust"}, "fltrust compares updates .* validation set"),
        ({"robust": "median", "validation": 5}, "median does not use it"),
        ({"validation": 5}, "there is no robust rule"),
        ({"robust": "zeno", "validation": 2.5}, "validation must be a whole number"),
        ({"robust": "zeno", "validation": 10**9}, "samples are wanted, but the clients hold"),
        ({"robust": 3}, "robust must be a name"),
        ({"robust": fedpace.make_server("average")}, "robust must be the name of a robust rule"),
    ],
)
def test_programs_are_told_at_the_start(given, words):
    with pytest.raises(InputError, match=words):
        fedpace.compare(data="digits", model="softmax", schemes="random", seeds=1, rounds=1, progress=False, **given)
    with pytest.raises(InputError, match=words):
        fedpace.simulate("digits", "softmax", selector="random", **given)


def test_simulate_combines_by_the_rule():
    plain, trimmed = (
        next(r for r in fedpace.simulate("digits", "softmax", selector="random(k=6)", robust=rule) if r.number == 2)
        for rule in (None, "krum")
    )
    assert plain.clients == trimmed.clients
    assert "left out" not in plain.facts
    assert len(trimmed.facts["left out"]) == 5, "Krum takes one of six"


def test_rules_are_made_by_name():
    assert fedpace.make_robust("fltrust") == Fltrust()
    assert "make_robust" in fedpace.__all__
    assert registry.robust.names() == sorted(ROBUST)
    assert registry.robust.make("krum", fraction=0.1) == Krum(0.1)
    with pytest.raises(InputError, match=r"Did you mean 'krum'"):
        fedpace.make_robust("crum")


def test_rules_are_listed_and_shown():
    listed = CliRunner().invoke(app, ["list", "robust", "--json"])
    entries = {entry["name"]: entry for entry in json.loads(listed.output)["robust"]}
    assert list(entries) == sorted(ROBUST)
    assert entries["multi-krum"]["options"] == {"fraction": 0.2, "keep": 0}
    assert [name for name, entry in entries.items() if entry["validates"]] == ["fltrust", "zeno"]
    shown = json.loads(CliRunner().invoke(app, ["show", "multi-krum", "--json"]).output)
    assert set(shown["meanings"]) == {"fraction", "keep"}, "of the class that it is made from too"
    assert "mean of the `keep` updates" in shown["about"]
    for name, rule in ROBUST.items():
        found = json.loads(CliRunner().invoke(app, ["show", name, "--json"]).output)
        assert set(found["meanings"]) == set(found["options"]), f"every option of {rule.__name__} is explained"
    text = CliRunner().invoke(app, ["show", "zeno"]).output
    assert "needs: a validation set" in text
    assert "fedpace compare --robust zeno --validation 100" in text
