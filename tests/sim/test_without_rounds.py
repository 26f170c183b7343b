"""Policies without rounds in the simulator: stale answers, several versions in flight, checkpoints."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from buffered import Buffered, quadratic_run

from fedpace import make_selector
from fedpace.delays.lognormal import LognormalDelays
from fedpace.sim.checkpoint import Checkpoints

CLIENTS = 8


def simulation(policy, **options):
    return quadratic_run(policy, LognormalDelays(), clients=CLIENTS, **options)


def test_waiting_for_everybody_is_fedavg():
    """The check that every implementation must pass: buffer = in flight = the cohort, nothing stale."""
    buffered = list(islice(simulation(Buffered(buffer=CLIENTS, eager=False)).rounds(), 5))
    averaged = list(islice(simulation(make_selector("random", k=CLIENTS)).rounds(), 5))
    for one, other in zip(buffered, averaged, strict=True):
        assert one.metric == pytest.approx(other.metric, rel=1e-5)
        assert one.clock == pytest.approx(other.clock)
        assert one.clients == other.clients


def test_clients_answer_at_their_own_times_and_from_their_own_versions():
    one = simulation(Buffered(stale=0.0))
    drawn = [one.time.delays.draw(turn) for turn in range(1, 40)]
    rounds = list(islice(one.rounds(), 12))
    times = [sorted((sum(drawn[job][c] for job in range(count + 1)), c) for count in range(39)) for c in range(CLIENTS)]
    events = sorted(event for own in times for event in own)
    for number, current in enumerate(rounds[1:]):
        buffer = events[3 * number : 3 * number + 3]
        assert current.clock == pytest.approx(buffer[-1][0])
        assert sorted(current.clients) == sorted(client for _, client in buffer)
    assert rounds[-1].metric < 0.5 * rounds[0].metric
    assert len(one.models) > 1, "versions that clients in flight were given are kept"
    assert set(one.models) == {*one.coordinator.task_table.versions, one.coordinator.step}


@pytest.mark.parametrize("cut", [1, 5])
def test_it_resumes_bit_for_bit_with_tasks_in_flight(tmp_path, cut):
    whole = simulation(Buffered())
    expected = list(islice(whole.rounds(), 12))
    first = simulation(Buffered())
    list(islice(first.rounds(), cut + 1))
    Checkpoints(tmp_path).save(first, wall_seconds=0.0)
    second = simulation(Buffered())
    Checkpoints(tmp_path).restore(second)
    assert list(islice(second.rounds(), 11 - cut)) == expected[cut + 1 :]
    assert torch.equal(second.parameters, whole.parameters)
