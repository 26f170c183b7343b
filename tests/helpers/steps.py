"""The server step by hand."""

from __future__ import annotations

import torch

import fedpace
from fedpace.core.server_rule import Gather
from fedpace.core.tasks import Step, Task
from fedpace.server.average import Average


def aggregate(current, results, weights, mode):
    """Step as the simulator does, with the plain average."""
    rule = Average()
    gather = Gather(rule, torch.zeros(current.shape, dtype=torch.float64), mean=mode == "average")
    for result, weight in zip(results, weights, strict=True):
        gather.add(result, current, weight)
    answers = gather.answers()
    return current if answers is None else rule.apply(None, current, answers)[0].to(current.dtype)


def apply_answers(shared, answers, mode="average"):
    """Make a step of a SharedModel with (weight, trained model) of each client, without bounds; return the arrays."""
    coordinator = fedpace.Coordinator(fedpace.make_selector("random", k=1), fedpace.Settings(trust=False))
    coordinator.join(range(len(answers)))
    total = sum(weight for weight, _ in answers) if mode == "average" else 1.0
    weights = [weight / total if total > 0 else 0.0 for weight, _ in answers]
    tasks = [(Task(i, i, "train", 0, 0.0, weight), weight) for i, weight in enumerate(weights)]
    shared.apply(coordinator, Step(1, tuple(tasks), mode), {i: model for i, (_, model) in enumerate(answers)})
    return shared.arrays
