"""Edge aggregators in the simulator of fleets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import FedpaceError
from fedpace.population import Edges, Group, Learning, Limits, make_admission, scenario, simulate
from fedpace.population.edges import HeldSums

OPTIONS = {"paced": {}, "first-come": {"buffer": 10}, "random": {"buffer": 10}, "over-selection": {"goal": 20}}
GROUPS, LEARNING = scenario("rare", 20_000)
REGIONS = {group.name: group.name.split("-")[0] for group in GROUPS}


def run(edges=None, policy="paced", **others):
    options = {"seconds": 1200.0, "start_hour": 22, "rollout": 1200, **others}
    admission = make_admission(policy, **OPTIONS[policy])
    return simulate(GROUPS, admission, limits=Limits(concurrency=60), learning=LEARNING, edges=edges, **options)


@pytest.mark.parametrize("policy", OPTIONS)
def test_edges_that_pass_everything_on_at_once_give_the_model_of_a_flat_fleet(policy):
    flat, tree = run(policy=policy, seconds=600.0), run(Edges(REGIONS, 0.0), policy, seconds=600.0)
    assert np.array_equal(flat.model, tree.model)
    assert flat.steps == tree.steps > 0
    assert flat.received == tree.received == flat.answered.sum()


def test_an_edge_sends_few_vectors_and_the_model_learns_all_the_same():
    flat, tree = run(), run(Edges(REGIONS, 60.0))
    assert flat.received == flat.answered.sum()
    assert 0 < tree.received < 0.5 * tree.answered.sum()
    assert tree.evaluations[-1].accuracy > 0.6
    assert tree.summary()["vectors_received"] == tree.received


def test_a_slow_edge_delays_its_own_devices_only():
    tree = run(Edges(REGIONS, 10.0, slow={"west": 1190.0}), seconds=1180.0)
    west = np.array([name == "west" for name in REGIONS.values()])
    assert tree.answered[west].sum() == 0
    assert tree.answered[~west].sum() > 100


def test_answers_that_a_dead_edge_had_acknowledged_arrive_when_it_is_back():
    """Equal devices, all of which have answered before the edge dies: nothing is lost, it only comes later."""
    groups = [Group("a", 10**6, seconds=20.0, spread=0.0, dropout=0.0, day=1.0)]
    edges = Edges({"a": "only"}, 60.0, outages={"only": [(40.0, 200.0)]})
    seen = []

    def watch(now, admission, result):
        seen.append((now, int(admission.book.answered.sum()), int(admission.book.in_flight.sum())))

    result = simulate(
        groups,
        make_admission("first-come", buffer=10, over_selection=1.0),
        limits=Limits(concurrency=10),
        learning=Learning({"a": [1.0] * 10}),
        seconds=240.0,
        rollout=0.0,
        edges=edges,
        watch=watch,
    )
    assert all(answered == 0 and in_flight == 10 for now, answered, in_flight in seen if 40 <= now < 200)
    assert result.lost.sum() == 0
    assert result.answered.sum() >= 10
    assert result.steps >= 1


def test_a_dead_edge_admits_nobody_and_loses_what_its_devices_were_doing():
    away = (300.0, 900.0)
    per_tick = []

    def watch(now, admission, result):
        per_tick.append((now, admission.book.admitted.copy()))

    tree = run(Edges(REGIONS, 10.0, outages={"west": [away]}), watch=watch)
    west = np.array([name == "west" for name in REGIONS.values()])
    inside = [admitted for now, admitted in per_tick if away[0] < now <= away[1]]
    assert (inside[0][west] == inside[-1][west]).all()
    assert inside[-1][~west].sum() > inside[0][~west].sum()
    assert tree.lost[west].sum() > run(Edges(REGIONS, 10.0)).lost[west].sum()
    assert tree.admitted[west].sum() > inside[-1][west].sum(), "it goes on afterwards"


def test_edges_take_answers_while_the_root_is_away():
    away = [(300.0, 600.0)]
    flat, tree = run(outages=away), run(Edges(REGIONS, 10.0), outages=away)
    assert tree.lost.sum() < 0.7 * flat.lost.sum()


def test_sums_are_held_until_their_message():
    held = HeldSums(Edges({"a": "one", "b": "two"}, 10.0, slow={"two": 30.0}), ["a", "b"])
    for group, version, number in ((0, 3, 7), (0, 3, 8), (0, 4, 1), (1, 3, 2)):
        held.add(group, version, number)
    assert list(held.due(9.0)) == []
    assert list(held.due(10.0)) == [(0, 3, [7, 8]), (0, 4, [1])]
    assert held.holds(3)
    assert not held.holds(4)
    assert list(held.due(29.0)) == []
    assert list(held.due(30.0)) == [(1, 3, [2])]
    assert not held.holds(3)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Edges({}), "no group came"),
        (lambda: Edges({"a": "one"}, -1.0), "seconds between messages of every edge"),
        (lambda: Edges({"a": "one"}, math.nan), "seconds between messages of every edge"),
        (lambda: Edges({"a": "one"}, slow={"two": 1.0}), "no group belongs to the edge 'two'; known edges: one"),
        (lambda: Edges({"a": "one"}, outages={"one": [(5.0, 1.0)]}), "an outage of one"),
        (lambda: Edges({"a": "one"}, outages={"one": [3.0]}), "an outage of one"),
        (lambda: run(Edges({"other": "one"})), "'west-fast' is missing"),
    ],
)
def test_mistakes_are_refused(wrong, sentence):
    with pytest.raises(FedpaceError, match=sentence):
        wrong()
