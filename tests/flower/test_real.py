"""Flower for real, on loopback: the example on Ray's virtual clients and on SuperNodes, a server that comes back.

`make test-flower` runs these, and test_faults.py; they take minutes. Nothing here asserts a duration.
"""

from __future__ import annotations

import pytest
from federations import Federation, column, diary, finish, let_go, run_until, saved, start_quickly, stop, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.slow]


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path) as federation:
        yield federation


def test_simulation_with_twenty_virtual_clients(federation, tmp_path):
    federation.superlink(simulation=20)
    state = tmp_path / "state"
    config = {"selector": "delayhet-submodular", "warmup": "lazy", "warmup_quota": 8, "state": str(state)}
    rounds = finish(federation, state, num_server_rounds=6, target=2.0, **config)
    assert len(rounds) == 6
    assert not any(entry.failed for entry in rounds)
    met = {name for entry in rounds for name in (*entry.clients, *entry.warmed)}
    assert met == {f"partition-{i}" for i in range(20)}
    assert rounds[-1].status == "exact"  # everybody is known, and the scheme itself chooses
    assert max(entry.metric for entry in rounds) >= 0.7


def test_four_supernodes_reach_the_accuracy(federation, tmp_path):
    """Digits over four real SuperNodes: 0.90 within ten rounds."""
    start_quickly(federation, "torch")
    federation.superlink()
    for partition in range(4):
        federation.supernode(partition, 4)
    state = tmp_path / "state"
    config = {"selector": "delayhet-sampling", "k": 4, "partitions": 4, "state": str(state), "delays": ""}
    rounds = finish(federation, state, num_server_rounds=10, target=2.0, **config)
    assert max(entry.metric for entry in rounds) >= 0.9
    assert all(seconds > 0 for seconds in column(state, "delay").values())


def test_a_killed_server_resumes_with_its_ledger(federation, tmp_path):
    federation.superlink(simulation=8)
    state = tmp_path / "state"
    config = {
        "selector": "delayhet-sampling",
        "k": 4,
        "num_server_rounds": 7,
        "target": 2.0,
        "state": str(state),
        "sleep": 1.0,
        "warmup_wait": 1.0,
    }
    first = run_until(lambda: len(diary(state)) >= 3, federation, "first", **config)
    stop(federation.last_superlink, hard=True)
    wait_for(lambda: let_go(state), federation, first, "first")
    before, last = diary(state), saved(state).step
    known = column(state, "participations")
    assert sum(known.values()) > 0
    federation.superlink(simulation=8)
    after = finish(federation, state, "second", **config)
    assert after[: len(before)] == before
    assert last in (len(before), len(before) + 1)  # it may be saved, and its line not yet written
    assert [entry.number for entry in after] == list(range(1, 8))
    assert after[len(before)].clock > before[-1].clock
    total = column(state, "participations")
    assert set(total) == set(known)  # the same names behind new node ids
    assert all(total[name] >= known[name] for name in known)
    assert sum(total.values()) >= sum(len(entry.clients) - len(entry.failed) for entry in after)
