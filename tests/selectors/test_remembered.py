"""What pace has remembered of answers: kept by the ledger for the scheme that names it, and for no other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedpace import Outcome, Session, make_selector
from fedpace._base.errors import InputError
from fedpace.core.ledger import Accumulated
from fedpace.core.types import Accumulator
from fedpace.selectors._remembered import ANSWERS, AnswerLateness, RecentWeight
from fedpace.selectors.random import Random


@dataclass(frozen=True)
class Remembering(Random):
    """Random clients, with what pace remembers."""

    accumulates: ClassVar[tuple[Accumulator, ...]] = (RecentWeight(), AnswerLateness())


def recent(session):
    return session.view().accumulated["recent_weight"]


def lateness(session):
    return session.view().accumulated["lateness"]


def test_only_who_asks_for_it_has_it():
    session = Session(make_selector("random", k=2))
    session.join(["a", "b"])
    assert session.view().accumulated == {}
    assert {each.name for each in make_selector("pace").accumulates} == {"recent_weight", "lateness"}


def test_values_are_shown_read_only():
    session = Session(Remembering(k=2))
    session.join(["a", "b"])
    with pytest.raises(ValueError, match="read-only"):
        recent(session)[0] = 1.0


def test_who_joins_and_who_leaves():
    session = Session(Remembering(k=3), seed=1)
    session.join(["a", "b", "c"])
    session.observe([Outcome(client, seconds=1.0) for client in session.select().clients])
    session.leave(["b"])
    session.join(["d"])
    assert recent(session) == pytest.approx([1 / 6, 1 / 6, 0.0])


@pytest.mark.parametrize(
    ("name", "saved"),
    [("recent_weight", np.zeros(2)), ("recent_weight", None), ("lateness", np.zeros((4, 3)))],
)
def test_saved_values_that_do_not_fit_are_refused(name, saved):
    values = {"recent_weight": np.zeros(3), "lateness": np.zeros((5, 2))} | {name: saved}
    with pytest.raises(InputError, match=name):
        Accumulated(Remembering.accumulates).load({key: value for key, value in values.items() if value is not None}, 3)


def test_views_remember_the_weights_of_recent_rounds():
    session = Session(Remembering(k=2), seed=1)
    session.join(["a", "b"])
    for _ in range(2):
        selection = session.select()
        session.observe([Outcome(client, seconds=1.0) for client in selection.clients])
    assert recent(session) == pytest.approx(np.full(2, 0.5 * (0.5 + 0.25)))


def test_who_failed_leaves_its_weight_to_the_others():
    session = Session(Remembering(k=2), seed=1)
    session.join(["a", "b"])
    selection = session.select()
    session.observe([Outcome(client, seconds=1.0, finished=client == "a") for client in selection.clients])
    assert recent(session) == pytest.approx([0.5, 0.0])


def test_a_saved_session_remembers_them(tmp_path):
    session = Session(Remembering(k=1), seed=1)
    session.join(["a", "b", "c"])
    selection = session.select()
    session.observe([Outcome(client, seconds=1.0) for client in selection.clients])
    session.save(tmp_path / "session")
    restored = Session.restore(tmp_path / "session", session.selector)
    assert np.array_equal(recent(restored), recent(session))


class TestLateness:
    """How long clients took over what was expected of them."""

    def session(self, **options):
        session = Session(Remembering(k=3), **options)
        session.join(["a", "b", "c"], delays=[10.0, 20.0, 40.0])
        return session

    def report(self, session, seconds, finished=(True, True, True)):
        selection = session.select()
        by = dict(zip("abc", zip(seconds, finished, strict=True), strict=True))
        session.observe([Outcome(c, seconds=by[c][0], finished=by[c][1]) for c in selection.clients])

    def test_ratios_and_who_was_given_up(self):
        session = self.session(learn_delays=False)
        assert lateness(session).shape == (0, 2)
        self.report(session, [11.0, 30.0, math.nan], (True, False, False))
        assert lateness(session).tolist() == [[pytest.approx(1.1), 0.0], [pytest.approx(1.5), 1.0]]

    def test_what_was_expected_before_the_answer_counts(self):
        session = self.session()
        expected = session.view().delay
        self.report(session, [20.0, 40.0, 80.0])
        assert lateness(session)[:, 0] == pytest.approx(np.array([20.0, 40.0, 80.0]) / expected)

    def test_the_oldest_go(self):
        session = self.session(learn_delays=False)
        for _ in range(ANSWERS // 3 + 5):
            self.report(session, [10.0, 20.0, 40.0])
        assert len(lateness(session)) == ANSWERS

    def test_they_are_saved(self, tmp_path):
        session = self.session(learn_delays=False)
        self.report(session, [11.0, 30.0, 40.0])
        session.save(tmp_path / "session")
        restored = Session.restore(tmp_path / "session", session.selector)
        assert np.array_equal(lateness(restored), lateness(session))
