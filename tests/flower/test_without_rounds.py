"""A policy without rounds on Flower: clients begin anew as soon as they answer, and stale answers count less."""

from __future__ import annotations

import heapq
import inspect
import logging
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedpace import Need
from fedpace._base.errors import InputError
from fedpace.core.tasks import Apply, Move, Wait
from fedpace.core.types import Traits
from fedpace.flower import PacedServer, PacedStrategy, federation, report_mod
from fedpace.records.run import read_run

TARGETS = [1.0, 4.0, -2.0, 7.0]
SECONDS = [1.0, 1.7, 2.9, 11.3]
BUFFER, STEPS = 2, 9


@dataclass(frozen=True)
class Buffered(Traits):
    """FedBuff (Nguyen et al. 2022): everybody is busy, and every two answers make a step."""

    name: ClassVar[str] = "buffered"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    def init(self):
        return None

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        hand, apply, start = view.in_hand, None, view.candidates
        if len(hand) >= BUFFER:
            apply = Apply(hand.ids, (1.0 + view.step - hand.step) ** -0.5 / BUFFER, "delta")
        wait = Wait(answers=1 if apply else len(hand) + 1)
        return Move(start, np.zeros(start.size), apply=apply, wait=wait, mode="delta"), None

    def observe(self, state, report):
        return None


def by_hand():
    """The same, of one number."""
    model, step, hand, models, lags = 0.0, 0, [], [], []
    working = [(seconds, client, 0.0, 0) for client, seconds in enumerate(SECONDS)]
    heapq.heapify(working)
    while step < STEPS:
        now, client, base, version = heapq.heappop(working)
        hand.append((0.3 * (TARGETS[client] - base), step - version))
        if len(hand) == BUFFER:
            model += sum((1.0 + lag) ** -0.5 / BUFFER * move for move, lag in hand)
            step, lags, hand = step + 1, [*lags, *(lag for _, lag in hand)], []
            models.append(model)
        heapq.heappush(working, (now + SECONDS[client], client, model, step))
    return models, lags


def test_fedbuff_by_hand(flower):
    grid = flower.grid()
    for client, target in enumerate(TARGETS):
        mod = report_mod(delay=lambda message, context, measured: SECONDS[context.node_config["partition-id"]])
        grid.add(10 + client, flower.app([mod], target=target), **{"partition-id": client})
    found = []
    PacedServer(Buffered(), clock="reported").start(
        grid,
        flower.arrays([0.0]),
        STEPS,
        evaluate_fn=lambda number, arrays: found.append(float(arrays["w0"].numpy()[0])),
    )
    expected, lags = by_hand()
    assert max(lags) > 1, "some answers are stale"
    np.testing.assert_allclose(found, [0.0, *expected], rtol=1e-5)


def fleet(flower, count=4, *, fail=None):
    grid = flower.grid()
    for client, target in enumerate(TARGETS[:count]):
        mod = report_mod(
            delay=lambda message, context, measured: SECONDS[context.node_config["partition-id"]],
            features=lambda message, context: (flower.rows(context.node_config["partition-id"]), np.eye(12)[:, :2]),
        )
        app = flower.app([mod], target=target, fail=fail if client == 1 else None)
        grid.add(10 + client, app, **{"partition-id": client})
    return grid


def values(server, grid, record, steps, **options):
    found = []
    server.start(grid, record, steps, evaluate_fn=lambda n, a: found.append((n, float(a["w0"].numpy()[0]))), **options)
    return dict(found)


@pytest.mark.parametrize("scheme", ["fedbuff", "pace-async", "refl"])
def test_a_restarted_server_goes_on_with_the_model_and_what_its_step_remembers(flower, tmp_path, scheme):
    """Tasks that were out are given up: nobody is blamed, no answer is counted twice, no saved step is made again."""
    record, options = flower.arrays([0.0]), {"clock": "reported", "state": tmp_path}
    options |= {"fedbuff": {"buffer": 2, "momentum": 0.5}, "refl": {"k": 2}}.get(scheme, {})
    grid = fleet(flower)
    first = PacedServer(scheme, **options)
    before = values(first, grid, record, 5)
    sent = len(grid.trained())
    assert first.coordinator.task_table.flying > 0
    second = PacedServer(scheme, **options)
    grid = fleet(flower)
    after = values(second, grid, record, 9)
    assert min(after) == 6, "what was made is not made again"
    assert second.coordinator.step == 9
    run = read_run(tmp_path)
    assert [entry.number for entry in run.rounds] == list(range(10))
    assert [entry.metric for entry in run.rounds[:6]] == [None] * 6
    columns = second.coordinator.ledger.columns
    assert columns["failures"].sum() == 0
    answers = sum(len(entry.clients) for entry in run.rounds)
    assert columns["participations"].sum() == answers
    # What was sent is in a step, in hand, at work, or was given up with the first server.
    held, flying = second.coordinator.task_table.held, second.coordinator.task_table.flying
    lost = sent + len(grid.trained()) - answers - held - flying
    assert lost == first.coordinator.task_table.flying + first.coordinator.task_table.held
    assert np.isfinite(list(before.values()) + list(after.values())).all()


def test_a_node_that_raises_and_one_that_joins(flower):
    def fail(message, context):
        raise RuntimeError("this client was told to fail")

    grid, late = fleet(flower, 3, fail=fail), fleet(flower, 4).nodes[13]
    server = PacedServer("fedbuff", buffer=2, clock="reported", nodes_seconds=0)

    def joining(number, arrays):
        if number == 3:
            grid.nodes[13] = late

    server.start(grid, flower.arrays([0.0]), 60, evaluate_fn=joining)
    known = dict(zip(server.coordinator.clients, server.coordinator.ledger.columns["participations"], strict=True))
    failed = dict(zip(server.coordinator.clients, server.coordinator.ledger.columns["failures"], strict=True))
    assert known["partition-1"] == 0
    assert failed["partition-1"] >= 1
    assert known["partition-3"] >= 1, "who joins is given a task while the others work"


def test_a_node_that_died_is_asked_nothing_more(flower, monkeypatch):
    """Its task fails and the SuperLink no longer lists it: who is there is looked up before anybody is given a task."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    grid = flower.grid()
    for client, target in enumerate(TARGETS):
        grid.add(10 + client, flower.app([report_mod()], target=target), **{"partition-id": client})
    server, pull, looks = PacedServer("fedbuff", buffer=2, nodes_seconds=0), grid.pull_messages, []

    def dying(identifiers):
        looks.append(identifiers)
        came = pull(identifiers) if len(looks) % 2 else []  # every other look is in vain, and the list grows old
        for reply in came:
            if reply.has_error():
                grid.nodes.pop(12, None)
        return came

    grid.pull_messages = dying
    server.start(grid, flower.arrays([0.0]), 8, evaluate_fn=lambda n, a: grid.dead.add(12) if n == 3 else None)
    failures = dict(zip(server.coordinator.clients, server.coordinator.ledger.columns["failures"], strict=True))
    assert failures == {"partition-0": 0, "partition-1": 0, "partition-2": 1, "partition-3": 0}


def test_it_ends_by_the_clock_and_is_evaluated_as_often_as_was_said(flower):
    server = PacedServer("fedbuff", buffer=1, clock="reported")
    seen = values(server, fleet(flower), flower.arrays([0.0]), 1000, seconds=30.0, evaluate_every=10.0)
    assert 30.0 <= server.coordinator.now < 30.0 + max(SECONDS)
    assert 3 <= len(seen) <= 5
    assert max(seen) == server.coordinator.step, "the last step is always evaluated"


@pytest.mark.parametrize("scheme", ["fedbuff", "pace-async"])
def test_only_eligible_clients_are_given_tasks(flower, scheme):
    """A function is asked anew with every step: who is allowed later is given tasks from then on."""
    names, grid = {"partition-0", "partition-2"}, fleet(flower)
    server = PacedServer(scheme, clock="reported", eligible=lambda name: name in names, nodes_seconds=0)
    sent = []

    def allow(number, arrays):
        if number == 4:
            sent.extend(grid.trained())
            names.add("partition-3")

    server.start(grid, flower.arrays([0.0]), 60, evaluate_fn=allow)
    assert set(sent) == {10, 12}
    assert set(grid.trained()) == {10, 12, 13}
    assert set(server.coordinator.clients) == names


def test_where_nobody_is_eligible_it_waits_and_says_so(flower, monkeypatch, caplog):
    names, grid = set(), fleet(flower)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        if len(waited) == 5:
            names.add("partition-1")

    monkeypatch.setattr(time, "sleep", sleep)
    server = PacedServer("fedbuff", buffer=1, clock="reported", eligible=lambda name: name in names, nodes_seconds=0)
    with caplog.at_level(logging.WARNING, "flwr"):
        server.start(grid, flower.arrays([0.0]), 2)
    assert caplog.text.count("of 4 nodes, 0 are eligible and have a name") == 1
    assert set(grid.trained()) == {11}


def test_it_is_called_as_flowers_strategies_are(flower):
    """Their arguments by place, in their order."""
    server, seen = PacedServer("fedbuff", buffer=1, clock="reported"), []
    config = flower.config({"lr": 0.1})
    result = server.start(fleet(flower), flower.arrays([0.0]), 2, 60.0, config, config, lambda n, a: seen.append(n))
    assert seen == [0, 1, 2]
    assert result.arrays is not None
    theirs, ours = (list(inspect.signature(kind.start).parameters) for kind in (FedAvg, PacedServer))
    assert ours[: len(theirs)] == theirs


def test_a_scheme_that_wants_more_clients_than_there_are_takes_all(flower):
    server = PacedServer("refl", k=10, clock="reported", nodes_seconds=0)
    values(server, fleet(flower), flower.arrays([0.0]), 4)
    assert server.coordinator.step == 4


def test_a_strategy_cannot_do_without_rounds():
    with pytest.raises(InputError, match=r"fedbuff works without rounds.*use fedpace\.flower\.PacedServer"):
        PacedStrategy(FedAvg(), "fedbuff")
    with pytest.raises(InputError, match="buffered works without rounds"):
        PacedStrategy(FedAvg(), Buffered())


def test_a_name_that_comes_late_is_heard_although_it_was_asked_for_again(flower, monkeypatch):
    """Where machines are busy, a node takes longer than it may, every time."""
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(federation.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(federation.time, "sleep", lambda seconds: None)
    grid = fleet(flower, 1)
    pull, looks = grid.pull_messages, []

    def slow(identifiers):
        looks.append(list(identifiers))
        return pull(identifiers[:1]) if len(looks) > 8 else []

    grid.pull_messages = slow
    names = federation.NodeNames(120.0, "config", {})
    found = {}
    while not found and len(looks) < 100:
        found = names.names([10], grid)
    assert found == {"partition-0": 10}
    assert max(map(len, looks)) > 1, "it was asked again, and the first answer counts"


def test_answers_in_hand_are_used_before_more_are_fetched(flower):
    """Where fetching is slow, answers come faster than steps: they must not wait, and grow old, for each fetch."""
    grid = flower.grid()
    for client, target in enumerate(TARGETS):
        grid.add(10 + client, flower.app([report_mod()], target=target), **{"partition-id": client})
    fetched, steps, pull = [], [], grid.pull_messages

    def counting(identifiers):
        came = pull(identifiers)
        fetched.append(len(came))
        return came

    server = PacedServer("fedbuff", buffer=2, nodes_seconds=0)

    def stepped(number, arrays):
        steps.append(sum(fetched))

    grid.pull_messages = counting
    server.start(grid, flower.arrays([0.0]), 8, evaluate_fn=stepped)
    named = len(TARGETS)
    came = [seen - named for seen in steps[1:]]  # all four answer at once, and two make a step
    assert came == [4, 4, 8, 8, 12, 12, 16, 16]
    assert server.coordinator.task_table.held == 0
