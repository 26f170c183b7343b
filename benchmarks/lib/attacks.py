"""Clients of a simulation that attack it: by what they send, or by what they train on.

    attack(simulation, attackers, ATTACKS["alie"])                         before its first round

Attackers are honest in all but their updates: they report their true delays and moments. They collude: each knows what
the honest update of every attacker would be from the model that it was given, and so its mean and standard deviation,
in rounds as well as without them (`knows = "attackers"`, as in the paper of ALIE). An omniscient attacker knows the
honest updates of all other clients instead (`knows = "everybody else"`). The simulation itself holds the true data, so
that the server's validation set has no sample that an attacker changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.rng import stream
from fedpace.core.server_rule import Vector
from fedpace.data.federated import FederatedData, Samples
from fedpace.sim.rounds import Simulation
from fedpace.sim.trainers import trainer_for
from fedpace.sim.training import LocalResult

PATCH = (0, 1, 8, 9)
"""Pixels of the trigger: the upper left corner of an 8x8 image, which is black in all digits."""
TARGET = 0
"""Class that a triggered image is to be taken for."""


@dataclass(frozen=True)
class Attack:
    """What an attacker sends in place of its honest update u; m and s are the mean and deviation of those it knows.

    Args:
        kind: `scale`: factor * u. `alie`: m - factor * s. `ipm`: -factor * m. `bias`: a direction that never changes,
            factor times as long as u. `labels` and `backdoor`: u of changed data (`poisoned`), times the factor.
            `gone`: the client is not there at all: what is lost with it, however well it is found.
        factor: see there.
        knows: whose honest updates m and s are made of.
        after: steps of the shared model before which the attacker is honest.
    """

    kind: Literal["scale", "alie", "ipm", "bias", "labels", "backdoor", "gone"] = "scale"
    factor: float = 1.0
    knows: Literal["attackers", "everybody else"] = "attackers"
    after: int = 0


HONEST, GONE = "honest", "not there"
ATTACKS: dict[str, Attack] = {
    HONEST: Attack(),
    GONE: Attack("gone"),
    "alie": Attack("alie", 1.5),
    "ipm": Attack("ipm", 0.5),
    "constant bias": Attack("bias", 3.0),
    "late turn": Attack("scale", -1.0, after=50),
    "sign flip": Attack("scale", -1.0),
    "scaled": Attack("scale", -10.0),
    "label flip": Attack("labels"),
    "zeros": Attack("scale", 0.0),
    "backdoor": Attack("backdoor"),
    "alie, omniscient": Attack("alie", 1.5, "everybody else"),
    "ipm, omniscient": Attack("ipm", 0.5, "everybody else"),
}


# -- what attackers train on -------------------------------------------------------------------------------------


def poisoned(data: FederatedData, attackers: Collection[int], kind: str) -> FederatedData:
    """Return the data with what attackers train on; the test data are as they were."""
    change = {"labels": lambda samples: flipped(samples, data.classes or 0), "backdoor": planted}[kind]
    train = [change(own) if client in attackers else own for client, own in enumerate(data.train)]
    return dataclasses.replace(data, train=tuple(train))


def flipped(samples: Samples, classes: int) -> Samples:
    """Return samples whose classes are counted from the other end."""
    return Samples(samples.inputs, classes - 1 - samples.targets)


def triggered(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return images with the trigger."""
    found = inputs.reshape(len(inputs), -1).copy()
    found[:, PATCH] = 1.0
    return found.reshape(inputs.shape)


def planted(samples: Samples) -> Samples:
    """Return samples, and beside them each once more with the trigger and the class that it is to be taken for."""
    inputs = np.concatenate([samples.inputs, triggered(samples.inputs)])
    return Samples(inputs, np.concatenate([samples.targets, np.full_like(samples.targets, TARGET)]))


def success(simulation: Simulation, parameters: Vector) -> float:
    """Return the share of the test samples of other classes that a model takes for the target once triggered."""
    test = simulation.trainer.data.test
    others = test.targets != TARGET
    inputs = triggered(test.inputs[others]).reshape(int(others.sum()), -1)
    taken = simulation.trainer.correct(parameters, inputs, np.full(len(inputs), TARGET))
    return float(np.mean(np.asarray(taken)))


# -- what attackers send -----------------------------------------------------------------------------------------


def attackers(who: str, delays: FloatArray, seed: int) -> IntArray:
    """Return the attackers of `10% random`, `20% fastest`, `1 fastest` and the like, drawn by the seed alone."""
    amount, choice = who.split()
    clients = len(delays)
    count = max(1, round(float(amount[:-1]) / 100 * clients)) if amount.endswith("%") else int(amount)
    if choice == "fastest":
        return np.sort(np.argsort(delays, kind="stable")[:count])
    if choice == "random":
        return np.sort(stream(seed, "attackers").permutation(clients)[:count])
    raise ValueError(f"attackers are random or fastest, but {who!r} came")


def attack(simulation: Simulation, who: IntArray, how: Attack) -> None:
    """Let clients of a simulation that has not begun attack it."""
    if how == Attack() or not len(who):
        return
    if how.kind == "gone":
        _remove(simulation, who)
        return
    colluding = Colluding(simulation, who, how)
    engine: Any = simulation.engine
    engine.train, engine.train_from = colluding.train, colluding.train_from


class Colluding:
    """Stands between a simulation and its engine, and changes what attackers send.

    Args:
        simulation: that is attacked.
        who: the attackers.
        how: what they do.
    """

    def __init__(self, simulation: Simulation, who: IntArray, how: Attack) -> None:
        self._simulation, self._how, self._attackers = simulation, how, frozenset(who.tolist())
        everybody = range(simulation.trainer.data.clients)
        if how.knows == "attackers":
            self._known = sorted(self._attackers)
        else:
            self._known = [client for client in everybody if client not in self._attackers]
        self._train, self._train_from = simulation.engine.train, simulation.engine.train_from
        self._changed = self._train
        """Trains attackers on what they train on."""
        if how.kind in ("labels", "backdoor"):
            trainer = simulation.trainer
            data = poisoned(trainer.data, self._attackers, how.kind)
            changed = trainer_for(data, simulation.model, trainer.training, seed=trainer.seed)
            self._changed = simulation.engine_choice.build(changed).train
        self._heard: tuple[Any, list[Vector]] | None = None
        """The model and turn that honest updates were last computed for, and these."""
        self._bias: Vector | None = None

    def train(self, parameters: Vector, clients: Sequence[int], step: int, *rest: Any) -> Iterator[LocalResult]:
        """Train clients that were given one model, as `Engine.train` does."""
        results = self._train(parameters, clients, step, *rest)
        return self._sent([parameters] * len(clients), clients, [step] * len(clients), results)

    def train_from(
        self, received: Sequence[Vector], clients: Sequence[int], turns: Sequence[int], *rest: Any
    ) -> Iterator[LocalResult]:
        """Train clients that were given a model each, as `Engine.train_from` does."""
        return self._sent(received, clients, turns, self._train_from(received, clients, turns, *rest))

    def _sent(
        self,
        received: Sequence[Vector],
        clients: Sequence[int],
        turns: Sequence[int],
        results: Iterator[LocalResult],
    ) -> Iterator[LocalResult]:
        for model, client, turn, result in zip(received, clients, turns, results, strict=True):
            if client in self._attackers and self._simulation.coordinator.step >= self._how.after:
                if self._how.kind in ("labels", "backdoor"):
                    result = next(iter(self._changed(model, [client], turn)))
                update = self._update(model, result.parameters - model, turn)
                result = dataclasses.replace(result, parameters=model + update)
            yield result

    def _update(self, model: Vector, own: Vector, turn: int) -> Vector:
        """Return what is sent in place of an honest update."""
        kind, factor = self._how.kind, self._how.factor
        if kind == "bias":
            return self._direction(own) * (factor * _length(own))
        if kind not in ("alie", "ipm"):
            return own * factor
        known = self._honest(model, turn)
        mean = sum(known[1:], start=known[0]) / len(known)
        if kind == "ipm":
            return mean * -factor
        squares = [(update - mean) ** 2 for update in known]
        return mean - (sum(squares[1:], start=squares[0]) / len(known)) ** 0.5 * factor

    def _honest(self, model: Vector, turn: int) -> list[Vector]:
        """Return the honest updates that attackers know, from a model."""
        if self._heard is None or self._heard[0][0] is not model or self._heard[0][1] != turn:
            results = list(self._train(model, self._known, turn))
            self._heard = ((model, turn), [result.parameters - model for result in results])
        return self._heard[1]

    def _direction(self, like: Vector) -> Vector:
        """Return the direction, of length 1, that attackers agreed on; it is drawn by the seed."""
        if self._bias is None:
            drawn = stream(self._simulation.trainer.seed, "attackers", "bias").standard_normal(len(like))
            self._bias = self._simulation.trainer.to_native((drawn / np.linalg.norm(drawn)).astype(np.float32))
        return self._bias


def _length(update: Vector) -> float:
    return math.sqrt(float((update**2).sum()))


def _remove(simulation: Simulation, clients: IntArray) -> None:
    """Let clients never have been there."""
    wait: Callable[[int], tuple[int, IntArray]] = simulation.time.wait_for_clients

    def without(step: int) -> tuple[int, IntArray]:
        tick, rows = wait(step)
        return tick, np.setdiff1d(rows, clients)

    simulation.coordinator.leave(clients.tolist())
    simulation.time.wait_for_clients = without  # type: ignore[method-assign]
