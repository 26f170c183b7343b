"""What a second Ray node is worth: clients trained on one node with one core, and on two; prints one JSON object.

python benchmarks/ray_nodes.py                # needs fedpace[ray]; two Ray nodes on this machine, on loopback

Both runs train the same clients and give the same model. On one machine two nodes share its memory and its network, so
the ratio is bounded by the cores: 2 at the most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def seconds(folder: Path, engine: list[str], rounds: int) -> float:
    """Return how long a run takes after its start, from the time stamps of its rounds."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "fedpace", "run", str(folder / "experiment.toml"), "--max-rounds", str(rounds),
         "--evaluate-every", str(rounds), "--out", str(folder / f"run-{time.monotonic_ns()}"), *engine],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def on_ray(folder: Path, nodes: int, rounds: int) -> float:
    """Return the seconds per round on a cluster of so many nodes, without the start: two runs of different length."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLUSTER, str(nodes)], **pipes) as cluster:
        address = cluster.stdout.readline().strip()
        if not address:
            raise SystemExit(f"{nodes} Ray nodes did not start, load {os.getloadavg()[0]:.0f}: use an idle machine")
        engine = ["--engine", "ray", "--ray-address", address]
        try:
            short = seconds(folder, engine, 1)
            long = seconds(folder, engine, 1 + rounds)
        finally:
            cluster.communicate("\n", timeout=300)
    return (long - short) / rounds


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
    ratios = [one / two for one, two in pairs]
    print(
        json.dumps(
            {
                "seconds_per_round_one_node": [round(one, 2) for one, _ in pairs],
                "seconds_per_round_two_nodes": [round(two, 2) for _, two in pairs],
                "speed_up": round(statistics.median(ratios), 2),
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
