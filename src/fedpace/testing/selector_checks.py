"""`check_selector`, `check_delay_model` and `check_dataset` check the contracts of these components.

A toy fleet drives the selector through whole sessions: its clients join, leave, fail, are slow and have equal delays,
and the session is saved and restored. A broken rule raises a ContractError that names the rule. `sum_support` says
which schemes work where the server sees sums only.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace import make_selector
from fedpace._base.checks import FloatArray
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.rng import stream
from fedpace.core.coordinator import Coordinator
from fedpace.core.session import Session, Warmup
from fedpace.core.sums import why_not_sums
from fedpace.core.types import (
    DelayConfig,
    Need,
    Outcome,
    ProbeRequest,
    Selection,
    Selector,
    check_traits,
    configuration,
    facts_wanted,
)
from fedpace.data.federated import DataConfig, FederatedData, Samples

SKETCH = 6
FEATURES = 4
CLASSES = 3


class ContractError(FedpaceError, AssertionError):
    """A component breaks a rule of the contract."""


@dataclass(frozen=True, eq=False)
class ToyFleet:
    """Clients with fixed properties, keyed by the client's number, so that checks can change the order of clients.

    Args:
        clients: number of clients.
        seed: seed of their properties.
        tied: whether all delays are equal.
        failing: fraction of a cohort that fails in each round.
        pace: key of the random delays; another key gives the same clients other delays.
    """

    clients: int
    seed: int = 0
    tied: bool = False
    failing: float = 0.0
    pace: str = "toy delay"

    def delay(self, client: int) -> float:
        """Return the client's delay in seconds."""
        return 10.0 if self.tied else float(np.exp(stream(self.seed, self.pace, client).normal(3.0, 1.0)))

    def samples(self, client: int) -> float:
        """Return the client's number of samples."""
        return float(stream(self.seed, "toy samples", client).integers(1, 50))

    def labels(self, client: int) -> FloatArray:
        """Return the client's label histogram."""
        return stream(self.seed, "toy labels", client).integers(0, 9, CLASSES).astype(np.float64) + 1.0

    def moment(self, client: int) -> FloatArray:
        """Return the factor of the client's feature moment."""
        return stream(self.seed, "toy moment", client).normal(size=(8, FEATURES)) / math.sqrt(8)

    def update(self, client: int, step: int) -> FloatArray:
        """Return the sketch of the client's update."""
        return stream(self.seed, "toy update", client, step).normal(size=SKETCH)

    def loss(self, client: int, step: int) -> float:
        """Return the client's training loss, which falls over the rounds."""
        return float(stream(self.seed, "toy loss", client).uniform(0.5, 2.0) / (1 + 0.1 * step))

    def outcome(self, client: int, step: int) -> Outcome:
        """Return the client's report."""
        if stream(self.seed, "toy failure", client, step).random() < self.failing:
            return Outcome(client, seconds=self.delay(client), finished=False)
        return Outcome(
            client,
            seconds=self.delay(client),
            loss=self.loss(client, step),
            samples=self.samples(client),
            moment=self.moment(client),
            update=self.update(client, step),
        )

    def session(self, selector: Selector[Any], order: list[int], *, warmup: Warmup = "full") -> Session:
        """Return a session that these clients joined in `order`."""
        session = Session(selector, seed=self.seed, shares="samples", warmup=warmup, offers=frozenset(Need))
        self.join(session, order)
        return session

    def join(self, session: Session | Coordinator, order: list[int]) -> None:
        """Let clients join, with their samples and labels."""
        session.join(order, samples=[self.samples(c) for c in order], labels=np.array([self.labels(c) for c in order]))

    def play(self, session: Session, rounds: int) -> Iterator[Selection]:
        """Run rounds and any warm-ups, and yield each round's selection after its reports."""
        target = session.step + rounds
        while session.step < target:
            request = session.probe()
            if request is not None:
                session.answer(self.answers(request))
            selection = session.select()
            members = [int(client) for client in selection.clients]  # type: ignore[call-overload]
            slowest = max(self.delay(client) for client in members)
            session.observe([self.outcome(client, selection.step) for client in members], now=session.now + slowest)
            if not selection.warmup:
                yield selection

    def answers(self, request: ProbeRequest) -> dict[int, Any]:
        """Return the answers of the probed clients."""
        clients = [int(client) for client in request.clients]  # type: ignore[call-overload]
        if request.kind == "loss":
            return {client: self.loss(client, request.step) for client in clients}
        return {client: self.update(client, request.step) for client in clients}


def check_selector(selector: Selector[Any], *, clients: int = 14, rounds: int = 6) -> None:
    """Raise a ContractError if `selector` breaks a rule of the contract. `clients` must be enough for its cohorts."""
    check_shape(selector)
    rule(
        getattr(selector, "rounds", True) and hasattr(selector, "select"),
        f"{selector.name} is asynchronous (it has decide() and works without rounds): check it with check_policy",
    )
    order = list(range(clients))
    for fleet in (
        ToyFleet(clients),
        ToyFleet(clients, seed=1, failing=0.3),
        ToyFleet(clients, seed=2, tied=True),
    ):
        for warmup in ("full", "lazy"):
            rule(
                len(list(fleet.play(fleet.session(selector, order, warmup=warmup), rounds))) == rounds,
                f"{selector.name} did not play {rounds} rounds",
            )
    _check_repeatable(selector, clients, rounds)
    _check_restored(selector, clients, rounds)
    _check_churn(selector, clients)
    _check_away(selector, clients)
    _check_relabelled(selector, clients)
    if selector.ignores_delays:
        _check_ignores_delays(selector, clients, rounds)


def check_delay_model(config: DelayConfig, *, clients: int = 50) -> None:
    """Raise a ContractError if a delay model breaks a rule of the contract."""
    one, two = (config.build(clients, model_bytes=10_000, seed=3) for _ in range(2))
    other = config.build(clients, model_bytes=10_000, seed=4)
    late, early = one.draw(7), one.draw(1)
    for what, values in (("expected()", one.expected()), ("draw(1)", early), ("draw(7)", late)):
        rule(values.shape == (clients,), f"{config.name}: {what} has shape {values.shape}, expected ({clients},)")
        rule(bool((np.isfinite(values) & (values >= 0)).all()), f"{config.name}: {what} is not finite or negative")
        rule(not values.flags.writeable, f"{config.name}: {what} can be written to")
    rule(np.array_equal(early, two.draw(1)), f"{config.name}: draw(1) depends on what was drawn before")
    rule(np.array_equal(one.expected(), two.expected()), f"{config.name}: one seed gave two expectations")
    varies = not np.array_equal(one.expected(), np.full(clients, one.expected()[0]))
    rule(
        not varies or not np.array_equal(one.expected(), other.expected()),
        f"{config.name}: two seeds gave the same delays",
    )


def rule(holds: bool, broken: str) -> None:
    """Raise a ContractError with the text `broken` unless `holds`."""
    if not holds:
        raise ContractError(broken)


def check_shape(selector: Any) -> None:
    """Check the class of a scheme: a frozen dataclass with a name, needs and a valid state."""
    rule(not isinstance(selector, type), f"give an object to check, with its options: {selector!r} is its class")
    cls = type(selector)
    rule(dataclasses.is_dataclass(selector), f"{cls.__name__} must be a dataclass: its fields are its configuration")
    rule(bool(cls.__dataclass_params__.frozen), f"{cls.__name__} must be a frozen dataclass")
    rule(isinstance(getattr(cls, "name", None), str) and bool(cls.name), f"{cls.__name__} must have a name")
    rule(
        isinstance(getattr(cls, "needs", None), frozenset) and all(isinstance(need, Need) for need in cls.needs),
        f"needs of {cls.name} must be a frozenset of Need",
    )
    check_traits(selector)
    rule(cls(**configuration(selector)) == selector, f"{cls.name} is not rebuilt from its own fields")
    state = selector.init()
    rule(_is_state(state), f"the state of {cls.name} must be None or a frozen dataclass of scalars")


def _is_state(state: Any) -> bool:
    """Return whether a session can save the state, and whether the state is immutable."""
    if state is None:
        return True
    parameters = getattr(type(state), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return False
    return all(_is_scalar(value) for value in configuration(state).values())


def _is_scalar(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_scalar(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _check_repeatable(selector: Selector[Any], clients: int, rounds: int) -> None:
    order = list(range(clients))
    first, second = (
        [_plain(s) for s in fleet.play(fleet.session(selector, order), rounds)]
        for fleet in (ToyFleet(clients, seed=5), ToyFleet(clients, seed=5))
    )
    rule(first == second, f"{selector.name} chose differently in two sessions of one seed")


def _check_restored(selector: Selector[Any], clients: int, rounds: int) -> None:
    fleet = ToyFleet(clients, seed=6, failing=0.2)
    session = fleet.session(selector, list(range(clients)))
    list(fleet.play(session, 3))
    with tempfile.TemporaryDirectory() as folder:
        session.save(folder)
        restored = Session.restore(folder, selector)
    expected = [_plain(s) for s in fleet.play(session, rounds)]
    rule(
        [_plain(s) for s in fleet.play(restored, rounds)] == expected,
        f"{selector.name} went on differently after save and restore: its state must hold all that it remembers",
    )


def _check_churn(selector: Selector[Any], clients: int) -> None:
    """Let clients join, and half of the first ones leave: the selector must not choose clients that left."""
    fleet = ToyFleet(3 * clients, seed=7)
    session = fleet.session(selector, list(range(clients)))
    list(fleet.play(session, 2))
    fleet.join(session, list(range(clients, 2 * clients)))
    list(fleet.play(session, 2))
    session.leave(range(0, clients, 2))
    for selection in fleet.play(session, 3):
        gone = [c for c in selection.clients if isinstance(c, int) and c < clients and c % 2 == 0]
        rule(not gone, f"{selector.name} chose clients that had left: {gone}")


def _check_away(selector: Selector[Any], clients: int) -> None:
    """Make other clients unavailable in each round: a scheme may choose only among `view.candidates`."""
    fleet = ToyFleet(clients, seed=10)
    session = fleet.session(selector, list(range(clients)))
    list(fleet.play(session, 2))
    by_speed = sorted(range(clients), key=fleet.delay)
    for turn in range(3):
        present = sorted(set(range(clients)) - set(by_speed[turn::3]))
        request = session.probe(available=present)
        if request is not None:
            session.answer(fleet.answers(request))
        try:
            selection = session.select(available=present)
        except InputError as cause:
            raise ContractError(f"with clients away (choose among view.candidates): {cause}") from cause
        members = [int(client) for client in selection.clients]  # type: ignore[call-overload]
        rule(set(members) <= set(present), f"{selector.name} chose clients that are away: choose among view.candidates")
        session.observe([fleet.outcome(client, selection.step) for client in members])


def _check_relabelled(selector: Selector[Any], clients: int) -> None:
    """Check that a scheme without random draws chooses the same clients for every order of joining."""
    fleet = ToyFleet(clients, seed=8)
    order = list(range(clients))
    straight = [_plain(s) for s in fleet.play(fleet.session(selector, order), 3)]
    reseeded = Session(selector, seed=99, shares="samples", offers=frozenset(Need))
    fleet.join(reseeded, order)
    if [_plain(s) for s in fleet.play(reseeded, 3)] != straight:
        return  # the scheme is random
    shuffled = stream(8, "relabel").permutation(clients).tolist()
    relabelled = [_plain(s) for s in fleet.play(fleet.session(selector, shuffled), 3)]
    rule(relabelled == straight, f"{selector.name} chose differently when the clients joined in another order")


def _check_ignores_delays(selector: Selector[Any], clients: int, rounds: int) -> None:
    """Check that a scheme with `ignores_delays` chooses the same clients under other delays."""
    rule(Need.DELAY not in selector.needs, f"{selector.name} cannot ignore delays and need them")
    played = []
    for pace in ("toy delay", "another pace"):
        fleet = ToyFleet(clients, seed=9, failing=0.2, pace=pace)
        played.append(list(fleet.play(fleet.session(selector, list(range(clients))), rounds)))
    for one, other in zip(*played, strict=True):
        whys = [(s.why.objective, s.why.status, dict(s.why.facts), dict(s.why.reasons)) for s in (one, other)]
        rule(
            _plain(one) == _plain(other) and bool((one.weights == other.weights).all()) and whys[0] == whys[1],
            f"{selector.name} says that it ignores delays, but other delays gave another selection {one.step}",
        )
        rule(math.isinf(one.deadline) and not one.quorum, f"{selector.name} ignores delays, but does not wait for all")


def _plain(selection: Selection) -> tuple[Any, ...]:
    """Return a selection as rounded plain values, in an order that does not depend on rows."""
    pairs = sorted(zip(selection.clients, selection.weights.round(9).tolist(), strict=True), key=repr)
    return selection.step, tuple(pairs), selection.mode, round(selection.deadline, 9)


@dataclass(frozen=True)
class SumSupport:
    """Whether a scheme works with sums, and what the server sees of single clients then."""

    name: str
    why_not: str
    """Why it does not work, and what to use instead; empty if it works."""
    sees: tuple[str, ...]
    """Facts about single clients that the scheme is told, besides which clients take part and when."""
    without: tuple[str, ...]
    """Facts that it uses with single updates, and does without here."""

    def row(self) -> str:
        """Return the line of the table in docs/appendix/schemes-with-sums.md."""
        if self.why_not:
            return f"| `{self.name}` | no: {self.why_not} | |"
        does_without = f"; does without {', '.join(self.without)}" if self.without else ""
        return f"| `{self.name}` | yes{does_without} | {', '.join(self.sees)} |"


def sum_support(name: str) -> SumSupport:
    """Return how the scheme registered as `name` works with sums."""
    scheme = make_selector(name)
    wanted = facts_wanted(scheme)
    told = wanted - {Need.UPDATE, Need.DELAY, Need.TARGETS}
    if scheme.reads_losses:
        told |= {Need.LOSS}
    without = [Need.UPDATE.value] if Need.UPDATE in scheme.uses else []
    if name == "pace":
        without.append("memory")
    return SumSupport(name, why_not_sums(scheme), tuple(sorted(need.value for need in told)), tuple(without))


def check_dataset(config: DataConfig) -> None:
    """Raise a ContractError if a data set breaks a rule of the contract."""
    name = getattr(config, "name", None)
    rule(isinstance(name, str) and bool(name), f"{type(config).__name__} must have a name")
    check_options(config)
    one, two, other = config.build(seed=3), config.build(seed=3), config.build(seed=4)
    rule(isinstance(one, FederatedData), f"{name}: build(seed=...) must return FederatedData")
    rule(one.metric == config.metric, f"{name} says its metric is {config.metric}, but its data have {one.metric}")
    rule(
        (one.classes is None) == (one.metric == "loss"),
        f"{name}: data with classes are judged by accuracy, others by loss",
    )
    for what, samples in [("the test data", one.test), *((f"client {c}", s) for c, s in enumerate(one.train))]:
        _check_samples(f"{name}: {what}", samples, one)
    same = all(_equal(a, b) for a, b in zip((*one.train, one.test), (*two.train, two.test), strict=True))
    rule(same, f"{name}: one seed gave two data sets: draw everything from fedpace.stream(seed, ...)")
    rule(
        (one.clients, one.input_shape, one.classes) == (other.clients, other.input_shape, other.classes),
        f"{name}: another seed gave other clients, inputs or classes: schemes could not be compared over seeds",
    )


def check_options(config: Any) -> None:
    """Raise a ContractError if a component is not a frozen dataclass, whose fields are its options."""
    cls = type(config)
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    rule(
        dataclasses.is_dataclass(config) and bool(frozen),
        f"{cls.__name__} must be a frozen dataclass: its fields are its options",
    )


def _check_samples(what: str, samples: Samples, data: FederatedData) -> None:
    rule(samples.inputs.shape[1:] == data.input_shape, f"{what} has inputs of shape {samples.inputs.shape[1:]}")
    wanted = np.float32 if data.classes is None else np.int64
    rule(samples.targets.dtype == wanted, f"{what}: targets are {samples.targets.dtype}, expected {np.dtype(wanted)}")
    rule(
        samples.inputs.dtype == np.float32 or np.issubdtype(samples.inputs.dtype, np.integer),
        f"{what}: inputs are {samples.inputs.dtype}, expected float32, or whole numbers for an embedding",
    )
    if data.classes is not None:
        labels = samples.targets
        rule(
            bool(labels.min() >= 0 and labels.max() < data.classes),
            f"{what}: classes lie in 0..{data.classes - 1}, but {labels.min()}..{labels.max()} came",
        )


def _equal(one: Samples, other: Samples) -> bool:
    return np.array_equal(one.inputs, other.inputs) and np.array_equal(one.targets, other.targets)
