"""What is learnt, under which delays, and up to where.

A task is data, model and training. A cell is a task under one delay model, with delays independent of the data or with
the slow clients holding the rare data. Every cell has two targets, easy and hard, which one run serves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from lib import held_out
from lib.slow_holders import HeldDigits, HoldersDelays

from fedpace._base.errors import InputError
from fedpace.data.digits import Digits
from fedpace.data.fashion_mnist import FashionMnist
from fedpace.data.femnist import Femnist
from fedpace.data.mnist import Mnist
from fedpace.data.quadratic import Quadratic
from fedpace.data.shakespeare import Shakespeare
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.rounds import Fleet
from fedpace.sim.torch_trainer import Training

LAST = 10
"""Rounds at the end of full participation whose mean is its plateau."""

Level = Literal["easy", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "hard")


@dataclass(frozen=True)
class Task:
    """Something to learn.

    Args:
        name: as cells are called by.
        data: the data set.
        model: what is trained.
        training: how, at the step size that is used until one is tuned.
        rates: step sizes to tune over.
        larger: step sizes that are tried after these, for as long as the largest is the best.
        tuning_seeds: seeds that step sizes are chosen on.
        options_of: the task whose options are taken where tuning them on this one would take hours; "" = its own.
        full_rounds: rounds of full participation, after which it has reached its plateau.
        easy: how far from the plateau the easy target is; for a loss as a fraction of the way from the initial model.
        hard: the same for the hard target.
        easy_loss: the easy target itself, where the paper names it.
        rare: what makes data rare where slow clients hold them.
        own_delays: the only delay model of the task, if its data say which clients are slow.
        shares: how clients count in the objective: `uniform`, or by their `samples`.
    """

    name: str
    data: Any
    model: Any
    training: Training
    rates: tuple[float, ...]
    larger: tuple[float, ...] = ()
    tuning_seeds: tuple[int, ...] = (100, 101)
    options_of: str = ""
    full_rounds: int = 300
    max_rounds: int = 500
    """Of a scheme that has had as much virtual time as random takes; one with short rounds gets more of them."""
    easy: float = 0.05
    hard: float = 0.01
    easy_loss: float | None = None
    rare: Literal["classes", "features"] = "classes"
    own_delays: Any = None
    shares: Literal["uniform", "samples"] = "uniform"

    def at(self, rate: float) -> Training:
        """Return the training with another step size."""
        return dataclasses.replace(self.training, lr=rate)

    def targets(self, curve: Sequence[float]) -> dict[Level, float]:
        """Return the targets, given the metric of full participation round by round, the initial model first.

        An accuracy must come within so many points of the plateau. A loss that falls by powers of ten has no such
        points: its targets leave a part of the excess that the initial model has over the plateau.
        """
        plateau = float(np.mean(curve[-LAST:]))
        if self.data.metric == "accuracy":
            return {"easy": plateau - self.easy, "hard": plateau - self.hard}
        excess = curve[0] - plateau
        easy = plateau + self.easy * excess if self.easy_loss is None else self.easy_loss
        return {"easy": easy, "hard": plateau + self.hard * excess}

    def better(self, one: float, other: float) -> bool:
        """Whether a metric is at least as good as another."""
        return one >= other if self.data.metric == "accuracy" else one <= other


@dataclass(frozen=True)
class Cell:
    """A task under delays."""

    task: Task
    delays: Any
    rare: bool
    """Whether the slow clients hold the rare data."""

    @property
    def name(self) -> str:
        """Such as digits-0.3/nycmesh/rare."""
        if self.task.own_delays is not None:
            return f"{self.task.name}/{self.delays.name}"
        return f"{self.task.name}/{self.delays.name}/{'rare' if self.rare else 'independent'}"

    @property
    def group(self) -> str:
        """Cells that schemes are given the same options in: a task under a delay model."""
        return f"{self.task.name}/{self.delays.name}"

    def fleet(self, wait: float = 1.0) -> Fleet:
        """How the session meets the clients; `wait`: share of them that a warm-up waits for."""
        return Fleet(slow_rare=float(self.rare), rare=self.task.rare, warmup_wait=wait, shares=self.task.shares)


DIGITS = Training(epochs=5, batch=16, lr=0.3)
DIGIT_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
MORE_RATES = (30.0, 100.0)

EMBEDDED = (
    # The paper's Quadratic as in experiments/quadratic.toml; 2.95 is its target in the paper's table 1.
    Task(
        "quadratic",
        Quadratic(),
        Linear(),
        Training(epochs=5, batch=0, lr=0.015),
        (0.008, 0.015, 0.022, 0.03, 0.04),
        larger=(0.06, 0.1),
        full_rounds=100,
        easy_loss=2.95,
    ),
    Task("digits-0.3", Digits(alpha=0.3), Softmax(), DIGITS, DIGIT_RATES, MORE_RATES),
    Task("digits-2", Digits(alpha=2.0), Softmax(), DIGITS, DIGIT_RATES, MORE_RATES),
    # Equal label mixes, so that the angles are all in which clients differ.
    Task(
        "digits-rotated",
        Digits(alpha=1000.0, max_rotation=60.0),
        Softmax(),
        DIGITS,
        DIGIT_RATES,
        MORE_RATES,
        rare="features",
    ),
)

# Classes 8 and 9 only on five clients that are 20 times as slow as the median of the others.
HELD = (
    Task(
        "digits-held",
        HeldDigits(),
        Softmax(),
        DIGITS,
        DIGIT_RATES,
        MORE_RATES,
        own_delays=HoldersDelays(SyntheticDelays()),
    ),
)

# A perceptron, since clients with the same layers train together: the paper's convolutions take twenty times as long,
# and every scheme with its options tuned and five seeds says more than a few of them on a better network.
IMAGE_OPTIONS: dict[str, Any] = {
    "model": Mlp(hidden=64),
    "training": Training(epochs=2, batch=20, lr=0.1),
    "rates": (0.05, 0.1, 0.2),
    "larger": (0.4, 0.8),
    "full_rounds": 100,
}
SIZES: dict[str, Any] = {"clients": 50, "samples": 3000, "test_samples": 2000}

PUBLIC = (
    Task("mnist-0.3", Mnist(alpha=0.3, **SIZES), **IMAGE_OPTIONS),
    Task(
        "mnist-rotated",
        Mnist(partition="rotated", **SIZES),
        **IMAGE_OPTIONS,
        rare="features",
    ),
    Task("fashion-0.3", FashionMnist(alpha=0.3, **SIZES), **IMAGE_OPTIONS),
    Task(
        "fashion-rotated",
        FashionMnist(partition="rotated", **SIZES),
        **IMAGE_OPTIONS,
        rare="features",
    ),
)

# Clients that nobody made: writers and speaking roles, with as much data as each has. Sizes that two cores can bear.
NATURAL = (
    Task(
        "writers",
        Femnist(clients=250, shrink=2),
        Mlp(hidden=64),
        Training(epochs=2, batch=20, lr=0.2),
        (0.1, 0.2, 0.4),
        larger=(0.8,),
        full_rounds=100,
        rare="features",
    ),
    Task(
        "roles",
        Shakespeare(clients=150, min_samples=300, samples=600, context=6),
        Mlp(hidden=64),
        Training(epochs=2, batch=20, lr=1.0),
        (0.5, 1.0, 2.0),
        larger=(4.0,),
        full_rounds=60,
        easy=0.03,
        hard=0.01,
    ),
)

# Nothing is tuned on these: schemes and step sizes are as they are given.
HELD_OUT = (
    *(Task(rates=(), **{**held_out.DEFAULTS, **task}) for task in held_out.TASKS),
    dataclasses.replace(HELD[0], name="held"),
)

DELAYS = (SyntheticDelays(), NycmeshDelays())
"""Of the 32 cells."""
ON_REQUEST = (DevicesDelays(),)
"""Columns beside them: --delays devices."""


def delay_models(names: str = "") -> tuple[Any, ...]:
    """Return the delay models with these comma-separated names; those of the 32 cells when none is given."""
    known = {model.name: model for model in (*DELAYS, *ON_REQUEST)}
    for name in filter(None, names.split(",")):
        if name not in known:
            raise InputError(f"the grid has no delay model {name!r}: known are {', '.join(known)}")
    return tuple(known[name] for name in names.split(",")) if names else DELAYS


def cells(tasks: Sequence[Task], *, matching: str = "", delays: Sequence[Any] = DELAYS) -> list[Cell]:
    """Return the cells whose names contain one of the comma-separated pieces of `matching`."""
    pieces = matching.split(",")
    every = [
        Cell(task, model, rare)
        for task in tasks
        for model in (delays if task.own_delays is None else (task.own_delays,))
        for rare in ((False, True) if task.own_delays is None else (False,))
    ]
    return [cell for cell in every if any(piece in cell.name for piece in pieces)]
