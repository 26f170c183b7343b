"""The contract checks are worth something only if they catch what they are for: one broken component for each rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import fedpace
from fedpace import Cohort, FedpaceError, Need
from fedpace.core.types import Stateless
from fedpace.delays.lognormal import LognormalDelays
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.selectors.random import Random
from fedpace.testing import ContractError, ToyFleet, check_delay_model, check_selector
from fedpace.testing.policy_checks import _transport


def even(rows):
    return Cohort(rows, np.full(len(rows), 1 / len(rows)))


@dataclass(frozen=True)
class Good(Stateless):
    name: ClassVar[str] = "good"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DELAY})

    k: int = 3

    def select(self, state, view, rng):
        rows = view.candidates
        return even(rows[np.lexsort((view.share[rows], view.delay[rows]))][: self.k]), state


@dataclass(frozen=True)
class Memory:
    seen: int = 0


@dataclass(frozen=True)
class GoodWithState(Good):
    name: ClassVar[str] = "good-with-state"

    def init(self):
        return Memory()

    def select(self, state, view, rng):
        return super().select(None, view, rng)[0], Memory(state.seen + 1)

    def observe(self, state, report):
        return state


@pytest.mark.parametrize("selector", [Good(), GoodWithState(), Random(k=3), DelayhetSubmodular()], ids=repr)
def test_good_selectors_pass(selector):
    check_selector(selector, clients=8, rounds=3)


# -- shape -------------------------------------------------------------------------------------------------


class Plain(Stateless):
    name = "plain"
    needs = frozenset()


@dataclass
class Thawed(Stateless):
    name: ClassVar[str] = "thawed"
    needs: ClassVar[frozenset[Need]] = frozenset()


@dataclass(frozen=True)
class Nameless(Good):
    name: ClassVar[Any] = None


@dataclass(frozen=True)
class Listing(Good):
    needs: ClassVar[Any] = [Need.DELAY]


@dataclass(frozen=True)
class Wordy(Good):
    needs: ClassVar[Any] = frozenset({"delays"})


@dataclass(frozen=True)
class Twisted(Good):
    def __post_init__(self):
        object.__setattr__(self, "k", self.k + 1)


@dataclass(frozen=True)
class ListState(GoodWithState):
    def init(self):
        return [0]


@dataclass
class Loose:
    seen: int = 0


@dataclass(frozen=True)
class LooseState(GoodWithState):
    def init(self):
        return Loose()


@dataclass(frozen=True)
class Wide:
    seen: Any = field(default_factory=lambda: np.zeros(4))


@dataclass(frozen=True)
class ArrayState(GoodWithState):
    def init(self):
        return Wide()


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (Plain(), "Plain must be a dataclass: its fields are its configuration"),
        (Thawed(), "Thawed must be a frozen dataclass"),
        (Nameless(), "Nameless must have a name"),
        (Listing(), "needs of good must be a frozenset of Need"),
        (Wordy(), "needs of good must be a frozenset of Need"),
        (Twisted(), "good is not rebuilt from its own fields"),
        (ListState(), "the state of good-with-state must be None or a frozen dataclass of scalars"),
        (LooseState(), "the state of good-with-state must be None or a frozen dataclass of scalars"),
        (ArrayState(), "the state of good-with-state must be None or a frozen dataclass of scalars"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_shapes(selector, words):
    with pytest.raises(ContractError, match=words):
        check_selector(selector, clients=8, rounds=3)


# -- behaviour ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hidden(Good):
    """Keeps a counter outside of its state."""

    calls: ClassVar[list[int]] = []

    def select(self, state, view, rng):
        self.calls.append(1)
        shift = len(self.calls) % 2
        rows = view.candidates
        return even(rows[np.argsort(view.delay[rows])][shift : shift + self.k]), state


@dataclass(frozen=True)
class Cheating(Good):
    """Starts its hidden memory afresh in every session, so that two sessions of one seed agree."""

    memory: ClassVar[dict[str, int]] = {}

    def select(self, state, view, rng):
        if view.step == 0:
            self.memory["shift"] = 0
        self.memory["shift"] += 1
        shift = self.memory["shift"] % 4
        rows = view.candidates
        return even(rows[np.argsort(view.delay[rows])][shift : shift + self.k]), state


@dataclass(frozen=True)
class Unseeded(Good):
    """Draws from a generator of its own."""

    def select(self, state, view, rng):
        return even(np.random.default_rng().choice(view.candidates, self.k, replace=False)), state


@dataclass(frozen=True)
class FirstComeFirst(Good):
    """Takes rows as they joined."""

    def select(self, state, view, rng):
        return even(view.candidates[: self.k]), state


@dataclass(frozen=True)
class Remembering(Good):
    """Holds on to rows, which move when clients leave."""

    rows: ClassVar[dict[str, Any]] = {}

    def select(self, state, view, rng):
        if view.step == 0:
            self.rows["first"] = view.candidates[np.argsort(view.delay[view.candidates])][: self.k]
        return even(self.rows["first"]), state


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (Hidden(), "chose differently in two sessions of one seed"),
        (Cheating(), "went on differently after save and restore: its state must hold all that it remembers"),
        (Unseeded(), "chose differently in two sessions of one seed"),
        (FirstComeFirst(), "chose differently when the clients joined in another order"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_behaviour(selector, words):
    with pytest.raises(ContractError, match=words):
        check_selector(selector, clients=9, rounds=3)


@dataclass(frozen=True)
class Overweight(Good):
    def select(self, state, view, rng):
        return Cohort(view.candidates[:1], [1.1]), state


@dataclass(frozen=True)
class Absent(Good):
    """Chooses among everybody, known or not."""

    def select(self, state, view, rng):
        return even(np.arange(view.clients)), state


@dataclass(frozen=True)
class Scribbling(Good):
    def select(self, state, view, rng):
        view.delay[0] = 0.0
        return super().select(state, view, rng)


@pytest.mark.parametrize(
    ("selector", "kind"), [(Overweight(), FedpaceError), (Absent(), FedpaceError), (Scribbling(), ValueError)]
)
def test_bad_cohorts_are_caught_too(selector, kind):
    with pytest.raises(kind):
        check_selector(selector, clients=9, rounds=3)


def test_rows_that_are_remembered_are_caught():
    with pytest.raises(FedpaceError):
        check_selector(Remembering(), clients=9, rounds=3)


# -- the fleet ---------------------------------------------------------------------------------------------


def test_the_toy_fleet_is_keyed_by_client():
    fleet, larger = ToyFleet(3), ToyFleet(9)
    assert fleet.delay(1) == larger.delay(1) != fleet.delay(2)
    assert ToyFleet(3, tied=True).delay(1) == ToyFleet(3, tied=True).delay(2)
    failed = [ToyFleet(50, failing=0.3).outcome(client, 0).finished for client in range(50)]
    assert 5 < failed.count(False) < 30


# -- delay models ------------------------------------------------------------------------------------------


class Model:
    def __init__(self, mean, draws):
        self._mean, self._draws = mean, draws

    def expected(self):
        return self._mean

    def draw(self, step):
        return self._draws(step)


def frozen(values):
    array = np.asarray(values, dtype=float)
    array.setflags(write=False)
    return array


@dataclass
class Delays:
    make: Any
    name: ClassVar[str] = "toy"

    def build(self, clients, *, model_bytes, seed):
        return self.make(clients, seed)


def remembering(clients, seed):
    calls = []

    def draw(step):
        calls.append(step)
        return frozen(np.full(clients, len(calls) + 0.5))

    return Model(frozen(np.arange(clients) + seed), draw)


def constant(value):
    return lambda clients, seed: Model(frozen(np.full(clients, 1.0)), lambda step: frozen(np.full(clients, value)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (remembering, r"draw\(1\) depends on what was drawn before"),
        (constant(math.nan), r"draw\(1\) is not finite or negative"),
        (constant(-1.0), r"draw\(1\) is not finite or negative"),
        (lambda n, s: Model(frozen(np.ones(n)), lambda _: np.ones(n)), r"draw\(1\) can be written to"),
        (lambda n, s: Model(frozen(np.ones(n - 1)), lambda _: frozen(np.ones(n))), r"expected\(\) has shape \(49,\)"),
        (
            lambda n, s: Model(frozen(np.arange(n)), lambda _: frozen(np.arange(n))),
            "two seeds gave the same delays",
        ),
        (
            lambda n, s: Model(frozen(np.random.default_rng().random(n)), lambda _: frozen(np.ones(n))),
            "one seed gave two expectations",
        ),
    ],
)
def test_bad_delay_models(make, words):
    with pytest.raises(ContractError, match=words):
        check_delay_model(Delays(make))


def test_good_delay_models_pass():
    check_delay_model(LognormalDelays())
    check_delay_model(Delays(constant(1.0)))


# -- what a beginner does ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heedless(Good):
    """Forgets that clients may be away."""

    def select(self, state, view, rng):
        return even(np.argsort(view.delay, kind="stable")[: self.k]), state


@dataclass(frozen=True)
class CohortAlone(Good):
    def select(self, state, view, rng):
        return super().select(state, view, rng)[0]


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        (Heedless(), r"with clients away \(choose among view\.candidates\)"),
        (CohortAlone(), r"select of good must return a Cohort and its state, \(cohort, None\), but Cohort came"),
        (Good, "give an object to check"),
    ],
)
def test_slips_of_a_first_scheme_are_named(selector, sentence):
    with pytest.raises(FedpaceError, match=sentence):
        check_selector(selector, clients=8, rounds=3)


def test_an_asynchronous_scheme_is_sent_to_check_policy():
    with pytest.raises(ContractError, match="check it with check_policy"):
        check_selector(fedpace.make_selector("fedbuff"), clients=8, rounds=3)


@dataclass(frozen=True)
class Restarting(Stateless):
    """Gives up every task in flight with each step, and starts its client again with the new model."""

    name: ClassVar[str] = "restarting"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    def decide(self, state, view, rng):
        hand = view.in_hand
        if not len(hand):
            start = view.candidates
            return fedpace.Move(start, np.zeros(start.size), wait=fedpace.Wait(1)), None
        start = np.union1d(view.candidates, view.in_flight.clients)
        apply = fedpace.Apply(hand.ids, np.full(len(hand), 1 / len(hand)))
        move = fedpace.Move(start, np.zeros(start.size), apply=apply, drop=view.in_flight.ids, wait=fedpace.Wait(1))
        return move, None


def test_a_policy_may_drop_and_restart_a_client_in_one_move():
    transport = _transport(Restarting(), ToyFleet(6))
    assert len(transport.play(5)) == 5
