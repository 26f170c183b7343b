"""Trackers as the training sees them: named, checked before it begins, and never able to stop it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest

import fedpace
from fedpace import tracking as tracking_module
from fedpace._base.errors import FedpaceError, InputError
from fedpace.config import parse_experiment
from fedpace.tracking import Tracker, Tracking, make_trackers
from fedpace.tracking.trackers import Tensorboard

seen: dict[str, list] = {}


class ListSink:
    def __init__(self, name):
        self.key = name
        self.rows = seen.setdefault(name, [])

    def log(self, entries):
        self.rows += [(entry.number, dict(entry.values)) for entry in entries]

    def close(self, status):
        self.rows.append(status)


@dataclass(frozen=True)
class ToList(Tracker):
    """Keeps values in memory."""

    name: ClassVar[str] = "list"

    def open(self, run):
        return ListSink(run.name)


@dataclass(frozen=True)
class Failing(Tracker):
    """Fails in `where`: when it is opened, with every value, once, or at the end."""

    name: ClassVar[str] = "failing"
    where: str = "open"

    def open(self, run):
        if self.where == "open":
            raise ConnectionError("no server")
        return FailingSink(self.where)


class FailingSink(ListSink):
    def __init__(self, where):
        super().__init__(where)
        self.where, self.calls = where, 0

    def log(self, entries):
        self.calls += 1
        if self.where == "log" or (self.where == "once" and self.calls == 1):
            raise ConnectionError("no server")
        super().log(entries)

    def close(self, status):
        if self.where == "close":
            raise ConnectionError("no server")
        super().close(status)


@pytest.fixture(autouse=True)
def _empty():
    seen.clear()


def compared(track):
    return fedpace.compare(
        data="digits", model="softmax", schemes=["random(k=3)"], seeds=1, rounds=3, track=track, progress=False
    )


@pytest.mark.parametrize("where", ["open", "log", "close"])
def test_a_tracker_that_fails_does_not_stop_the_training(where, caplog):
    expected = compared(None).records[0].rounds
    with caplog.at_level(logging.WARNING):
        results = compared(Failing(where))
    assert results.records[0].rounds == expected
    assert "tracking with failing" in caplog.text
    assert "ConnectionError: no server" in caplog.text
    assert "Training continues" in caplog.text


def test_a_failure_in_between_loses_only_its_values(caplog):
    tracking = Tracking(Failing("once"), "run")
    tracking.log(0, {"loss": 3.0})
    while not caplog.text:  # the first value is lost before the second comes
        threading.Event().wait(0.01)
    tracking.log(1, {"loss": 2.0})
    tracking.close("finished")
    assert seen["once"] == [(1, {"loss": 2.0}), "finished"]


def test_a_tracker_that_hangs_is_left_behind(caplog, monkeypatch):
    monkeypatch.setattr(tracking_module, "PATIENCE", 0.1)
    release = threading.Event()

    @dataclass(frozen=True)
    class Hanging(Tracker):
        name: ClassVar[str] = "hanging"

        def open(self, run):
            release.wait()
            raise ConnectionError

    tracking = Tracking(Hanging(), "run")
    tracking.log(0, {"loss": 3.0})
    tracking.close()
    assert "did not end within 0.1 seconds" in caplog.text
    release.set()


def test_a_slow_tracker_loses_values_and_does_not_fill_the_memory(caplog, monkeypatch):
    monkeypatch.setattr(tracking_module, "MOST_WAITING", 5)
    release = threading.Event()

    @dataclass(frozen=True)
    class Slow(ToList):
        name: ClassVar[str] = "slow"

        def open(self, run):
            release.wait()
            return super().open(run)

    tracking = Tracking(Slow(), "run")
    for number in range(9):
        tracking.log(number, {"loss": 1.0})
    release.set()
    tracking.close()
    assert [row[0] for row in seen["run"][:-1]] == [0, 1, 2, 3, 4]
    assert caplog.text.count("is behind by 5 rounds") == 1


def test_own_trackers_get_every_round_and_the_status():
    (run,) = compared(ToList()).records
    *rows, status = seen["random(k=3), seed 0"]
    assert status == run.info.status
    assert [number for number, _ in rows] == [0, 1, 2, 3]
    assert [values["clock_seconds"] for _, values in rows] == [current.clock for current in run.rounds]
    assert [values["accuracy"] for _, values in rows] == [current.metric for current in run.rounds]


def test_trackers_are_named_in_toml_and_kept_in_the_plan():
    table = {
        "name": "x",
        "data": {"name": "digits"},
        "model": {"name": "softmax"},
        "delays": {"name": "lognormal"},
        "selectors": [{"name": "random"}],
    }
    for given in ("tensorboard", ["tensorboard"], [{"name": "tensorboard", "folder": "tensorboard"}]):
        experiment = parse_experiment({**table, "track": given}, "here")
        assert experiment.track == (Tensorboard(),)
        assert parse_experiment(experiment.as_table(), "there").track == experiment.track
    assert "track" not in parse_experiment(table, "here").as_table()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mlflw", "Did you mean 'mlflow'"),
        ("tensorboard(foldr=x)", "folder"),
        ("otel(every=0)", "every of otel must be above 0"),
        (3, "must name trackers"),
        ([3], "takes names of trackers or objects"),
        ({"uri": "x"}, "lacks the name"),
    ],
)
def test_mistakes_are_named_before_a_run_begins(given, said):
    with pytest.raises(InputError, match="(?i)" + said.replace("(", r"\(").replace(")", r"\)")):
        make_trackers(given)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setattr(Tensorboard, "needs", ("no_such_package",))
    with pytest.raises(FedpaceError, match=r"fedpace\[tensorboard\]"):
        make_trackers("tensorboard")
