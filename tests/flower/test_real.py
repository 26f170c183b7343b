"""Flower for real, on loopback: Ray's virtual clients, SuperNodes that are killed, a server that comes back.

`make test-flower` runs these; they take minutes. Nothing here asserts a duration.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from fedpace.core.coordinator import Coordinator
from fedpace.records.run import read_run

pytestmark = [pytest.mark.flower, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower_digits"
PATIENCE = 600
"""Seconds after which a federation that shows no progress is given up."""


def example(name):
    spec = importlib.util.spec_from_file_location(f"flower_digits_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


local = example("local")


@pytest.fixture
def federation(tmp_path):
    with local.Federation(tmp_path) as federation:
        yield federation


def diary(folder):
    """The rounds that were recorded, without the initial model."""
    return read_run(folder).rounds[1:] if (folder / "run.json").exists() else ()


def accuracies(output):
    return [float(value) for value in re.findall(r"^DIGITS round \d+ clock \S+ accuracy (\S+)", output, re.M)]


def wait_for(condition, federation, log="run"):
    """Wait until something has happened, not for a time."""
    for _ in range(PATIENCE):
        if condition():
            return
        time.sleep(1)
    pytest.fail(f"no progress in {PATIENCE} s:\n{federation.output(log)[-5000:]}")


def saved(folder):
    """The coordinator that a server left: the current one, whatever a kill left beside it."""
    return Coordinator.restore(folder / json.loads((folder / "paced.json").read_text())["session"])


def column(folder, name):
    coordinator = saved(folder)
    return dict(zip(coordinator.clients, coordinator.ledger.columns[name].tolist(), strict=True))


def test_simulation_with_twenty_virtual_clients(federation, tmp_path):
    federation.superlink(simulation=20)
    state = tmp_path / "state"
    output = federation.run(
        selector="delayhet-submodular", num_server_rounds=6, target=1.0, warmup="lazy", warmup_quota=8, state=str(state)
    )
    rounds = diary(state)
    assert len(rounds) == 6, output[-5000:]
    assert not any(entry.failed for entry in rounds)
    met = {name for entry in rounds for name in (*entry.clients, *entry.warmed)}
    assert met == {f"partition-{i}" for i in range(20)}
    assert rounds[-1].status == "exact"  # everybody is known, and the scheme itself chooses
    assert max(accuracies(output)) >= 0.7


def test_four_supernodes_reach_the_accuracy(federation, tmp_path):
    """Digits over four real SuperNodes: 0.90 within ten rounds."""
    federation.superlink()
    for partition in range(4):
        federation.supernode(partition, 4)
    state = tmp_path / "state"
    output = federation.run(
        selector="delayhet-sampling", k=4, num_server_rounds=10, target=0.9, partitions=4, state=str(state), delays=""
    )
    assert "DIGITS target 0.9 reached" in output, output[-5000:]
    assert all(seconds > 0 for seconds in column(state, "delay").values())


def test_a_killed_node_a_raising_client_and_a_late_one(federation, tmp_path):
    federation.superlink()
    nodes = {partition: federation.supernode(partition, 5) for partition in range(4)}
    state = tmp_path / "state"
    # Partition 1 raises in every round; 2 is killed in mid-round; 4 joins later.
    run = federation.launch(
        selector="random", k=4, num_server_rounds=6, target=1.0, partitions=5, state=str(state), raises=1, sleep=6.0
    )
    wait_for(lambda: run.poll() is not None or len(diary(state)) >= 1, federation)
    wait_for(
        lambda: run.poll() is not None or federation.output("run").count(" clients train: ") > len(diary(state)),
        federation,
    )
    local.stop(nodes.pop(2), hard=True)
    nodes[4] = federation.supernode(4, 5)
    run.wait(2 * PATIENCE)
    rounds = diary(state)
    assert len(rounds) == 6, federation.output("run")[-5000:]
    failures, finished = column(state, "failures"), column(state, "participations")
    assert failures["partition-1"] >= 1
    assert finished["partition-1"] == 0
    assert failures["partition-2"] >= 1
    assert failures["partition-0"] == failures["partition-3"] == 0
    assert finished["partition-4"] >= 1
    killed = next(position for position, entry in enumerate(rounds) if "partition-2" in entry.failed)
    assert not any("partition-2" in entry.clients for entry in rounds[killed + 1 :])
    assert finished["partition-0"] >= 1
    assert finished["partition-3"] >= 1
    assert accuracies(federation.output("run"))[-1] > accuracies(federation.output("run"))[0]


def test_a_killed_server_resumes_with_its_ledger(federation, tmp_path):
    federation.superlink(simulation=8)
    state = tmp_path / "state"
    config = {
        "selector": "delayhet-sampling",
        "k": 4,
        "num_server_rounds": 7,
        "target": 1.0,
        "state": str(state),
        "sleep": 1.0,
        "warmup_wait": 1.0,
    }
    first = federation.launch("first", **config)
    wait_for(lambda: first.poll() is not None or len(diary(state)) >= 3, federation, "first")
    local.stop(federation.last_superlink, hard=True)
    before, last = diary(state), saved(state).step
    known = column(state, "participations")
    assert sum(known.values()) > 0
    federation.superlink(simulation=8)
    output = federation.run("second", **config)
    after = diary(state)
    assert after[: len(before)] == before
    assert [entry.number for entry in after][-1] == 7, output[-5000:]
    assert f"going on with round {last + 1}" in output  # it may be saved, and its line not yet written
    assert after[len(before)].clock > before[-1].clock
    total = column(state, "participations")
    assert set(total) == set(known)  # the same names behind new node ids
    assert all(total[name] >= known[name] for name in known)
    assert sum(total.values()) >= sum(len(entry.clients) - len(entry.failed) for entry in after)


# -- without rounds ------------------------------------------------------------------------------------------


def fedpace_on(state, command, *options):
    """Run a command of fedpace's on a server's folder."""
    script = [str(local.BIN / "fedpace"), command, str(state), *options]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def counted_once(rounds, started):
    """Every task ended once: no client has more answers in the steps than it was given tasks."""
    answers = Counter(name for entry in rounds for name in entry.clients)
    return all(answers[name] <= started.get(name, 0) for name in answers)


def test_without_rounds_a_killed_node_a_raising_client_and_a_late_one(federation, tmp_path):
    """Partition 1 raises in every task; 2 is killed while it works; 4 joins later: until all that is seen."""
    federation.superlink()
    nodes = {partition: federation.supernode(partition, 5) for partition in range(4)}
    state = tmp_path / "state"
    config = {"selector": "fedbuff", "k": 4, "partitions": 5, "delays": "", "sleep": 2.0, "raises": 1}
    run = federation.launch(num_server_rounds=100_000, target=1.01, state=str(state), **config)
    wait_for(lambda: run.poll() is not None or len(diary(state)) >= 2, federation)
    # Everybody is at work all the time: whenever it is killed, it is killed at work.
    local.stop(nodes.pop(2), hard=True)
    nodes[4] = federation.supernode(4, 5)

    def seen():
        rounds = diary(state)
        failed = {name for entry in rounds for name in entry.failed}
        answered = {name for entry in rounds[2:] for name in entry.clients if name not in entry.failed}
        return failed >= {"partition-1", "partition-2"} and answered >= {"partition-0", "partition-3", "partition-4"}

    wait_for(lambda: run.poll() is not None or seen(), federation)
    looked = fedpace_on(state, "watch", "--once")
    assert "fedbuff" in looked.stdout, looked.stderr
    local.stop(federation.last_superlink, hard=True)
    assert seen(), federation.output("run")[-5000:]
    rounds = diary(state)
    assert [entry.number for entry in rounds] == list(range(1, len(rounds) + 1))
    failures, finished, started = (column(state, name) for name in ("failures", "participations", "started"))
    assert finished["partition-1"] == 0
    assert failures["partition-0"] == failures["partition-3"] == failures["partition-4"] == 0
    assert counted_once(rounds, started)
    assert max(entry.metric for entry in rounds if entry.metric is not None) > rounds[0].metric
    assert "fedbuff" in fedpace_on(state, "report").stdout


def test_without_rounds_a_killed_server_goes_on(federation, tmp_path):
    """Killed with nodes at work, which go on: what they answer to it is not counted, and nothing saved is lost."""
    federation.superlink()
    for partition in range(3):
        federation.supernode(partition, 3)
    state = tmp_path / "state"
    config = {"selector": "pace-async", "target": 1.01, "state": str(state), "delays": "", "partitions": 3}
    first = federation.launch("first", num_server_rounds=100_000, sleep=2.0, **config)
    wait_for(lambda: first.poll() is not None or len(diary(state)) >= 3, federation, "first")
    servers = federation.running("flwr-serverapp")
    assert servers, federation.output("first")[-5000:]
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not federation.running("flwr-serverapp"), federation, "first")
    before, known, last = diary(state), column(state, "participations"), saved(state)
    assert last.tasks, "somebody is always at work"
    output = federation.run("second", num_server_rounds=last.step + 3, sleep=0.0, **config)
    after = diary(state)
    assert after[: len(before)] == before
    assert [entry.number for entry in after] == list(range(1, last.step + 4)), output[-5000:]
    assert f"going on with step {last.step + 1}" in output
    total, started = column(state, "participations"), column(state, "started")
    assert set(total) >= set(known)  # the same names behind new node ids
    assert all(total[name] >= known[name] for name in known)
    assert counted_once(after, started)
    assert sum(total.values()) == sum(len(entry.clients) - len(entry.failed) for entry in after)
