"""fedpace's own simulation of a workload: session, engine, aggregation, evaluation and report, as in any run.

python ours.py WORKLOAD [--engine auto|inline|processes|ray] [--workers N]
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from turns import Turns
from workload import Workload, load

from fedpace._base import registry
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.data.federated import FederatedData, Metric, Samples
from fedpace.delays.constant import ConstantDelays
from fedpace.sim.rounds import (  # both from here: `earlier.py` loads this file with other checkouts
    EngineOptions,
    Simulation,
)
from fedpace.sim.training import Training


@dataclass(frozen=True, eq=False)
class Given:
    """The samples of a workload as a data set."""

    name: ClassVar[str] = "given"
    metric: ClassVar[Metric] = "accuracy"

    workload: Workload

    def build(self, *, seed: int) -> FederatedData:
        """Return them, whatever the seed."""
        given = self.workload
        inputs, targets = np.array(given.inputs), np.array(given.targets)
        parts = [given.client(client) for client in range(given.clients)]
        return FederatedData(
            name=self.name,
            train=tuple(Samples(inputs[part], targets[part]) for part in parts),
            test=Samples(np.array(given.test_inputs), np.array(given.test_targets)),
            classes=int(given.test_targets.max()) + 1,
            metric=self.metric,
        )


@dataclass(frozen=True, eq=False)
class GivenCohorts(Stateless):
    """The cohorts of a workload, every client weighing the same."""

    name: ClassVar[str] = "given-cohorts"
    needs: ClassVar[frozenset[Need]] = frozenset()

    workload: Workload

    @property
    def k(self) -> int:
        """Clients in a cohort."""
        return self.workload.cohorts.shape[1]

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Take the next one."""
        cohort = np.array(self.workload.cohort(view.step))
        return Cohort(cohort, np.full(len(cohort), 1 / len(cohort))), None


def simulation(workload: Workload, engine: EngineOptions) -> Simulation:
    """Return the workload as a simulation."""
    options = workload.options
    return Simulation(
        Given(workload),
        registry.models.make(options.model),
        ConstantDelays(),
        GivenCohorts(workload),
        training=Training(epochs=options.epochs, batch=options.batch, lr=options.lr, momentum=options.momentum),
        engine=engine,
        seed=0,
    )


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    turns = Turns()
    played = simulation(load(options.workload), EngineOptions(options.engine, options.workers))
    with closing(played.rounds()) as rounds:
        next(rounds)  # the initial model
        while turns.begin():
            turns.end(next(rounds).metric)


if __name__ == "__main__":
    main()
