"""Runs the schemes of an experiment, one seed after the other, and records each run as it goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fedpace.config import Experiment, Scheme
from fedpace.core.errors import InputError
from fedpace.core.types import configuration
from fedpace.records.run import INFO, RunInfo, RunRecord, RunWriter, find_runs, read_run
from fedpace.sim.round import Round
from fedpace.sim.rounds import Simulation
from fedpace.sim.stopping import until
from fedpace.sim.trainer import DivergedError

Watcher = Callable[[Scheme, int, Round], None]
"""Called after every round with the scheme, the seed and the round: what a progress bar lives on."""


def run_one(experiment: Experiment, scheme: Scheme, seed: int, folder: Path, watch: Watcher | None = None) -> RunRecord:
    """Run one scheme under one seed into `folder`."""
    simulation = Simulation(
        experiment.data,
        experiment.model,
        experiment.delays,
        scheme.selector,
        training=experiment.training,
        fleet=experiment.fleet,
        availability=experiment.availability,
        clock=experiment.clock,
        seed=seed,
    )
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


def run_all(experiment: Experiment, folder: Path, watch: Watcher | None = None) -> list[RunRecord]:
    """Run every scheme under every seed, seeds outermost: whatever is there when it is stopped is paired."""
    return [
        run_one(experiment, scheme, seed, folder / scheme.label / f"seed-{seed}", watch)
        for seed in experiment.seeds
        for scheme in experiment.schemes
    ]


def prepare_folder(folder: Path, *, overwrite: bool) -> None:
    """Make sure that `folder` can take new runs; with `overwrite` remove the ones that it holds."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder to write into")
    if not any(folder.iterdir()):
        return
    runs = list(folder.rglob(INFO))
    if not runs:
        raise InputError(f"{folder} holds files that are not fedpace's: give another folder")
    if not overwrite:
        raise InputError(f"{folder} holds {len(runs)} runs already: give another folder, or --overwrite")
    find_runs(folder)  # only a folder that reads as ours is removed
    shutil.rmtree(folder)
