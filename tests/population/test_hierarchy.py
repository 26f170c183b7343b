from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedpace
from fedpace import Coordinator, FedpaceError, Outcome, Settings, make_selector, make_server
from fedpace.core.tasks import Task
from fedpace.population.hierarchy import Edge, Level

DEVICES = {"europe": 5, "asia": 3, "africa": 8}
SIZE = 6


def data(region: str, device: int):
    rng = fedpace.stream(0, "hierarchy", region, device)
    return rng.normal(size=(12, SIZE)), rng.normal(size=12)


def trained(model, region, device):
    inputs, targets = data(region, device)
    for _ in range(3):
        model = model - 0.05 * inputs.T @ (inputs @ model - targets) / len(targets)
    return model


def everybody(seed=0, **settings):
    return Coordinator(make_selector("random", k=0), Settings(seed=seed, trust=False, **settings))


def flat(rule, rounds):
    coordinator = everybody()
    names = [(region, device) for region, count in DEVICES.items() for device in range(count)]
    coordinator.join([f"{region}/{device}" for region, device in names])
    level = Level(coordinator, make_server(rule), np.zeros(SIZE))
    now = 0.0
    while coordinator.step < rounds:
        for task in level.due(now).tasks:
            region, device = task.client.split("/")
            now += 1
            level.receive(
                task.id, Outcome(task.client, seconds=1.0), trained(level.sent(task), region, int(device)), now
            )
    return level.model


def tree(rule, rounds, *, dead=None):
    root_coordinator = everybody(shares="samples")
    root_coordinator.join(list(DEVICES), samples=list(DEVICES.values()))
    root = Level(root_coordinator, make_server(rule), np.zeros(SIZE))
    edges = {}
    for region, count in DEVICES.items():
        coordinator = everybody()
        coordinator.join(list(range(count)))
        edges[region] = Edge(region, coordinator, np.zeros(SIZE))
    now = 0.0
    while root_coordinator.step < rounds:
        now += 1
        for task in root.due(now).tasks:
            if task.client == dead:
                root.lost(task.id, now)
                continue
            edge = edges[task.client]
            assert edge.begin(task, root.sent(task), now)
            while edge.result is None:
                now += 1
                for part in edge.due(now).tasks:
                    answer = trained(edge.sent(part), task.client, part.client)
                    assert edge.receive(part.id, Outcome(part.client, seconds=1.0), answer, now)
            assert edge.result.devices == DEVICES[task.client]
            assert root.receive(task.id, edge.result.outcome(), edge.result.model, now)
    return root.model


@pytest.mark.parametrize("rule", ["average", "fedavgm", "fedadam"])
def test_two_levels_compute_the_model_of_one(rule):
    assert tree(rule, 5) == pytest.approx(flat(rule, 5), rel=1e-12, abs=1e-14)


def test_a_dead_edge_is_a_lost_client():
    lively, without = tree("average", 3), tree("average", 3, dead="africa")
    assert np.isfinite(without).all()
    assert not np.allclose(lively, without)


def test_a_model_of_another_length_is_refused():
    coordinator = everybody()
    coordinator.join(["a"])
    level = Level(coordinator, make_server("average"), np.zeros(SIZE))
    (task,) = level.due(0.0).tasks
    with pytest.raises(FedpaceError, match="a model of 6 numbers, but 2 came"):
        level.receive(task.id, Outcome("a", seconds=1.0), np.zeros(2), 1.0)
    with pytest.raises(FedpaceError, match="must be finite"):
        level.receive(task.id, Outcome("a", seconds=1.0), np.full(SIZE, np.nan), 1.0)


def test_an_edge_needs_rounds_and_one_task_at_a_time():
    with pytest.raises(FedpaceError, match="has no rounds"):
        Edge("europe", Coordinator(make_selector("fedbuff")), np.zeros(SIZE))
    coordinator = everybody()
    coordinator.join([0])
    edge = Edge("europe", coordinator, np.zeros(SIZE))
    root = everybody()
    root.join(["europe", "other"])
    one, two = Level(root, make_server("average"), np.zeros(SIZE)).due(0.0).tasks
    assert edge.begin(one, np.zeros(SIZE), 0.0)
    assert not edge.begin(one, np.zeros(SIZE), 0.0)
    with pytest.raises(FedpaceError, match="must wait for its answer"):
        edge.begin(two, np.zeros(SIZE), 0.0)


def test_the_root_goes_on_after_a_restart(tmp_path):
    coordinator = everybody()
    coordinator.join(["a", "b"])
    level = Level(coordinator, make_server("fedavgm"), np.zeros(SIZE), tmp_path)
    for now in range(1, 4):
        for task in level.due(float(now)).tasks:
            level.receive(task.id, Outcome(task.client, seconds=1.0), level.sent(task) + 1.0, float(now))
    level.commit()
    again = Level.restore(tmp_path, make_server("fedavgm"))
    for each in (level, again):
        for now in range(4, 8):
            for task in each.due(float(now)).tasks:
                each.receive(task.id, Outcome(task.client, seconds=1.0), each.sent(task) + 1.0, float(now))
    assert again.coordinator.step == level.coordinator.step > 2
    assert np.array_equal(again.model, level.model)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("writes", range(7))
def test_a_crash_in_the_middle_of_a_commit_leaves_the_last_one(tmp_path, monkeypatch, writes):
    """The round is over, and the edge dies before any of the files of its commit is written."""
    coordinator = everybody()
    coordinator.join([0, 1])
    edge = Edge("region", coordinator, np.zeros(SIZE), tmp_path)
    edge.begin(Task(0, "region", "train", 0, 0.0), np.ones(SIZE), 0.0)
    for task in edge.due(0.0).tasks:
        assert edge.receive(task.id, Outcome(task.client, seconds=1.0), np.full(SIZE, float(task.client)), 1.0)
    edge.commit()
    edge.due(1.0)
    left, rename = [writes], Path.replace

    def crash(path, target):
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", crash)
    crashed = False
    try:
        edge.commit()
    except Crash:
        crashed = True
    monkeypatch.undo()
    again = Edge.restore(tmp_path)
    assert (again.result is None) == crashed
    again.due(1.0)
    assert again.result.devices == 2
    assert again.result.model == pytest.approx(np.full(SIZE, 0.5))
    again.commit()
    assert Edge.restore(tmp_path).result.devices == 2


EDGE_PROCESS = """
import json, socket, sys, time
from pathlib import Path
import numpy as np
from fedpace import Coordinator, Outcome, Settings, make_selector
from fedpace.core.tasks import Task
from fedpace.population.hierarchy import Edge

folder, port, devices, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if (folder / "current.json").exists():
    edge = Edge.restore(folder)
else:
    coordinator = Coordinator(make_selector("random", k=0), Settings(trust=False))
    coordinator.join(list(range(devices)))
    edge = Edge("region", coordinator, np.zeros(size), folder)
    edge.begin(Task(0, "region", "train", 0, 0.0), np.ones(size), 0.0)
    edge.due(0.0)
    edge.commit()
open_tasks = {task.client: task.id for task in edge.coordinator.tasks}
listener = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
while edge.result is None:
    link, _ = listener.accept()
    with link, link.makefile("rw") as lines:
        said = json.loads(lines.readline())
        counted = False
        if said["device"] in open_tasks:
            task = open_tasks.pop(said["device"])
            outcome = Outcome(said["device"], seconds=1.0)
            counted = edge.receive(task, outcome, np.array(said["model"]), edge.coordinator.now)
        edge.commit()
        print(json.dumps({"counted": counted}), file=lines, flush=True)
    edge.due(edge.coordinator.now)
edge.commit()
print(json.dumps({"model": edge.result.model.tolist(), "devices": edge.result.devices}), flush=True)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start_edge(folder, devices):
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", EDGE_PROCESS, str(folder), str(port), str(devices), str(SIZE)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(fedpace.__file__).parents[1])},
    )
    assert process.stdout.readline() == "ready\n"
    return process, port


def tell(port, device, model):
    """Send a device's model over loopback; return what the edge acknowledged."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link, link.makefile("rw") as lines:
        print(json.dumps({"device": device, "model": model.tolist()}), file=lines, flush=True)
        return json.loads(lines.readline())["counted"]


def test_an_edge_that_is_killed_loses_no_counted_update(tmp_path):
    """A real process on loopback, killed with SIGKILL after three answers; devices that were told do not send again."""
    devices = 6
    models = [np.arange(SIZE) + 10.0 * device for device in range(devices)]
    first, port = start_edge(tmp_path, devices)
    assert all(tell(port, device, models[device]) for device in range(3))
    os.kill(first.pid, signal.SIGKILL)
    first.wait(60)
    first.stdout.close()
    second, port = start_edge(tmp_path, devices)
    assert not tell(port, 1, models[1] + 1e6)  # an acknowledgement that got lost: sent again, not counted again
    assert all(tell(port, device, models[device]) for device in range(3, devices))
    found = json.loads(second.stdout.readline())
    assert second.wait(60) == 0
    second.stdout.close()
    assert found["devices"] == devices
    assert found["model"] == pytest.approx(np.mean(models, axis=0).tolist())
