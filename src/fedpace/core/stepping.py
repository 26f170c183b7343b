"""The server step: what the clients' weighted answers do to the shared model. One implementation for every host.

    gathered = Gather(rule, model, zero)             # zero: float64 zeros of the model's length
    for trained, weight in answers:
        gathered.add(trained, model, weight)         # the trained model, the one that was sent, its weight
    model, state = rule.apply(state, model, gathered.answers())

A model is one flat vector: a torch tensor in the simulator, a NumPy array for servers that keep named arrays
(`fedpace.hosting.shared_model`). Rules use operators only (+, -, *, /, **, @), which both understand, and neither
library is named here. Answers are added as they come, so that a cohort's models need not be in memory together, unless
a rule wants to see each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.migrations import FORMER_FIELDS, LATER_FIELDS, current_name
from fedpace.trust.robust import Combined

SingleArray = NDArray[np.float32]
Vector = Any
"""A flat NumPy array or torch tensor."""
Part = Literal["models", "mixture", "squares", "rows", "corrected"]
"""What a rule wants: in place of sum a_i u_i the average of the models themselves, where it is one, or sum a_i x_i
however old they are; beside it the updates' mean square, or each update. `corrected`: the rule corrects updates before
it combines them, and lets `Answers.combine` do that where it is given."""

S = TypeVar("S")

Combine = Callable[[FloatArray, FloatArray], Combined]
"""(k, d) updates and (k,) weights -> their robust aggregate."""
ShareOf = Callable[[Any], float | None]
"""Client -> its weight in the objective; None where it has left, or is excluded."""


class Source(NamedTuple):
    """Where an answer is from, for rules that remember what clients sent."""

    client: Any
    version: int
    """Of the model that it was made from."""
    share: float
    """The client's weight in the objective."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What the clients sent, u_i = trained - sent, and a_i their weights: they sum to 1 except in mode `delta`."""

    step: Vector
    """sum a_i u_i, in double precision."""
    weights: FloatArray
    """(k,) a_i."""
    average: Vector | None = None
    """sum a_i x_i: for a rule that takes `models`, where all answers are averaged and none is stale; for one that takes
    `mixture`, always."""
    mean_square: float = 0.0
    """sum a_i |u_i|^2, for a rule that takes `squares`."""
    rows: tuple[Vector, ...] = ()
    """Each u_i in double precision, for a rule that takes `rows`."""
    sources: tuple[Source, ...] = ()
    """Of each of these, where the host knows."""
    version: int = 0
    """Of the model that the step starts from."""
    awaited: frozenset[int] | None = None
    """Versions of the model that clients still train from, where the host knows."""
    share_of: ShareOf | None = None
    """What a client weighs in the objective by now, where the host knows."""
    combine: Combine | None = None
    """How a rule that takes `corrected` combines the updates that it has corrected; None = by the weights."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Vectors of which a step replaces a few: a state shares the others with the one before, and copies none.

    There may be one per client, so they are in single precision; on disk they are one table.
    """

    empty: Vector
    """(0, d) a table of no rows, which says what kind of arrays tables of this state are."""
    rows: tuple[SingleArray, ...] = ()

    @classmethod
    def none(cls, zero: Vector) -> Stack:
        """Return a stack without rows, for vectors as long as `zero`."""
        return cls(like(zero, np.zeros((0, zero.shape[0]))))

    def of(self, rows: Iterable[NDArray[Any]]) -> Stack:
        """Return a stack with other rows."""
        return Stack(self.empty, tuple(np.asarray(row, dtype=np.float32) for row in rows))

    def table(self) -> Vector:
        """(m, d) the rows."""
        return like(self.empty, np.array(self.rows)) if self.rows else self.empty


@runtime_checkable
class ServerStep(Protocol[S]):
    """A rule: a frozen dataclass whose fields are its options. Its state is a dataclass of scalars, vectors, stacks."""

    name: ClassVar[str]
    takes: ClassVar[frozenset[Part]]

    def init(self, zero: Vector) -> S:
        """Return the state before the first step; `zero` is a vector of zeros in double precision."""
        ...

    def apply(self, state: S, model: Vector, answers: Answers) -> tuple[Vector, S]:
        """Return the next model, in double precision, and the state."""
        ...


class Gather:
    """Adds answers up as they come.

    Args:
        rule: says what it takes.
        zero: zeros of the model's length, in double precision.
        mean: whether the weights sum to 1 and no answer is stale, so that the models themselves can be averaged: the
            average of equal models is then that model to the last bit.
        keep: keep every update, whatever the rule takes.
    """

    def __init__(self, rule: ServerStep[Any], zero: Vector, *, mean: bool = True, keep: bool = False) -> None:
        self._models = not keep and ((mean and "models" in rule.takes) or "mixture" in rule.takes)
        self._squares = "squares" in rule.takes
        self._keeps = keep or "rows" in rule.takes
        self._total = zero
        self._in_place = hasattr(zero, "add_")
        self._mean_square = 0.0
        self._weights: list[float] = []
        self._rows: list[Vector] = []
        self._sources: list[Source] = []

    def add(self, trained: Vector, sent: Vector, weight: float, source: Source | None = None) -> None:
        """Add an answer: the trained model, and the one that it was made from."""
        self._weights.append(weight)
        if source is not None:
            self._sources.append(source)
        if self._models:
            self._add(trained, weight)
            return
        update = double(trained) - sent
        self._add(update, weight)
        if self._squares:
            self._mean_square += weight * float(update @ update)
        if self._keeps:
            self._rows.append(update)

    def _add(self, vector: Vector, weight: float) -> None:
        if self._in_place:  # torch, in one pass
            self._total.add_(vector, alpha=weight)
        else:
            self._total += weight * double(vector)

    def answers(
        self, version: int = 0, awaited: frozenset[int] | None = None, share_of: ShareOf | None = None
    ) -> Answers | None:
        """Return what came; None where nothing did that counts, and the model stays as it is."""
        weights = np.array(self._weights)
        if not weights.any():
            return None
        average = self._total if self._models else None
        rows, sources = tuple(self._rows), tuple(self._sources)
        return Answers(self._total, weights, average, self._mean_square, rows, sources, version, awaited, share_of)


def double(vector: Vector) -> Vector:
    """Return it in double precision."""
    return vector.double() if hasattr(vector, "double") else np.asarray(vector, dtype=np.float64)


def norm(vector: Vector) -> float:
    """Return the Euclidean length."""
    return math.sqrt(float(vector @ vector))


def like(vector: Vector, values: FloatArray) -> Vector:
    """Return `values` as what `vector` is: for rules that need more than operators."""
    return vector.new_tensor(values) if hasattr(vector, "new_tensor") else np.asarray(values, dtype=np.float64)


# -- states on disk ------------------------------------------------------------------------------------------------


def split_state(state: Any) -> tuple[dict[str, Any], dict[str, Vector]]:
    """Return a rule's state as scalars and vectors, each by its name."""
    if state is None:
        return {}, {}
    if not is_dataclass(state) or isinstance(state, type):
        raise InputError(f"the state of a server step must be None or a dataclass, not a {type(state).__name__}")
    parts = {item.name: getattr(state, item.name) for item in fields(state)}
    vectors = {
        name: value.table() if isinstance(value, Stack) else value
        for name, value in parts.items()
        if hasattr(value, "shape") or isinstance(value, Stack)
    }
    return {name: value for name, value in parts.items() if name not in vectors}, vectors


def join_state(initial: Any, scalars: dict[str, Any], vectors: dict[str, Vector]) -> Any:
    """Return the state that `split_state` took apart; `initial` is what the rule's `init` gives."""
    if initial is None:
        return None
    known = {item.name for item in fields(initial)}
    scalars = {current_name(name): value for name, value in scalars.items()}
    scalars = {name: value for name, value in scalars.items() if name in known or name not in FORMER_FIELDS}
    vectors = {current_name(name): value for name, value in vectors.items()}
    if not known - LATER_FIELDS <= {*scalars, *vectors} <= known:
        raise InputError(
            f"expected {sorted(known)} in the saved state of the server step, but {sorted({*scalars, *vectors})} came: "
            "it was saved with another rule"
        )
    stacks = {
        name: empty.of(np.asarray(vectors[name]))
        for name in vectors
        if isinstance(empty := getattr(initial, name), Stack)
    }
    return replace(initial, **{**scalars, **vectors, **stacks})


def step_facts(state: Any) -> dict[str, Any]:
    """Return the numbers of a state: what a record says of a step."""
    if state is None:
        return {}
    parts = {item.name: getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in parts.items() if isinstance(value, int | float)}
