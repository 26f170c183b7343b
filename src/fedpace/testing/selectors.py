"""What every selector and delay model must keep to.

The selector is driven through whole sessions by a toy fleet that joins, leaves, fails, lags and ties, and is saved and
restored in between. What does not hold is a ContractError that says which rule was broken.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import FedpaceError, InputError
from fedpace._base.rng import stream
from fedpace.core.roster import Roster
from fedpace.core.session import Session, Warmup
from fedpace.core.types import (
    DelayConfig,
    Need,
    Outcome,
    ProbeRequest,
    Selection,
    Selector,
    check_traits,
    configuration,
)

SKETCH = 6
FEATURES = 4
CLASSES = 3


class ContractError(FedpaceError, AssertionError):
    """A component breaks a rule of the contract."""


@dataclass(frozen=True, eq=False)
class ToyFleet:
    """Clients with fixed properties, keyed by the client's number so that relabelling can be tried.

    Args:
        clients: how many.
        seed: of their properties.
        tied: all delays alike.
        failing: fraction of a cohort that fails in each round.
        pace: names the draw of the delays, so that the same clients can be had with others.
    """

    clients: int
    seed: int = 0
    tied: bool = False
    failing: float = 0.0
    pace: str = "toy delay"

    def delay(self, client: int) -> float:
        """Seconds of a round."""
        return 10.0 if self.tied else float(np.exp(stream(self.seed, self.pace, client).normal(3.0, 1.0)))

    def samples(self, client: int) -> float:
        """Samples held."""
        return float(stream(self.seed, "toy samples", client).integers(1, 50))

    def labels(self, client: int) -> FloatArray:
        """Label histogram."""
        return stream(self.seed, "toy labels", client).integers(0, 9, CLASSES).astype(np.float64) + 1.0

    def moment(self, client: int) -> FloatArray:
        """Factor of the feature moment."""
        return stream(self.seed, "toy moment", client).normal(size=(8, FEATURES)) / math.sqrt(8)

    def update(self, client: int, step: int) -> FloatArray:
        """Sketch of an update."""
        return stream(self.seed, "toy update", client, step).normal(size=SKETCH)

    def loss(self, client: int, step: int) -> float:
        """Training loss, falling over the rounds."""
        return float(stream(self.seed, "toy loss", client).uniform(0.5, 2.0) / (1 + 0.1 * step))

    def outcome(self, client: int, step: int) -> Outcome:
        """What the client reports."""
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

    def join(self, session: Session | Roster, order: list[int]) -> None:
        """Let clients join with what a host knows from the start."""
        session.join(order, samples=[self.samples(c) for c in order], labels=np.array([self.labels(c) for c in order]))

    def play(self, session: Session, rounds: int) -> Iterator[Selection]:
        """Run rounds, warm-ups included in passing, and yield each selection after it was reported."""
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
        """What the probed clients answer."""
        clients = [int(client) for client in request.clients]  # type: ignore[call-overload]
        if request.kind == "loss":
            return {client: self.loss(client, request.step) for client in clients}
        return {client: self.update(client, request.step) for client in clients}


def check_selector(selector: Selector[Any], *, clients: int = 14, rounds: int = 6) -> None:
    """Raise a ContractError where `selector` breaks a rule. `clients` must allow its cohort size."""
    check_shape(selector)
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
    """Raise a ContractError where a delay model breaks a rule."""
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
    """Raise a ContractError where a rule does not hold."""
    if not holds:
        raise ContractError(broken)


def check_shape(selector: Any) -> None:
    """Hold a scheme to how its class must look."""
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
    """Whether a session can save it, and nobody can change it behind the session's back."""
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
    """Half of the fleet leaves, others join: the selector must not notice."""
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
    """Others are away in each round, and the fastest among them: a scheme may choose `view.candidates` only."""
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
    """A scheme that draws nothing must choose the same clients in whatever order they joined."""
    fleet = ToyFleet(clients, seed=8)
    order = list(range(clients))
    straight = [_plain(s) for s in fleet.play(fleet.session(selector, order), 3)]
    reseeded = Session(selector, seed=99, shares="samples", offers=frozenset(Need))
    fleet.join(reseeded, order)
    if [_plain(s) for s in fleet.play(reseeded, 3)] != straight:
        return  # it is random
    shuffled = stream(8, "relabel").permutation(clients).tolist()
    relabelled = [_plain(s) for s in fleet.play(fleet.session(selector, shuffled), 3)]
    rule(relabelled == straight, f"{selector.name} chose differently when the clients joined in another order")


def _check_ignores_delays(selector: Selector[Any], clients: int, rounds: int) -> None:
    """What claims to look neither at delays nor at time must choose the same whatever they are."""
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
    """A selection as plain values, in an order that does not depend on rows, and to rounding."""
    pairs = sorted(zip(selection.clients, selection.weights.round(9).tolist(), strict=True), key=repr)
    return selection.step, tuple(pairs), selection.mode, round(selection.deadline, 9)
