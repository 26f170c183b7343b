"""What there is and what would be run: show, list, schemes in one line, dry runs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.config import Overrides, load_experiment


def call(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_show_says_all_of_one_scheme():
    shown = call("show", "pace")
    assert "feature moments" in shown
    assert "Try it" in shown
    entry = json.loads(call("show", "flanp", "--json"))
    assert entry["kind"] == "selectors"
    assert set(entry["options"]) == set(entry["meanings"]), "every option is explained"
    assert json.loads(call("show", "lognormal", "--json"))["kind"] == "delays"
    with pytest.raises(InputError, match="Did you mean 'pace'"):
        call("show", "pase")


def test_list_of_a_name_leads_to_show():
    with pytest.raises(InputError, match="`fedpace show pace` shows it"):
        call("list", "pace")


def test_infinite_defaults_are_written_as_such():
    found = {entry["name"]: entry for entry in json.loads(call("list", "selectors", "--json"))["selectors"]}
    assert any("inf" in entry["options"].values() for entry in found.values())
    assert all(default is not None for name in ("fed-cs", "oort") for default in found[name]["options"].values())


def test_schemes_and_delays_with_options_in_one_line():
    overrides = Overrides(["random", "random(k=5)", "random(k=7, label=seven)", "pace"], "lognormal(median=30.0)")
    chosen = load_experiment(None, overrides)
    assert [scheme.label for scheme in chosen.schemes] == ["random", "random(k=5)", "seven", "pace"]
    assert [scheme.selector.k for scheme in chosen.schemes[:3]] == [10, 5, 7]
    assert chosen.delays.median == 30.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("random(k=5", "brackets"),
        ("random(k)", "KEY=VALUE"),
        ("random(kk=5)", "no key 'kk'"),
        ("(k=5)", r"NAME\(KEY=VALUE"),
        (",", "names no scheme"),
    ],
)
def test_what_cannot_be_read_is_refused(text, sentence):
    with pytest.raises(InputError, match=sentence):
        call("compare", "--selectors", text, "--dry-run")


def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = json.loads(
        call("compare", "--selectors", "random(k=5),pace", "--max-rounds", 4, "--seeds", 2, "--dry-run", "--json")
    )
    assert (found["runs"], found["clients"], found["max_rounds"]) == (4, 60, 4)
    assert [scheme["label"] for scheme in found["schemes"]] == ["random(k=5)", "pace"]
    assert found["schemes"][0]["clients_per_round"] == 5
    assert found["seconds"] > 0
    shown = call("compare", "--selectors", "random(k=5)", "--max-rounds", 4, "--seeds", 2, "--dry-run")
    assert "accuracy" not in shown, "three rounds are no result"
    assert list(tmp_path.iterdir()) == []
