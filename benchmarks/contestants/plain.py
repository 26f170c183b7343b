"""Plain PyTorch loops: what somebody writes who wants nothing but the rounds.

    python plain.py WORKLOAD [--processes 2] [--channels-last] [--threads N]

One process trains the clients one after the other. Several share them out: each has one thread, keeps model and data
for good, takes every n-th client of the cohort, adds the results up where they are, and tests on its share of the test
set; parameters and sums lie in shared memory. It is the leanest loop that is known here.
"""

from __future__ import annotations

import argparse
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from client import add_parameters, build_model, correct, set_parameters, train
from turns import Turns
from workload import Workload, load


def play_alone(workload: Workload, *, channels_last: bool) -> None:
    """Train one client after the other."""
    turns, trainer = Turns(), Loop(workload, channels_last=channels_last)
    parameters, step = torch.from_numpy(np.array(workload.initial)), 0
    while turns.begin():
        cohort = workload.cohort(step)
        total = torch.zeros_like(parameters)
        trainer.train(parameters, total, cohort, 1 / len(cohort), step)
        parameters, step = total, step + 1
        turns.end(trainer.correct(parameters, slice(None)) / len(workload.test_targets))


def play_together(folder: Path, processes: int, *, channels_last: bool) -> None:
    """Share the cohort out among processes."""
    workload = load(folder)
    turns = Turns()
    parameters = torch.from_numpy(np.array(workload.initial)).share_memory_()
    sums = torch.zeros(processes, parameters.numel()).share_memory_()
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for rank in range(processes):
        here, there = context.Pipe()
        worker = context.Process(
            target=_work, args=(folder, rank, processes, channels_last, parameters, sums, there), daemon=True
        )
        worker.start()
        pipes.append(here)
        workers.append(worker)
    for pipe in pipes:
        pipe.recv()  # it has its data
    step = 0
    while turns.begin():
        for pipe in pipes:
            pipe.send(("train", step))
        for pipe in pipes:
            pipe.recv()
        torch.sum(sums, dim=0, out=parameters)
        for pipe in pipes:
            pipe.send(("test", step))
        turns.end(sum(pipe.recv() for pipe in pipes) / len(workload.test_targets))
        step += 1
    for pipe in pipes:
        pipe.close()
    for worker in workers:
        worker.join()


class Loop:
    """A model and all data in memory."""

    def __init__(self, workload: Workload, *, channels_last: bool) -> None:
        self.workload = workload
        self.model = build_model(workload, channels_last=channels_last)
        self.inputs, self.targets, self.test_inputs, self.test_targets = (
            torch.from_numpy(np.array(array))
            for array in (workload.inputs, workload.targets, workload.test_inputs, workload.test_targets)
        )

    def train(
        self, parameters: torch.Tensor, total: torch.Tensor, clients: list[int], weight: float, step: int
    ) -> None:
        """Train the clients from `parameters` and add what comes out, times `weight`, to `total`."""
        for client in clients:
            part = self.workload.client(client)
            set_parameters(self.model, parameters)
            seed = step * self.workload.clients + client
            train(self.model, self.inputs[part], self.targets[part], self.workload.options, seed=seed)
            add_parameters(total, self.model, weight)

    def correct(self, parameters: torch.Tensor, part: slice) -> int:
        """Return how many of the test samples in `part` are right."""
        set_parameters(self.model, parameters)
        return correct(self.model, self.test_inputs[part], self.test_targets[part])


def _work(
    folder: Path,
    rank: int,
    processes: int,
    channels_last: bool,
    parameters: torch.Tensor,
    sums: torch.Tensor,
    pipe: Connection,
) -> None:
    torch.set_num_threads(1)
    workload = load(folder)
    trainer = Loop(workload, channels_last=channels_last)
    pipe.send("ready")
    while True:
        try:
            what, step = pipe.recv()
        except EOFError:
            return
        if what == "train":
            cohort = workload.cohort(step)
            sums[rank].zero_()
            trainer.train(parameters, sums[rank], cohort[rank::processes], 1 / len(cohort), step)
            pipe.send("done")
        else:
            pipe.send(trainer.correct(parameters, slice(rank, None, processes)))


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of one process (default: PyTorch's own choice)")
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.processes == 1:
        play_alone(load(options.workload), channels_last=options.channels_last)
    else:
        play_together(options.workload, options.processes, channels_last=options.channels_last)


if __name__ == "__main__":
    main()
