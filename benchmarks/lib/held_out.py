"""Federations that no option, constant or step size of `pace` and `pace-async` was chosen on.

They differ in what clients hold (classes, features, sizes, natural tables), in the model, and in how delays arise:
drawn, measured, growing with the samples, or long for exactly those clients whose data nobody else has. Schemes run
with their defaults, as users get them; `RIVALS` has the settings of those whose defaults are for another kind of fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from lib.hard_federations import NaturalTable, ThreeSpeeds
from lib.honest_federations import FEDERATIONS, grouped, quantiles
from numpy.typing import NDArray

from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.data.federated import FederatedData
from fedpace.delays.async_hfl import AsyncHflDelays
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.mixture import MixtureDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.delays.trace import delays_from_array
from fedpace.delays.uniform import UniformDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.training import Training

RIVALS = (
    "fedbuff-5=fedbuff:buffer=5",
    "random-over=random:k=10,overcommit=1.3",
)
"""Variants of the grid's runner (`--variant`) that join the schemes with their defaults."""


@dataclass(frozen=True)
class Federation:
    """Data of `lib/honest_federations.py`, drawn by the seed.

    Args:
        key: name of the federation there, or of one of `NEW`.
        clients: number of clients.
        metric: `accuracy` or `loss`.
    """

    key: str
    clients: int
    metric: str = "accuracy"

    @property
    def name(self) -> str:
        """As records call the data."""
        return self.key

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of a seed."""
        drawn: Any = NEW[self.key] if self.key in NEW else FEDERATIONS[self.key].data  # type: ignore[union-attr]
        data: FederatedData = drawn(seed).build(seed=seed)
        return data


NEW = {
    "wine": grouped("load_wine", quantiles(0, 15), Softmax()),
    "diabetes-by-pressure": grouped("load_diabetes", quantiles(3, 40), Linear()),
}


@dataclass(frozen=True)
class Speeds:
    """Delays of a fast, a medium and a slow group, in that order; a client's delay is the same in every task."""

    speeds: tuple[float, float, float]
    groups: tuple[int, int, int] = ThreeSpeeds.groups
    name: str = "three-speeds"

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays."""
        return delays_from_array(self._seconds()).build(clients, model_bytes=model_bytes, seed=seed)

    def _seconds(self) -> list[float]:
        pairs = zip(self.speeds, self.groups, strict=True)
        return [pace * (1 + 0.1 * place) for pace, count in pairs for place in range(count)]


@dataclass(frozen=True)
class SlowestLast:
    """Log-normal delays in ascending order: if classes are sorted by client, the slowest hold the last ones."""

    name: str = "slowest-last"

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays."""
        drawn: NDArray[Any] = np.sort(np.exp(1.2 * stream(seed, "slowest last").standard_normal(clients)))
        return delays_from_array(10 * drawn).build(clients, model_bytes=model_bytes, seed=seed)


def _training(lr: float, batch: int = 16) -> Training:
    return Training(epochs=5, batch=batch, lr=lr, arithmetic="numpy")


SAMPLES = {"shares": "samples"}

TASKS: tuple[dict[str, Any], ...] = (
    # name, data, model, training, delays; `shares` where clients count by their samples.
    {"name": "table-15", "data": NaturalTable(15), "model": Linear(), "training": _training(0.01, 32), **SAMPLES},
    {"name": "table-100", "data": NaturalTable(100), "model": Linear(), "training": _training(0.01, 32), **SAMPLES},
    {
        "name": "speeds-1-1000-10000",
        "data": ThreeSpeeds((2, 300, 900)),
        "model": Linear(),
        "training": _training(0.02, 8),
        "own_delays": Speeds((1.0, 1000.0, 10000.0)),
        **SAMPLES,
    },
    {
        "name": "speeds-1-10-100",
        "data": ThreeSpeeds((40, 40, 40)),
        "model": Linear(),
        "training": _training(0.02, 8),
        "own_delays": Speeds((1.0, 10.0, 100.0)),
        **SAMPLES,
    },
    {"name": "unequal", "data": Federation("unequal-60", 60), "training": _training(0.3), **SAMPLES},
    {
        "name": "sorted-slow",
        "data": Federation("sorted-30", 30),
        "model": Mlp(),
        "training": _training(0.1),
        "own_delays": SlowestLast(),
    },
    {"name": "own-class", "data": Federation("own-class-20", 20), "own_delays": LognormalDelays()},
    {"name": "nine-slow", "data": Federation("nine-slow-60", 60), "own_delays": LognormalDelays()},
    {"name": "dirichlet-0.05", "data": Federation("dirichlet-60", 60), "own_delays": MixtureDelays()},
    {
        "name": "wide",
        "data": Federation("wide-60", 60),
        "model": Mlp(256),
        "training": _training(0.1),
        "own_delays": NycmeshDelays(),
    },
    {"name": "digits-300", "data": Federation("digits-300", 300), "own_delays": AsyncHflDelays()},
    {"name": "visits", "data": Federation("visits", 40), "training": _training(0.1), **SAMPLES},
    {"name": "cancer", "data": Federation("cancer", 20), "training": _training(0.1)},
    {"name": "wine", "data": Federation("wine", 15), "training": _training(0.1)},
    {
        "name": "diabetes",
        "data": Federation("diabetes-by-pressure", 40, "loss"),
        "model": Linear(),
        "training": _training(0.01),
        "own_delays": UniformDelays(),
    },
    {
        "name": "opposed",
        "data": Federation("groups-60", 60, "loss"),
        "model": Linear(),
        "training": _training(0.02),
        "own_delays": LognormalDelays(),
    },
)
"""What `grid.cells` makes tasks of; softmax, a step size of 0.3 and real phones unless another one is named."""
DEFAULTS: dict[str, Any] = {"model": Softmax(), "training": _training(0.3), "own_delays": DevicesDelays()}
