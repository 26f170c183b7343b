"""Runs the schemes of an experiment, one seed after the other, and records each run as it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import cast

from fedpace.config import Experiment, Scheme
from fedpace.core.errors import InputError
from fedpace.core.types import configuration
from fedpace.data.federated import DataConfig, FederatedData, Metric
from fedpace.records.run import INFO, ROUNDS, RunInfo, RunRecord, RunWriter, read_run
from fedpace.sim.engines.choice import EngineOptions
from fedpace.sim.round import Round
from fedpace.sim.rounds import Simulation
from fedpace.sim.stopping import until
from fedpace.sim.trainer import DivergedError

OURS = frozenset({INFO, ROUNDS, "comparison.json", "report.html", "report.png"})
"""Names of the files that fedpace writes into a folder of runs: all that `overwrite` may remove."""

Watcher = Callable[[Scheme, int, Round], None]
"""Called after every round with the scheme, the seed and the round: what a progress bar lives on."""


def run_one(
    experiment: Experiment,
    scheme: Scheme,
    seed: int,
    folder: Path,
    watch: Watcher | None = None,
    *,
    engine: EngineOptions | None = None,
    overwrite: bool = False,
) -> RunRecord:
    """Run one scheme under one seed into `folder`; `engine` and `overwrite` as for `run_all`."""
    simulation = _simulation(experiment, scheme, seed, engine)
    if overwrite:
        clear_folder(folder)
    info = RunInfo(
        label=scheme.label,
        selector=scheme.selector.name,
        options=configuration(scheme.selector),
        seed=seed,
        metric=experiment.data.metric,
        direction=experiment.direction,
        target=experiment.stop.target,
        experiment=experiment.as_table(),
        expected_delays=tuple(simulation.expected_delays.tolist()),
        engine=simulation.engine_choice.facts(),
    )
    with RunWriter(folder, info) as writer:
        reached = False
        try:
            for current in until(simulation.rounds(), experiment.stop, experiment.direction):
                writer.add(current)
                reached = experiment.stop.reached(current.metric, experiment.direction)
                if watch is not None:
                    watch(scheme, seed, current)
            writer.finish("reached" if reached else "finished")
        except DivergedError as error:
            # A scheme that diverges is a result, not an accident: the others go on.
            writer.finish("diverged", str(error))
    return read_run(folder)


def _simulation(experiment: Experiment, scheme: Scheme, seed: int, engine: EngineOptions | None = None) -> Simulation:
    return Simulation(
        experiment.data,
        experiment.model,
        experiment.delays,
        scheme.selector,
        training=experiment.training,
        fleet=experiment.fleet,
        availability=experiment.availability,
        clock=experiment.clock,
        engine=engine,
        seed=seed,
    )


def run_all(
    experiment: Experiment,
    folder: Path,
    watch: Watcher | None = None,
    *,
    engine: EngineOptions | None = None,
    overwrite: bool = False,
) -> list[RunRecord]:
    """Run every scheme under every seed, seeds outermost: whatever is there when it is stopped is paired.

    `engine` says where clients are trained, which changes nothing in what comes out; None = whichever suits.
    With `overwrite` the runs that the folder holds are removed, once all schemes have proved to be well configured.
    """
    experiment = dataclasses.replace(experiment, data=cast("DataConfig", SharedData(experiment.data)))
    for scheme in experiment.schemes:
        _simulation(experiment, scheme, experiment.seeds[0])  # a mistake in the last scheme shows before the first runs
    if overwrite:
        clear_folder(folder)
    return [
        run_one(experiment, scheme, seed, folder / scheme.label / f"seed-{seed}", watch, engine=engine)
        for seed in experiment.seeds
        for scheme in experiment.schemes
    ]


class SharedData:
    """A data set that all schemes of a seed share: drawn once, kept until another seed is asked for."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self._kept: tuple[int, FederatedData] | None = None

    @property
    def name(self) -> str:
        """As registered."""
        return self.config.name

    @property
    def metric(self) -> Metric:
        """What the data set is judged by."""
        return self.config.metric

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        if self._kept is None or self._kept[0] != seed:
            self._kept = None  # two large data sets need not be in memory at once
            self._kept = (seed, self.config.build(seed=seed))
        return self._kept[1]


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot take new runs; nothing is changed yet."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write into")
    if _our_files(folder) and not overwrite:
        raise InputError(f"{folder} holds runs already: give another folder, or --overwrite")


def clear_folder(folder: Path) -> None:
    """Remove the runs that `folder` holds; where it holds anything else, nothing is removed."""
    for path in _our_files(folder):
        path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):  # what is inside comes before what holds it
        path.rmdir()


def _our_files(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    foreign = [path for path in files if path.name not in OURS or path.is_symlink()]
    if foreign:
        raise InputError(f"{folder} holds files that are not fedpace's, such as {foreign[0]}: give another folder")
    return files
