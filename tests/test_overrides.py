"""What the command line changes in an experiment, and what an error then names."""

from __future__ import annotations

import copy
import math
import tomllib
from pathlib import Path

import pytest
from experiments import TEXT

from fedpace._base.errors import InputError
from fedpace.config import Overrides, load_experiment
from fedpace.delays.lognormal import LognormalDelays
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular


def overridden(write, **changes):
    return load_experiment(write(TEXT), Overrides(**changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"selectors": ["randm"]}, r"^--selectors: there is no scheme 'randm'\. Did you mean 'random'"),
        ({"selectors": ["random(kk=3)"]}, r"^--selectors, random has no key 'kk'\. Did you mean 'k'"),
        ({"selectors": ["pce"], "option": "--selector"}, "^--selector: there is no scheme 'pce'"),
        ({"selectors": ["random(k=2)", "random(k=2)"]}, r"^--selectors: two schemes are called 'random\(k=2\)'"),
        ({"target": 2.0}, r"^--target: an accuracy to reach lies in \(0, 1\]"),
        ({"target": math.nan, "hold": 3}, "^--target, --hold: target of stop must be a finite number"),
        ({"max_rounds": 0}, "^--max-rounds: max_rounds of stop must be at least 1"),
        ({"delays": "nyc"}, "^--delays: there is no delay model 'nyc'"),
        ({"server": {"name": "fedadam", "l": 1}}, r"^--server, fedadam has no key 'l'\. Did you mean 'lr'"),
    ],
)
def test_what_is_wrong_in_an_option_is_not_blamed_on_the_file(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        load_experiment(None, Overrides(**changes))


def test_what_is_wrong_in_the_file_is_not_blamed_on_an_option(write):
    text = TEXT.replace("[stop]", "[stop]\nhold = 0")
    assert text != TEXT
    with pytest.raises(InputError, match=r"experiment\.toml, \[stop\]: hold of stop must be at least 1"):
        load_experiment(write(text), Overrides(target=0.5))


def test_a_file_is_found_beside_its_experiment(tmp_path, monkeypatch):
    """As in examples/own_table, from wherever the command is run."""
    folder, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        place.mkdir()
    example = Path(__file__).parents[1] / "examples" / "own_table"
    for name in ("visits.csv", "visits.toml"):
        (folder / name).write_bytes((example / name).read_bytes())
    monkeypatch.chdir(elsewhere)
    assert load_experiment(folder / "visits.toml").data.path == str(folder / "visits.csv")
    assert load_experiment(Path("../mine/visits.toml")).data.path == str(elsewhere / "../mine/visits.csv")
    (elsewhere / "visits.csv").write_bytes((example / "visits.csv").read_bytes())
    assert load_experiment(folder / "visits.toml").data.path == str(elsewhere / "visits.csv"), "here comes first"


def test_no_overrides_change_nothing(write):
    assert overridden(write) == load_experiment(write(TEXT))


def test_limits(write):
    found = overridden(write, target=1.5, max_rounds=7, seeds=range(2))
    assert (found.stop.target, found.stop.max_rounds, found.stop.max_seconds) == (1.5, 7, 1e5)
    assert found.seeds == (0, 1)


def test_delays(write):
    assert overridden(write, delays="constant").delays.name == "constant"
    assert overridden(write, delays="lognormal").delays == LognormalDelays(median=20), "its options are kept"
    with pytest.raises(InputError, match="there is no delay model 'fast'"):
        overridden(write, delays="fast")


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        (["unbiased"], ["unbiased"]),
        (["delayhet-submodular", "unbiased"], ["delayhet-submodular", "unbiased"]),
        (["random"], ["random"]),
        (["delayhet-sampling"], ["delayhet-sampling"]),
    ],
)
def test_selectors(write, wanted, labels):
    found = overridden(write, selectors=wanted)
    assert [scheme.label for scheme in found.schemes] == labels
    if "delayhet-submodular" in labels:
        assert found.schemes[0].selector == DelayhetSubmodular(target_heterogeneity=0.5), "with its options"


def test_an_unknown_selector(write):
    with pytest.raises(InputError, match=r"there is no scheme 'rando'\. Did you mean 'random'\?"):
        overridden(write, selectors=["rando"])


def test_an_override_does_not_change_the_table():
    raw = tomllib.loads(TEXT)
    before = copy.deepcopy(raw)
    Overrides(selectors=["random"], delays="constant", seeds=[1], target=1.0, max_rounds=3).apply(raw)
    assert raw == before
