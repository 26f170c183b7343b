"""What a second Ray node is worth: clients trained on one node with one core, and on two; prints one JSON object.

python benchmarks/ray_nodes.py                # needs fedpace[ray]; two Ray nodes on this machine, on loopback

Both runs train the same clients and give the same model. On one machine two nodes share its memory and its network, so
the ratio is bounded by the cores: 2 at the most. Processor seconds per round say what bounds it besides: a second node
halves the seconds of the cluster, while the server (selection, aggregation, evaluation) works alone. Its bound is

    (server + cluster) / (server + cluster / 2).

Processor seconds hardly depend on what else the machine does; the seconds on the clock do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
for _ in range(int(sys.argv[1]) - 1):
    cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
input()
cluster.shutdown()
"""
EXPERIMENT = """
name = "nodes"

[delays]
name = "uniform"

[data]
name = "digits"
clients = 40

[model]
name = "mlp"
hidden = 2048
layers = 2

[training]
epochs = 5
batch = 10
lr = 0.05

[[selectors]]
name = "random"
k = 20
"""


class Spent(NamedTuple):
    """Seconds of some rounds."""

    clock: float
    server: float
    """Processor seconds of the process that selects and aggregates."""
    cluster: float
    """Processor seconds of all Ray processes."""

    def minus(self, other: Spent, rounds: int) -> Spent:
        """Return the seconds per round between two runs."""
        return Spent(*((mine - its) / rounds for mine, its in zip(self, other, strict=True)))


def processor_seconds(root: int) -> float:
    """Return the processor seconds of a process and its descendants, those that have ended included."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        spent[int(path.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, found = 0.0, [root]
    while found:
        process = found.pop()
        total += spent.get(process, 0.0)
        found += [child for child, parent in parents.items() if parent == process]
    return total


def run(folder: Path, engine: list[str], rounds: int, cluster: int) -> Spent:
    """Return what a run takes, start included."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock, theirs = time.perf_counter(), processor_seconds(cluster)
    subprocess.run(
        [sys.executable, "-m", "fedpace", "run", str(folder / "experiment.toml"), "--max-rounds", str(rounds),
         "--evaluate-every", str(rounds), "--out", str(folder / f"run-{time.monotonic_ns()}"), *engine],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    server = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    return Spent(time.perf_counter() - clock, server, processor_seconds(cluster) - theirs)


def on_ray(folder: Path, nodes: int, rounds: int) -> Spent:
    """Return the seconds per round on a cluster of so many nodes, without the start: two runs of different length."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLUSTER, str(nodes)], **pipes) as cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        if not address:
            raise SystemExit(f"{nodes} Ray nodes did not start, load {os.getloadavg()[0]:.0f}: use an idle machine")
        engine = ["--engine", "ray", "--ray-address", address]
        try:
            short = run(folder, engine, 1, cluster.pid)
            long = run(folder, engine, 1 + rounds, cluster.pid)
        finally:
            cluster.communicate("\n", timeout=300)
    return long.minus(short, rounds)


def main() -> None:
    """Compare one and two nodes, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "experiment.toml").write_text(EXPERIMENT)
        pairs = [(on_ray(folder, 1, given.rounds), on_ray(folder, 2, given.rounds)) for _ in range(given.repeats)]
    load = os.getloadavg()[0]
    one = Spent(*(statistics.median(each) for each in zip(*(first for first, _ in pairs), strict=True)))
    print(
        json.dumps(
            {
                "one_node": [first._asdict() for first, _ in pairs],
                "two_nodes": [second._asdict() for _, second in pairs],
                "speed_up": statistics.median(first.clock / second.clock for first, second in pairs),
                "bound": (one.server + one.cluster) / (one.server + one.cluster / 2),
                "cores": os.cpu_count(),
                "load_average": load,
            }
        )
    )


if __name__ == "__main__":
    main()
