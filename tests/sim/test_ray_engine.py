"""The engine on a real Ray: a local one on loopback, workers that are killed, a cluster that belongs to others."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpace._base.errors import FedpaceError
from fedpace._base.rng import stream
from fedpace.data.digits import Digits
from fedpace.models.builtin import Mlp
from fedpace.sim.engines.engine import EngineOptions, Inline, WorkerLostError
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import DivergedError, Training

ray = pytest.importorskip("ray", reason="needs the extra ray")

# Ray leaves its log files to the garbage collector.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

PATIENCE = 300
"""Seconds after which something that does not come is given up."""

CLIENTS = list(range(12))


@pytest.fixture(scope="module")
def trainer():
    """Clients whose training takes long enough to be interrupted; too large a model to be stacked."""
    return TorchTrainer(Digits(clients=12).build(seed=0), Mlp(hidden=4096), Training(epochs=3, lr=0.1), seed=0)


@pytest.fixture(scope="module")
def engine(trainer):
    engine = EngineOptions("ray", workers=2).choose(trainer).build(trainer)
    yield engine
    engine.close()
    gc.collect()  # here, where Ray is forgiven for its open files
    assert not ray.is_initialized()
    assert raylets(os.getpid()) == []


def children(parent):
    """Pids and command lines of a process's children."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append((int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return found


def raylets(driver):
    return [pid for pid, command in children(driver) if "/raylet/raylet " in command]


def busy_worker(driver):
    """Wait until a worker is in the middle of a task, and return its pid."""
    for _ in range(PATIENCE * 100):
        for raylet in raylets(driver):
            for pid, command in children(raylet):
                if command.startswith("ray::") and "_work" in command:
                    return pid
        time.sleep(0.01)
    return pytest.fail("no worker began to work")


def equal(answers, expected):
    return all(
        torch.equal(one.parameters, other.parameters) and (one.loss, one.steps) == (other.loss, other.steps)
        for one, other in zip(answers, expected, strict=True)
    )


@pytest.mark.slow
def test_every_kind_of_work_comes_out_as_in_this_process(engine, trainer):
    inline, start = Inline(trainer), trainer.initial
    trained = list(engine.train(start, CLIENTS, 5))
    assert equal(trained, inline.train(start, CLIENTS, 5))
    shifts = torch.from_numpy(stream(0, "shifts").normal(size=(12, start.numel())).astype(np.float32))
    shift = shifts.__getitem__
    assert equal(engine.train(start, CLIENTS, 5, shift), inline.train(start, CLIENTS, 5, shift))
    later = trained[3].parameters
    for one, other in zip(engine.gradients(later, CLIENTS), inline.gradients(later, CLIENTS), strict=True):
        assert torch.equal(one, other)
    assert engine.local_losses(later, CLIENTS, samples=5, step=2) == inline.local_losses(
        later, CLIENTS, samples=5, step=2
    )
    for one, other in zip(engine.moments(later, CLIENTS), inline.moments(later, CLIENTS), strict=True):
        np.testing.assert_array_equal(one, other)
    assert engine.evaluate(later) == inline.evaluate(later)


@pytest.mark.slow
def test_a_worker_killed_in_mid_round_changes_nothing(engine, trainer):
    """It is looked for while answers are read: one that nobody reads lets the workers run out of work."""
    many = CLIENTS * 20
    killed = []

    def kill():
        killed.append(busy_worker(os.getpid()))
        os.kill(killed[0], signal.SIGKILL)

    answers = engine.train(trainer.initial, many, 7)
    found = [next(answers)]
    killer = threading.Thread(target=kill)
    killer.start()
    found += answers
    killer.join()
    assert killed
    once = list(Inline(trainer).train(trainer.initial, CLIENTS, 7))
    assert equal(found, once * 20)


@pytest.mark.slow
def test_a_worker_that_dies_for_good_is_an_error_with_a_name(engine, trainer):
    class Deadly:
        def cost(self, trainer):
            return 1.0

        def run(self, trainer, parameters):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerLostError, match="4 Ray workers died"):
        list(engine._run(trainer.initial, [Deadly()]))
    assert equal(engine.train(trainer.initial, [0], 1), Inline(trainer).train(trainer.initial, [0], 1)), "it goes on"


@pytest.mark.slow
def test_what_a_client_raises_is_raised_here(engine, trainer):
    with pytest.raises(DivergedError, match="client 4 diverged in round 3"):
        list(engine.train(torch.full_like(trainer.initial, torch.inf), [4], 2))


@pytest.mark.slow
def test_an_answer_that_is_not_waited_for_leaves_no_trace(engine, trainer):
    answers = engine.train(trainer.initial, CLIENTS, 1)
    next(answers)
    del answers
    assert equal(engine.train(trainer.initial, [3], 1), Inline(trainer).train(trainer.initial, [3], 1))


@pytest.mark.slow
def test_ray_listens_on_loopback_only(engine, trainer):
    engine.evaluate(trainer.initial)
    ours = {os.getpid(), *(pid for pid, _ in children(os.getpid()))}
    ours |= {pid for raylet in raylets(os.getpid()) for pid, _ in children(raylet)}
    addresses = [address for pid in ours for address in listening(pid)]
    assert addresses
    assert set(addresses) <= {"127.0.0.1", "::ffff:127.0.0.1"}


def listening(pid):
    """Addresses of the TCP sockets that a process listens on."""
    try:
        handles = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:
        return []
    inodes = {handle.removeprefix("socket:[").rstrip("]") for handle in handles}
    loopback = {"0100007F": "127.0.0.1", "0000000000000000FFFF00000100007F": "::ffff:127.0.0.1"}
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    hosts = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]
    return [loopback.get(host, host) for host in hosts]


def test_without_the_extra_the_error_says_what_to_install(trainer, monkeypatch):
    monkeypatch.delitem(sys.modules, "fedpace.sim.engines.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FedpaceError, match=r"pip install 'fedpace\[ray\]'"):
        EngineOptions("ray").choose(trainer).build(trainer)


# -- from the command line ---------------------------------------------------------------------------------

EXPERIMENT = """
name = "killed"
[data]
name = "digits"
clients = 20
[model]
name = "mlp"
hidden = 4096
[delays]
name = "lognormal"
[training]
epochs = 10
lr = 0.1
[stop]
max_rounds = 6
[[selectors]]
name = "random"
k = 8
"""


def command(folder, out, *options):
    (folder / "experiment.toml").write_text(EXPERIMENT)
    program = [sys.executable, "-m", "fedpace", "run", str(folder / "experiment.toml")]
    return [*program, "--out", str(folder / out), "--json", *options]


def rounds(folder):
    path = folder / "rounds.jsonl"
    return path.read_bytes() if path.exists() else b""


@pytest.mark.slow
def test_the_records_of_a_run_whose_workers_are_killed(tmp_path):
    """SIGKILL in three different rounds: the records are, byte for byte, those of a run in one process."""
    subprocess.run(command(tmp_path, "alone", "--engine", "processes", "--workers", "2"), check=True, timeout=PATIENCE)
    run = subprocess.Popen(command(tmp_path, "killed", "--engine", "ray", "--workers", "2"), stdout=subprocess.PIPE)
    for number in range(1, 4):
        while rounds(tmp_path / "killed").count(b"\n") < number:
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(busy_worker(run.pid), signal.SIGKILL)
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0
    assert json.loads(output)
    assert rounds(tmp_path / "killed") == rounds(tmp_path / "alone")
    assert rounds(tmp_path / "alone").count(b"\n") == 7


@pytest.mark.slow
def test_an_address_without_a_cluster_is_refused(tmp_path):
    nowhere = command(tmp_path, "nowhere", "--engine", "ray", "--ray-address", "127.0.0.1:1")
    run = subprocess.run(nowhere, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 2
    assert "no Ray cluster was found at '127.0.0.1:1'" in " ".join(run.stderr.split())


CLUSTER = """
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
input()
cluster.shutdown()
"""


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of two nodes in a process of its own, and its address."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # all of it on loopback, the runs too
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLUSTER], **pipes) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.communicate("\n", timeout=PATIENCE)


@pytest.mark.slow
def test_a_running_cluster_is_joined_and_left_alone(tmp_path, cluster):
    """The second run finds the cluster as the first one did."""
    process, address = cluster
    joined = ["--engine", "ray", "--ray-address", address]
    subprocess.run(command(tmp_path, "first", *joined), check=True, timeout=PATIENCE)
    subprocess.run(command(tmp_path, "second", *joined, "--workers", "1"), check=True, timeout=PATIENCE)
    assert process.poll() is None
    subprocess.run(command(tmp_path, "alone", "--engine", "inline"), check=True, timeout=PATIENCE)
    assert rounds(tmp_path / "first") == rounds(tmp_path / "second") == rounds(tmp_path / "alone") != b""


NODES = """
import sys, time
import ray
from fedpace.data.digits import Digits
from fedpace.models.builtin import Softmax
from fedpace.sim.engines.ray import Ray
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import Training

class Where:
    def cost(self, trainer):
        return 1.0
    def run(self, trainer, parameters):
        time.sleep(0.3)
        return [ray.get_runtime_context().get_node_id()]

trainer = TorchTrainer(Digits(clients=4).build(seed=0), Softmax(), Training(), seed=0)
engine = Ray(trainer, address=sys.argv[1])
for round in range(2):
    nodes = [answers[0] for answers in engine._run(trainer.initial, [Where() for _ in range(8)])]
print("nodes:", sorted(nodes.count(each) for each in set(nodes)))
engine.close()
"""


@pytest.mark.slow
def test_tasks_are_spread_over_the_nodes_of_a_cluster(cluster):
    """Left to itself, Ray gives all short tasks to the node where it already has a worker."""
    words = [sys.executable, "-c", NODES, cluster[1]]
    told = subprocess.run(words, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout
    least, most = json.loads(told.partition("nodes: ")[2].splitlines()[0])
    assert least + most == 8
    assert least >= 2
