"""A run that is saved in the middle and restored: the same to the last bit, for every scheme without rounds."""

from itertools import islice

import torch

from fedpace.sim.checkpoint import Checkpoints


def check_resumes(folder, make, done, *, total=15):
    """Save a run after `done` of `total` records, restore it, and compare with one that was never stopped.

    Args:
        folder: where to save.
        make: makes the simulation.
        done: records before it is saved.
        total: records in all.

    Returns:
        Whether anybody was at work when it was saved.
    """
    whole = make()
    expected = list(islice(whole.rounds(), total))
    first = make()
    list(islice(first.rounds(), done))
    at_work = bool(first.coordinator.tasks)
    Checkpoints(folder).save(first, wall_seconds=0.0)
    second = make()
    Checkpoints(folder).restore(second)
    assert list(islice(second.rounds(), total - done)) == expected[done:]
    assert torch.equal(second.parameters, whole.parameters)
    # And the run that was saved goes on as if it had not been.
    assert list(islice(first.rounds(), total - done)) == expected[done:]
    return at_work
