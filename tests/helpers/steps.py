"""The server step by hand."""

from __future__ import annotations

import torch

from fedpace.core.stepping import Gather
from fedpace.server.average import Average


def aggregate(current, results, weights, mode):
    """Step as the simulator does, with the plain average."""
    rule = Average()
    gather = Gather(rule, torch.zeros(current.shape, dtype=torch.float64), mean=mode == "average")
    for result, weight in zip(results, weights, strict=True):
        gather.add(result, current, weight)
    answers = gather.answers()
    return current if answers is None else rule.apply(None, current, answers)[0].to(current.dtype)
