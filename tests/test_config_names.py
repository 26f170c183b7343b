"""Names that become folders, and configurations that travel through JSON."""

from __future__ import annotations

import json

import pytest

from fedpace import Clock, Fleet, make_selector
from fedpace._base.errors import InputError
from fedpace.config import Overrides, load_experiment, parse_experiment
from fedpace.records.run import plain

BASE = {
    "name": "mine",
    "data": {"name": "digits", "clients": 5},
    "model": {"name": "softmax"},
    "delays": {"name": "lognormal"},
    "selectors": [{"name": "random", "k": 2}],
}


@pytest.mark.parametrize("name", ["", "  ", ".", "..", "../../evil", "a/b", "a\\b", "a\x00b", "a\nb", "x" * 101])
def test_a_name_that_is_no_folder_name_is_refused(name):
    with pytest.raises(InputError, match="cannot name a folder"):
        parse_experiment({**BASE, "name": name}, "my.toml")
    with pytest.raises(InputError, match="cannot name a folder"):
        parse_experiment({**BASE, "selectors": [{"name": "random", "label": name}]}, "my.toml")


def test_a_recorded_experiment_can_be_parsed_again():
    experiment = load_experiment(None)
    recorded = json.loads(json.dumps(plain(experiment.as_table()), allow_nan=False))
    assert parse_experiment(recorded, "run.json") == experiment


def test_overrides_leave_what_is_no_table_to_the_parser():
    for table in ({**BASE, "stop": 3}, {**BASE, "selectors": 5}):
        with pytest.raises(InputError):
            parse_experiment(Overrides(target=0.5).apply(table), "my.toml")
    assert Overrides(selectors=["random"]).apply({**BASE, "selectors": 5})["selectors"] == [{"name": "random"}]


def test_a_scheme_named_twice_on_the_command_line_is_taken_once():
    table = {**BASE, "selectors": [{"name": "random", "label": "big", "k": 4}]}
    assert Overrides(selectors=["big", "random"]).apply(table)["selectors"] == table["selectors"]


def test_an_unknown_option_of_a_scheme_suggests_the_right_one():
    with pytest.raises(InputError, match=r"no option 'target_heterogenity'\. Did you mean 'target_heterogeneity'"):
        make_selector("delayhet-submodular", target_heterogenity=0.5)


@pytest.mark.parametrize("k", [2.5, "3", None, True])
def test_a_cohort_size_that_is_no_whole_number_is_refused(k):
    with pytest.raises(InputError, match="k of random must be a whole number"):
        make_selector("random", k=k)


@pytest.mark.parametrize(
    ("section", "key"), [("training", "lr"), ("training", "mu"), ("clock", "probe_fraction"), ("selectors", "ridge")]
)
def test_infinite_options_are_refused_when_they_are_read(section, key):
    table = {**BASE, section: {key: float("inf")}}
    if section == "selectors":
        table["selectors"] = [{"name": "delayhet-submodular", key: float("inf")}]
    with pytest.raises(InputError, match=f"{key} of .* must (be a finite number|lie between)"):
        parse_experiment(table, "my.toml")


def test_a_label_on_the_command_line_is_one_scheme():
    table = {**BASE, "selectors": [{"name": "random"}, {"name": "random", "label": "big", "k": 4}]}
    assert Overrides(selectors=["random"]).apply(table)["selectors"] == [{"name": "random"}]
    assert Overrides(selectors=["big"]).apply(table)["selectors"] == [{"name": "random", "label": "big", "k": 4}]


def test_an_accuracy_beyond_one_is_refused():
    with pytest.raises(InputError, match=r"lies in \(0, 1\], but 92.0 came"):
        parse_experiment({**BASE, "stop": {"target": 92.0}}, "my.toml")


def test_the_warmup_is_charged_unless_told_otherwise():
    """In TOML as in Python and in the demo; a free warm-up waits for all, since that costs nothing."""
    assert Clock(deadline=9.0).charge_warmup, "an option beside it changes nothing"
    for found in (parse_experiment(BASE, "my.toml"), load_experiment(None)):
        assert (found.clock, found.fleet.warmup_wait) == (Clock(), Fleet().warmup_wait)
        assert found.fleet.waits_for(found.clock) == 0.25
    free = parse_experiment({**BASE, "clock": {"charge_warmup": False}}, "my.toml")
    assert not free.clock.charge_warmup
    assert free.fleet.waits_for(free.clock) == 1.0
    assert parse_experiment(free.as_table(), "my.toml") == free
    kept = parse_experiment({**BASE, "fleet": {"warmup_wait": 1.0}, "clock": {"deadline": 9.0}}, "my.toml")
    assert (kept.fleet.warmup_wait, kept.clock.deadline, kept.clock.charge_warmup) == (1.0, 9.0, True)


def test_the_warmup_can_be_charged_from_the_command_line():
    assert parse_experiment(Overrides(charge_warmup=True).apply(BASE), "my.toml").clock.charge_warmup
    assert not parse_experiment(Overrides(charge_warmup=False).apply(BASE), "my.toml").clock.charge_warmup
    assert parse_experiment(Overrides(warmup_wait=0.5).apply(BASE), "my.toml").fleet.warmup_wait == 0.5
