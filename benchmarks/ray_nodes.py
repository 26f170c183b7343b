"""What a second Ray node is worth: the same rounds on one node and on two, in turns; prints one JSON object.

python benchmarks/ray_nodes.py                # needs fedpace[ray]; two Ray nodes on this machine, on loopback

One cluster of two nodes with one core each serves all rounds, from one process. For rounds on one node, an idle actor
occupies the core of the other. A round trains `--cohort` clients and averages their models; the server does the latter
alone. Each measured round follows one of the same kind that is not measured, as in a run. Between rounds on Ray, the
engine `processes` makes the same rounds with one worker process and with two: its ratio is what the cores give without
Ray.

Two nodes need two free cores. So the four rounds count only if in each of them the training processes hardly waited for
a core (`--most-waiting`), as the kernel counts it (Linux, /proc/PID/schedstat); otherwise they are made again. Ratios
are medians over the sets of four rounds that count, with the least and the most; none, if no set counts:

- `clock`: of the seconds on the clock.
- `without_waiting`: of the seconds on the clock less those in which the training processes waited for a core (on two
  nodes the mean over both). What Ray itself costs stays in: the start of tasks, the travel of models, and nodes without
  work at the end of a round.
- `bound`: (server + work) / (server + work / 2), from the processor seconds of the rounds on two nodes. Those hardly
  depend on what else the machine does, so all sets count.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedpace
from fedpace._base.errors import FedpaceError
from fedpace.data.digits import Digits
from fedpace.models.builtin import Mlp
from fedpace.sim.engines.engine import Engine, limit_to_one_thread
from fedpace.sim.engines.processes import Processes
from fedpace.sim.engines.ray import LOCAL_ONLY, QUIET, Ray, loopback
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import Training

CLIENTS = 40
TICKS = os.sysconf("SC_CLK_TCK")
WORKED = 0.1
"""A node that did a smaller part of a round's work has not trained; its own processes take less."""
STARTS = 5
"""Tries to start a node."""
PATIENCE = 120
"""Seconds after which a node that does not come, or a core that is not given back, is given up."""


class Round(NamedTuple):
    """Seconds of one round."""

    clock: float
    server: float
    """Processor seconds of the process that starts tasks, gets models and averages them."""
    workers: tuple[float, ...]
    """Processor seconds of each node or worker process."""
    waited: float
    """Seconds in which training processes were ready to run and waited for a core; the mean over those that trained."""
    others: float
    """Cores that were busy with anything else, on average."""

    @property
    def waiting(self) -> float:
        """Return the part of the round in which training processes waited for a core."""
        return self.waited / self.clock

    @property
    def without_waiting(self) -> float:
        """Return the seconds on the clock without the waiting for cores."""
        return self.clock - self.waited


class Process(NamedTuple):
    """A process, as the kernel knows it."""

    parent: int
    spent: float
    """Processor seconds, with those of children that have ended."""
    waited: float
    """Seconds in which its main thread, which trains, was ready to run and waited for a core."""
    command: str

    def minus(self, before: Process | None) -> Process:
        """Return what was added since then; all of it, if there was no such process."""
        return (
            self
            if before is None
            else self._replace(spent=self.spent - before.spent, waited=self.waited - before.waited)
        )


Tree = dict[int, Process]


def processes() -> Tree:
    """Return all processes of this machine."""
    found: Tree = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            waited = int((folder / "schedstat").read_text().split()[1]) / 1e9
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has just ended
            continue
        found[int(folder.name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) / TICKS, waited, command)
    return found


def below(tree: Tree, root: int) -> set[int]:
    """Return a process and its descendants."""
    found, left = {root}, [root]
    while left:
        process = left.pop()
        left += (children := [each for each in tree if tree[each].parent == process])
        found.update(children)
    return found & tree.keys()


def busy() -> float:
    """Return the processor seconds that this machine has spent, on everything."""
    user, nice, system, _idle, _wait, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / TICKS


class Bench:
    """The clients and the rounds.

    Args:
        epochs: passes of a client over its data: how long a client trains.
        cohort: clients per round.
    """

    def __init__(self, epochs: int, cohort: int) -> None:
        training = Training(epochs=epochs, batch=10, lr=0.01)
        self.trainer = TorchTrainer(Digits(clients=CLIENTS).build(seed=0), Mlp(hidden=512, layers=2), training, seed=0)
        if self.trainer.stackable:
            raise SystemExit("the clients must be trained one by one, but this model is small enough to be stacked")
        self.cohort = cohort

    def round(self, engine: Engine, number: int, roots: Callable[[Tree], list[int]]) -> tuple[Round, torch.Tensor]:
        """Make a round; `roots` are the processes whose descendants work."""
        clients = [(number * self.cohort + place) % CLIENTS for place in range(self.cohort)]
        before, spent = processes(), busy()
        clock, server = time.perf_counter(), time.process_time()
        model = torch.zeros_like(self.trainer.initial)
        for result in engine.train(self.trainer.initial, clients, number):
            model += result.parameters / self.cohort
        server, clock = time.process_time() - server, time.perf_counter() - clock
        after, spent = processes(), busy() - spent
        nodes = [below(after, root) for root in roots(after)]
        gained = [{each: after[each].minus(before.get(each)) for each in node} for node in nodes]
        workers = tuple(sum(each.spent for each in node.values()) for node in gained)
        waits = [
            sum(each.waited for each in node.values() if each.spent > WORKED * worked)
            for node, worked in zip(gained, workers, strict=True)
            if worked > WORKED * sum(workers)
        ]
        others = max(0.0, spent - server - sum(workers)) / clock
        return Round(clock, server, workers, statistics.fmean(waits), others), model


def raylets(tree: Tree) -> list[int]:
    """Return the processes of the two nodes; the workers of a node descend from its raylet."""
    return sorted(each for each in below(tree, os.getpid()) if "/raylet/raylet " in tree[each].command)


def pool(tree: Tree) -> list[int]:
    """Return the worker processes of the engine `processes`."""
    return sorted(each for each in below(tree, os.getpid()) if "fedpace.sim.engines.worker" in tree[each].command)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Connect to a new cluster of two nodes with one core each; yield what keeps the second one occupied."""
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cluster = Cluster()
    try:
        patiently(lambda: cluster.add_node(num_cpus=1, include_dashboard=False))
        second = patiently(lambda: cluster.add_node(num_cpus=1))
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)

        def both_free() -> bool:
            free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
            return free.get("CPU", 0) == 2

        @ray.remote(num_cpus=1)
        class Occupant:
            def here(self) -> bool:
                return True

        place = NodeAffinitySchedulingStrategy(second.node_id, soft=False)

        @contextmanager
        def one_node() -> Iterator[None]:
            occupant = Occupant.options(scheduling_strategy=place).remote()  # type: ignore[attr-defined]
            ray.get(occupant.here.remote(), timeout=PATIENCE)
            try:
                yield
            finally:
                ray.kill(occupant)
                wait_until(both_free)

        wait_until(both_free)
        yield one_node
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def patiently(start: Callable[[], Any]) -> Any:
    """Start a node; Ray gives up after half a minute, which is short on a busy machine."""
    for _ in range(STARTS):
        try:
            return start()
        except Exception as problem:  # Ray raises this class itself
            said = problem
    raise SystemExit(f"a Ray node did not start in {STARTS} tries: use an idle machine ({said})")


def wait_until(true: Callable[[], bool]) -> None:
    """Wait until something is true, within limits."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"Ray did not get ready within {PATIENCE} s: use an idle machine")
        time.sleep(0.05)


def measure(epochs: int, wanted: argparse.Namespace, one_node: Any) -> dict[str, Any]:
    """Make rounds on one and two nodes, and with one and two processes, in turns."""
    bench = Bench(epochs, wanted.cohort)
    on_ray = Ray(bench.trainer)
    engines: dict[str, Engine] = {
        "one node": on_ray,
        "two nodes": on_ray,
        "one process": Processes(bench.trainer, 1),
        "two processes": Processes(bench.trainer, 2),
    }
    found: dict[str, list[Round]] = {kind: [] for kind in engines}
    made: dict[str, list[Round]] = {kind: [] for kind in engines}

    def one(number: int, kind: str) -> tuple[Round, torch.Tensor]:
        on_nodes = kind in ("one node", "two nodes")
        with one_node() if kind == "one node" else nullcontext():
            roots = raylets if on_nodes else pool
            bench.round(engines[kind], number, roots)  # rounds follow each other: Ray knows by now which cores are free
            return bench.round(engines[kind], number, roots)

    tried = -1  # one set to warm up
    try:
        while len(found["one node"]) < wanted.sets and tried < wanted.tries:
            order = list(engines) if tried % 2 else list(engines)[::-1]
            models, spent = {}, {}
            for kind in order:
                spent[kind], models[kind] = one(tried % 1000, kind)
            if not all(torch.equal(model, models["one node"]) for model in models.values()):
                raise FedpaceError("rounds gave different models")
            counts = tried >= 0 and max(each.waiting for each in spent.values()) <= wanted.most_waiting
            for kind, each in spent.items():
                made[kind] += [each] * (tried >= 0)
                found[kind] += [each] * counts
            told = {kind: f"{each.clock:.2f} ({each.waiting:.0%})" for kind, each in spent.items()}
            print(epochs, tried, "counts" if counts else "does not count", told, file=sys.stderr, flush=True)
            tried += 1
    finally:
        for engine in engines.values():
            engine.close()
    ones, twos = found["one node"], found["two nodes"]
    processor = {
        kind: {
            "server": statistics.median(each.server for each in rounds),
            "work": statistics.median(sum(each.workers) for each in rounds),
        }
        for kind, rounds in made.items()
    }
    server, work = processor["two nodes"].values()
    return {
        "epochs": epochs,
        "sets": len(ones),
        "tried": tried,
        "ray": {kind: ratios(ones, twos, kind) for kind in ("clock", "without_waiting")},
        "processes": {
            kind: ratios(found["one process"], found["two processes"], kind) for kind in ("clock", "without_waiting")
        },
        "processor_seconds": processor,
        "bound": (server + work) / (server + work / 2),
        "busy_with_others": statistics.median(each.others for rounds in made.values() for each in rounds),
        "rounds": {kind: [each._asdict() for each in rounds] for kind, rounds in made.items()},
    }


def ratios(ones: list[Round], twos: list[Round], of: str) -> list[float] | None:
    """Return the median, the least and the most of how many times as fast two are as one."""
    if not ones:
        return None
    each = [getattr(one, of) / getattr(two, of) for one, two in zip(ones, twos, strict=True)]
    return [statistics.median(each), min(each), max(each)]


def main() -> None:
    """Compare one and two nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=12, help="sets of four rounds that count")
    parser.add_argument("--tries", type=int, default=60, help="most sets of four rounds that are made")
    parser.add_argument("--most-waiting", type=float, default=0.5, help="most of a round that processes may wait")
    parser.add_argument("--cohort", type=int, default=20, help="clients per round")
    parser.add_argument("--epochs", default="30", help="local epochs: one comparison each")
    given = parser.parse_args()
    limit_to_one_thread()
    # Ray lowers the priority of its workers, so that any other program takes their cores.
    os.environ.update(QUIET | LOCAL_ONLY | {"RAY_worker_niceness": "0"})
    with loopback(), two_nodes() as one_node:
        found = [measure(int(epochs), given, one_node) for epochs in given.epochs.split(",")]
    facts = {
        "release": fedpace.__version__,
        "cores": os.cpu_count(),
        "cohort": given.cohort,
        "most_waiting": given.most_waiting,
    }
    print(json.dumps({**facts, "workloads": found}, indent=1))


if __name__ == "__main__":
    main()
