"""A session call by call: their order, and who can be chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from sessions import Asking, Everybody, settled, warmed, warmup_due

from fedpace import FedpaceError, Need, Session
from fedpace._base.errors import InputError, OrderError
from fedpace.selectors.random import Random

# -- the order of calls --------------------------------------------------------------------------------------


def test_observe_before_select():
    with pytest.raises(OrderError, match=r"observe\(\) came without a selection: call select\(\) first"):
        warmed().observe([])


def test_select_twice():
    session = warmed()
    session.select()
    with pytest.raises(OrderError, match=r"select\(\) came while selection 0 is still out: observe\(\) its 3 clients"):
        session.select()
    with pytest.raises(OrderError, match=r"probe\(\) came while selection 0 is still out"):
        session.probe()
    session.abandon()
    assert session.select().step == 0


def test_observe_twice():
    session = warmed()
    selection = session.select()
    session.observe(settled(selection))
    with pytest.raises(OrderError):
        session.observe(settled(selection))
    assert session.step == 1


def test_answer_without_a_probe():
    with pytest.raises(OrderError, match=r"answer\(\) came without a probe: call probe\(\) first"):
        warmed().answer({"a": 1.0})


def test_most_schemes_probe_nobody():
    assert warmed().probe() is None


@pytest.mark.parametrize(("kind", "answers"), [("loss", {"a": 1.0, "b": 3.0}), ("gradient", {"a": [1.0], "b": [3.0]})])
def test_a_scheme_that_probes_is_answered_first(kind, answers):
    session = warmed(Asking(kind))
    with pytest.raises(OrderError, match=r"asking asks clients before it chooses: call probe\(\) and answer\(\) first"):
        session.select()
    request = session.probe()
    assert (request.step, request.clients, request.kind) == (0, ("a", "b", "c"), kind)
    with pytest.raises(OrderError, match=r"select\(\) came while a probe is still out: answer\(\) it first"):
        session.select()
    session.answer(answers)  # c did not answer
    selection = session.select()
    assert selection.clients == ("b",)
    session.observe(settled(selection))
    with pytest.raises(OrderError, match="asks clients before it chooses"):
        session.select()


def test_a_probe_that_came_before_the_warm_up_does_not_count():
    """probe() had nothing to ask while a warm-up was due; the selection after it must not go unprobed."""

    @dataclass(frozen=True)
    class NeedsDelay(Asking):
        needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    session = Session(NeedsDelay())
    session.join(["a"])
    assert session.probe() is None
    session.observe(settled(session.select()))
    with pytest.raises(OrderError, match="asks clients before it chooses"):
        session.select()
    assert session.probe() is not None


def test_a_refused_probe_does_not_count():
    session = warmed(Asking())
    with pytest.raises(InputError, match="client 'z' is not in the roster"):
        session.probe(available=["z"])
    with pytest.raises(OrderError, match="asks clients before it chooses"):
        session.select()


def test_abandoning_a_probe():
    session = warmed(Asking())
    session.probe()
    session.abandon()
    with pytest.raises(OrderError, match="asks clients before it chooses"):
        session.select()


@pytest.mark.parametrize(
    ("kind", "answers", "words"),
    [
        ("loss", {"a": 1.0, "z": 1.0}, "client 'z' answered a probe, but it was not asked"),
        ("loss", {"a": 1.0, "b": math.nan}, "the loss of client 'b' must be finite, but nan came"),
        ("loss", {"a": 1.0, "b": math.inf}, "the loss of client 'b' must be finite"),
        ("loss", {"a": 1.0, "b": "low"}, "the loss of client 'b' must be a number"),
        ("gradient", {"a": [1.0], "b": [1.0, 2.0]}, "the update sketch of client 'b' has 2 entries, but .* have 1"),
        ("gradient", {"a": [1.0], "b": 2.0}, "the update sketch of client 'b' must have 1 axes"),
    ],
)
def test_bad_answers_change_nothing(kind, answers, words):
    session = warmed(Asking(kind))
    session.probe()
    with pytest.raises(InputError, match=words):
        session.answer(answers)
    view = session.view()
    assert np.isnan(view.loss).all()
    assert view.updates is None
    session.answer({"a": 1.0 if kind == "loss" else [1.0]})
    assert session.select().clients == ("a",)


def test_who_left_is_not_heard():
    session = warmed(Asking())
    session.probe()
    session.leave(["a"])
    session.answer({"a": 9.0, "b": 1.0, "c": 2.0})
    assert session.view().loss.tolist() == [1.0, 2.0]
    assert session.view().loss_step.tolist() == [0, 0]


def test_time_does_not_run_backwards():
    session = warmed()
    selection = session.select(now=5.0)
    for bad in (4.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"time must not run backwards: it was 5\.0 s, but now = "):
            session.observe(settled(selection), now=bad)
    assert session.view().participations.tolist() == [1, 1, 1], "a refused report changes nothing"
    session.observe(settled(selection), now=9.0)
    assert session.now == 9.0
    assert session.view().now == 9.0
    assert session.view(now=11.0).now == 11.0


# -- who is there --------------------------------------------------------------------------------------------


def test_only_the_available_are_chosen():
    session = warmed()
    assert session.select(available=["c", "a"]).clients == ("a", "c")


def test_nobody_is_available():
    with pytest.raises(InputError, match="none of the 3 clients is available: wait, and select again"):
        warmed().select(available=[])


def test_available_strangers():
    with pytest.raises(InputError, match="client 'z' is not in the roster of 3 clients"):
        warmed().select(available=["z"])


def test_zero_clients():
    for warmup in ("full", "lazy"):
        session = Session(Everybody(), warmup=warmup)
        with pytest.raises(InputError, match="there are no clients to choose from"):
            session.select()
        assert session.probe() is None
        assert not warmup_due(session)


def test_more_are_wanted_than_there_are():
    session = Session(Random(k=4))
    session.join(["a", "b", "c"])
    with pytest.raises(FedpaceError, match="random is asked for k = 4 clients, but there are only 3"):
        session.select()
    session.join(["d", "e"])
    assert len(session.select(available=["a", "b"]).clients) == 2, "fewer are reachable just now: all of them"


def test_clients_can_be_believed():
    assert Session(Random(k=1)).coordinator.ledger.trust.on
    assert not Session(Random(k=1), trust=False).coordinator.ledger.trust.on
