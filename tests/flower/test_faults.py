"""Faults of a real federation on loopback: nodes and servers that are killed at work, in rounds and without.

Clients are held at work by files (`faults_app/`), so that "while it works" is a fact and not a guess, and every
training leaves a file, so that what was counted can be held against what was done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from federations import Federation, column, diary, let_go, saved, start_quickly, stop, wait_for

from fedpace.records.run import read_info

pytestmark = [pytest.mark.flower, pytest.mark.slow]

APP = Path(__file__).resolve().parent / "faults_app"


class Gate:
    """The folder by which a test and the nodes talk."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def write(self, *names):
        for name in names:
            (self.folder / name).touch()

    def clear(self, *names):
        for name in names:
            (self.folder / name).unlink()

    def tasks(self, kind):
        """Tasks that were held, or done: partition and id."""
        return {path.name.removeprefix(f"{kind}-") for path in self.folder.glob(f"{kind}-*-*")}

    def of(self, kind):
        """Client -> how many of its tasks were held, or done."""
        return by_client(self.tasks(kind))


def by_client(tasks):
    return Counter(f"partition-{task.split('-')[0]}" for task in tasks)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


@pytest.fixture
def federation(tmp_path, gate):
    with Federation(tmp_path / "federation", app=APP) as federation:
        start_quickly(federation)
        federation.superlink()
        yield federation


def answers(rounds):
    """Who answered how often, by the diary."""
    return Counter(name for entry in rounds for name in entry.clients if name not in entry.failed)


def check_counts(state, gate, given_up=()):
    """Every step is there once, and no answer is in two of them: hold what is saved against what nodes did.

    Args:
        state: the server's folder.
        gate: what nodes did.
        given_up: tasks whose server had died before they were done.
    """
    rounds, finished, done = diary(state), column(state, "participations"), gate.of("done")
    assert [entry.number for entry in rounds] == list(range(1, len(rounds) + 1))
    counted, lost = answers(rounds), by_client(given_up)
    assert counted == {name: count for name, count in finished.items() if count}
    assert all(counted[name] <= done[name] - lost[name] for name in counted)


def fedpace_on(state, *command):
    """Run a command of fedpace's on a server's folder."""
    script = [sys.executable, "-m", "fedpace", command[0], str(state), *command[1:]]
    return subprocess.run(script, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("scheme", ["random", "fedbuff", "pace-async"])
def test_a_node_killed_at_work_a_client_that_raises_and_one_that_joins(federation, gate, tmp_path, scheme):
    """Partition 1 raises in every task; 2 is killed while it works, and comes back; 4 joins later."""
    nodes = {partition: federation.supernode(partition, 5) for partition in range(4)}
    state = tmp_path / "state"
    run = federation.launch(selector=scheme, state=str(state), gate=str(gate.folder), raises=1)
    wait_for(lambda: len(diary(state)) >= 2, federation, run)
    gate.write("hold-2")
    wait_for(lambda: gate.of("held"), federation, run)
    before = len(diary(state))
    stop(nodes[2], hard=True)
    gate.clear("hold-2")
    nodes[4] = federation.supernode(4, 5)

    def failed():
        return {name for entry in diary(state) for name in entry.failed}

    wait_for(lambda: failed() >= {"partition-1", "partition-2"}, federation, run)
    lost = next(entry.number for entry in diary(state) if "partition-2" in entry.failed)
    assert lost > before
    since = len(diary(state))
    nodes[2] = federation.supernode(2, 5)
    everybody = {f"partition-{number}" for number in (0, 2, 3, 4)}
    wait_for(lambda: set(answers(diary(state)[since:])) >= everybody, federation, run)
    for command in (["watch", "--once"], ["report"]):
        looked = fedpace_on(state, *command)  # while the server runs
        assert scheme in looked.stdout, looked.stderr
    gate.write("stop")
    wait_for((gate.folder / "stopped").exists, federation, run)
    failures, finished = column(state, "failures"), column(state, "participations")
    assert set(finished) == {f"partition-{number}" for number in range(5)}, "who came back is no stranger"
    assert failures["partition-1"] >= 1
    assert finished["partition-1"] == 0
    assert failures["partition-2"] == 1
    assert failures["partition-0"] == failures["partition-3"] == failures["partition-4"] == 0
    check_counts(state, gate)
    rounds = diary(state)
    assert rounds[-2].metric > rounds[0].metric  # the last one was being evaluated when it was stopped
    assert scheme in fedpace_on(state, "report").stdout


@pytest.mark.parametrize(
    ("scheme", "machine"), [("fedbuff", False), ("pace-async", False), ("pace-async", True)], ids=str
)
def test_a_server_killed_with_nodes_at_work_goes_on(federation, gate, tmp_path, scheme, machine):
    """What they answer to the dead server is not counted, and nothing saved is lost.

    Where the whole `machine` dies, the SuperLink with it, Flower's SuperNodes have to be started anew too.
    """
    nodes = [federation.supernode(partition, 3) for partition in range(3)]
    state, held = tmp_path / "state", [f"hold-{partition}" for partition in range(3)]
    config = {"selector": scheme, "state": str(state), "gate": str(gate.folder)}
    first = federation.launch("first", **config)
    wait_for(lambda: len(diary(state)) >= 3, federation, first, "first")
    gate.write(*held)
    wait_for(lambda: gate.tasks("held"), federation, first, "first")
    servers = federation.running("flwr-serverapp")
    assert servers, federation.output("first")[-5000:]
    if machine:
        stop(federation.last_superlink, hard=True)
    for pid in servers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: let_go(state), federation, first, "first")
    before, known, last = diary(state), column(state, "participations"), saved(state).step
    awaited = set() if machine else gate.tasks("held")
    if machine:
        for node in nodes:
            stop(node, hard=True)
        federation.superlink()
        for partition in range(3):
            federation.supernode(partition, 3)
    second = federation.launch("second", num_server_rounds=last + 4, **config)
    wait_for((gate.folder / f"began-{last}").exists, federation, second, "second")
    gate.clear(*held)
    gate.write("go")
    wait_for(lambda: gate.tasks("done") >= awaited, federation, second, "second")
    wait_for(lambda: read_info(state).ended, federation, second, "second")
    after = diary(state)
    assert after[: len(before)] == before
    assert len(after) == last + 4, federation.output("second")[-5000:]
    total = column(state, "participations")
    assert set(total) >= set(known)  # the same names behind new node ids
    assert all(total[name] >= known[name] for name in known)
    assert all(count == 0 for count in column(state, "failures").values()), "nobody is blamed"
    check_counts(state, gate, awaited)
