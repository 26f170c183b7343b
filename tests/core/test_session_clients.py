"""The clients of a session: who joins and leaves, what they report, and what they count for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sessions import Everybody, Listening, settled, warmed

from fedpace import Need, Outcome, Session
from fedpace._base.errors import InputError
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random

# -- roster --------------------------------------------------------------------------------------------------


def test_ids_may_be_anything_hashable():
    ids = ["phone", 7, ("site", 3), b"raw", None, 2.5, frozenset({1}), Session]
    session = warmed(clients=ids)
    assert session.clients == tuple(ids)
    assert len(session) == 8
    selection = session.select()
    assert selection.clients == tuple(ids)
    session.observe(settled(selection))
    assert session.step == 1


def test_clients_come_and_go_between_rounds():
    session = warmed()
    session.leave(["b"])
    session.join(["d"], delays=[3.0])
    assert session.clients == ("a", "c", "d")
    assert session.select().clients == ("a", "c", "d")


def test_clients_come_and_go_between_select_and_observe():
    session = warmed(Listening())
    selection = session.select()
    session.leave(["a"])
    session.join(["d"], delays=[3.0])
    session.observe([Outcome("b", seconds=2.0), Outcome("c", seconds=4.0)])
    (report,) = session.coordinator.state.reports
    assert report.clients.tolist() == [0, 1], "rows of b and c after a left"
    assert report.seconds.tolist() == [2.0, 4.0]
    np.testing.assert_allclose(report.weights, selection.weights[1:])
    assert session.view().participations.tolist() == [1, 1, 0]


def test_who_left_may_be_reported_and_is_ignored():
    session = warmed(Listening())
    selection = session.select()
    session.leave(["a"])
    session.observe(settled(selection))
    assert session.coordinator.state.reports[0].clients.size == 2


def test_everybody_may_leave_in_the_middle_of_a_round():
    session = warmed(Listening())
    session.select()
    session.leave(["a", "b", "c"])
    session.observe([])
    assert session.step == 1
    assert session.coordinator.state.reports[0].clients.size == 0
    with pytest.raises(InputError, match="there are no clients to choose from: let some join first"):
        session.select()


def test_facts_given_when_joining_are_shown():
    session = Session(Everybody(), shares="samples", learn_delays=False)
    session.join(["a", "b"], samples=[1, 3], delays=[5.0, 6.0], labels=[[1, 0], [0, 2]])
    view = session.view()
    np.testing.assert_allclose(view.share, [0.25, 0.75])
    np.testing.assert_array_equal(view.delay, [5.0, 6.0])
    np.testing.assert_array_equal(view.labels, [[1, 0], [0, 2]])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"samples": [1]}, "2 clients join with 1 samples: give one for each"),
        ({"delays": [1, 2, 3]}, "2 clients join with 3 delays"),
        ({"samples": [1, -1]}, "the samples of client 'e' must be a count of at least 0, but -1"),
        ({"samples": [1, math.nan]}, "the samples of client 'e'"),
        ({"delays": [1.0, math.nan]}, "the delay of client 'e' must be a finite number of seconds.* it is nan"),
        ({"delays": [math.inf, 1.0]}, "the delay of client 'd' .* it is inf"),
        ({"delays": [1.0, -2.0]}, "the delay of client 'e' .* it is -2"),
        ({"delays": [1.0, None], "labels": [[1], [1]]}, "the delay of client 'e' .* it is nan"),
        ({"delays": [1.0, "x"]}, "delays must be numbers"),
        ({"samples": ["x", 1]}, "samples must be numbers"),
        ({"labels": [[1, 2], [1]]}, "label histograms must be numbers"),
        ({"labels": [[1, 2], [1, -2]]}, "the label histogram of client 'e'"),
        ({"labels": [[1, 2], [1, 2]], "delays": [1.0, -1.0]}, "the delay of client 'e'"),
    ],
)
def test_a_bad_join_changes_nothing(facts, words):
    session = warmed()
    before = {name: array.copy() for name, array in session.coordinator.ledger.arrays().items()}
    with pytest.raises(InputError, match=words):
        session.join(["d", "e"], **facts)
    assert session.clients == ("a", "b", "c")
    after = session.coordinator.ledger.arrays()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_a_refused_join_does_not_settle_the_width_of_labels():
    session = Session(Everybody())
    with pytest.raises(InputError, match="the label histogram of client 'b'"):
        session.join(["a", "b"], labels=[[1, 2], [1, -1]])
    session.join(["a"], labels=[[1, 2, 3]])


# -- reports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (["a", "b"], "client 'c' of selection 0 is missing from the report: say how it settled"),
        (["a", "b", "c", "a"], "client 'a' was reported twice"),
        (["a", "b", "c", "z"], "client 'z' was reported, but it is not in selection 0"),
    ],
)
def test_everybody_is_reported_once(clients, words):
    session = warmed()
    session.select()
    with pytest.raises(InputError, match=words):
        session.observe([Outcome(client, seconds=1.0) for client in clients])
    assert session.step == 0
    assert session.pending is not None


@pytest.mark.parametrize(
    "fault",
    [
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"seconds": None},
        {"loss": math.inf},
        {"samples": -1.0},
        {"moment": np.ones((2, 9))},
        {"moment": np.ones((2, 0))},
        {"update": np.ones(9)},
        {"update": np.array([math.nan, 1.0])},
    ],
    ids=repr,
)
@pytest.mark.parametrize("fresh", [True, False], ids=["first report", "later report"])
def test_a_bad_outcome_in_the_middle_changes_nothing(fault, fresh):
    session = Session(Listening())
    session.join(["a", "b", "c"])
    good = {"seconds": 5.0, "loss": 2.0, "samples": 3.0, "moment": np.ones((2, 4)), "update": np.ones(2)}
    if not fresh:
        session.observe([Outcome(client, **good) for client in session.select().clients])
    session.select()
    before = {name: array.copy() for name, array in session.coordinator.ledger.arrays().items()}
    state, step = session.coordinator.state, session.step
    report = [Outcome("a", **good), Outcome("b", **(good | fault)), Outcome("c", **good)]
    with pytest.raises(InputError, match="client 'b'"):
        session.observe(report, now=50.0)
    after = session.coordinator.ledger.arrays()
    assert set(after) == set(before)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    assert (session.coordinator.state, session.step, session.now) == (state, step, 0.0)
    session.observe([Outcome(client, **good) for client in ("c", "b", "a")], now=50.0)
    assert session.step == step + 1


def test_the_selector_learns_what_came_back():
    session = warmed(Listening())
    selection = session.select(now=1.0)
    session.observe(
        [
            Outcome("c", seconds=3.0, loss=0.5, samples=7, update=np.array([1.0, 2.0])),
            Outcome("a", seconds=9.0, finished=False),
            Outcome("b", seconds=2.0),
        ],
        now=10.0,
    )
    (report,) = session.coordinator.state.reports
    assert (report.step, report.now) == (0, 10.0)
    assert report.clients.tolist() == [0, 1, 2], "in cohort order, however they were reported"
    assert report.finished.tolist() == [False, True, True]
    assert report.seconds.tolist() == [9.0, 2.0, 3.0]
    np.testing.assert_array_equal(report.loss, [math.nan, math.nan, 0.5])
    np.testing.assert_array_equal(report.samples, [math.nan, math.nan, 7.0])
    np.testing.assert_array_equal(report.updates, [[math.nan] * 2, [math.nan] * 2, [1.0, 2.0]])
    np.testing.assert_array_equal(report.weights, selection.weights)


def test_failures_are_no_participations():
    session = warmed(Everybody())
    session.select()
    session.observe([Outcome("a", seconds=1.0), Outcome("b", finished=False), Outcome("c", seconds=1.0)])
    assert session.view().participations.tolist() == [2, 1, 2]


def test_without_learning_delays_stay_the_hosts():
    session = Session(Everybody(), learn_delays=False)
    session.join(["a", "b"], delays=[1.0, 2.0])
    selection = session.select()
    assert not selection.warmup
    session.observe([Outcome("a", seconds=50.0), Outcome("b")])
    assert session.view().delay.tolist() == [1.0, 2.0]


# -- shares, needs and options -------------------------------------------------------------------------------


def test_shares():
    session = Session(Everybody(), shares="samples", learn_delays=False)
    session.join(["a", "b"], samples=[1, 3], delays=[1, 1])
    np.testing.assert_allclose(session.view().share, [0.25, 0.75])
    session.leave(["a"])
    np.testing.assert_allclose(session.view().share, [1.0])
    session.join(["c"], delays=[1])
    with pytest.raises(InputError, match="shares='samples' needs everybody's sample count, but that of client 'c'"):
        session.view()
    uniform = Session(Everybody())
    uniform.join(["a", "b"], samples=[1, 3])
    np.testing.assert_allclose(uniform.view().share, [0.5, 0.5])


def test_shares_follow_the_samples_reported():
    session = Session(Random(k=2), shares="samples")
    session.join(["a", "b"], samples=[1, 1])
    selection = session.select()
    session.observe([Outcome(c, seconds=1.0, samples=3.0 if c == "a" else 1.0) for c in selection.clients])
    np.testing.assert_allclose(session.view().share, [0.75, 0.25])


def test_needs_are_compared_with_what_the_host_offers():
    with pytest.raises(InputError) as caught:
        Session(DelayhetSubmodular(), offers=[Need.DELAY, Need.LOSS])
    assert str(caught.value) == "delayhet-submodular needs feature moments; this host reports delays, losses only"
    with pytest.raises(
        InputError, match="delayhet-submodular needs delays, feature moments; this host reports nothing"
    ):
        Session(DelayhetSubmodular(), offers=[])
    Session(DelayhetSubmodular(), offers=list(Need))
    Session(Random(), offers=[])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shares": "equal"}, "shares must be one of 'uniform', 'samples', but 'equal' came"),
        ({"warmup": "none"}, "warmup must be one of 'full', 'lazy', but 'none' came"),
        ({"warmup_quota": 0}, "warmup_quota must be at least 1, but 0 came"),
        ({"seed": -1}, "a seed is a non-negative integer, but -1 came"),
        ({"seed": 1.5}, "a seed is a non-negative integer, but 1.5 came"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        Session(Everybody(), **options)


def test_seeds_decide_the_draws():
    def clients(seed):
        session = Session(Random(k=3), seed=seed)
        session.join(range(30))
        found = []
        for _ in range(3):
            selection = session.select()
            found.append(selection.clients)
            session.observe(settled(selection))
        return found

    assert clients(1) == clients(1)
    assert clients(1) != clients(2)
    assert len(set(clients(1))) == 3, "every step draws anew"


def test_a_view_shows_no_moments_before_there_are_any():
    session = warmed(Listening())
    assert session.view().moments is None
    session.observe(settled(session.select(), moment=np.eye(2)))
    assert session.view().moments.known.all()


def test_who_leaves_and_joins_again_while_a_selection_is_out_owes_nothing():
    session = Session(Random(k=2))
    session.join([0, 1])
    clients = session.select().clients
    session.leave([clients[0]])
    session.join([clients[0]])
    session.observe([Outcome(client, 1.0) for client in clients])
    assert session.select().clients
