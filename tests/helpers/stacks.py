"""What trainers of stacked clients are tried with: unequal clients, models of linear layers, local training."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.training import Training

MODELS = st.sampled_from(
    [(Softmax(), 3), (Mlp(hidden=4), 3), (Mlp(hidden=4, layers=2), None), (Linear(), None), (Linear(bias=True), None)]
)
"""With the number of classes; None = regression."""
COUNTS = st.lists(st.integers(1, 90), min_size=1, max_size=7)
"""Samples of each client."""


def trainings(**more):
    return st.builds(
        Training,
        epochs=st.integers(1, 3),
        batch=st.sampled_from([0, 1, 3, 8, 70]),
        lr=st.just(0.01),
        momentum=st.sampled_from([0.0, 0.9]),
        weight_decay=st.sampled_from([0.0, 0.1]),
        algorithm=st.sampled_from(["fedavg", "fedprox"]),
        mu=st.just(0.3),
        **more,
    )


def federation(counts, *, classes=3, width=5, seed=0, tested=4):
    rng = stream(seed, "stack")

    def draw(count):
        inputs = rng.normal(size=(count, width)).astype(np.float32)
        targets = rng.normal(size=count).astype(np.float32) if classes is None else rng.integers(0, classes, count)
        return Samples(inputs, targets)

    metric = "loss" if classes is None else "accuracy"
    return FederatedData("toy", tuple(draw(count) for count in counts), draw(tested), classes=classes, metric=metric)
