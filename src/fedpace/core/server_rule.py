"""The server step, for every host: how the weighted answers of clients change the shared model.

    gathered = Gather(rule, model, zero)             # zero: float64 zeros of the model's length
    for trained, weight in answers:
        gathered.add(trained, model, weight)         # the trained model, the model that was sent, the weight
    model, state = rule.apply(state, model, gathered.answers())

A model is one flat vector: a torch tensor in the simulator, a NumPy array for servers with named arrays
(`fedpace.hosting.shared_model`). Rules use only the operators +, -, *, /, ** and @, which work for both. `Gather` adds
answers one by one, so the models of a cohort are not in memory together, unless a rule needs each update.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.numerics.parts import LARGE, in_parts, inner
from fedpace.trust.robust import Combined

SingleArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
Vector = Any
"""A flat NumPy array or torch tensor."""
Part = Literal["models", "mixture", "squares", "rows", "slices", "corrected", "sources"]
"""What a rule takes from the answers, beside sum a_i u_i. `models`: the average of the models instead, if the weights
sum to 1 and no answer is stale. `mixture`: sum a_i x_i instead, also for stale answers. `squares`: the mean square of
the updates. `rows`: each update. `slices`: the rule reads the rows of large models part by part (`Update`).
`corrected`: the rule corrects updates before it combines them, and combines them with `Answers.combine` if that is
given. `sources`: client, model version, work and local steps of each answer; `rows` includes them."""

S = TypeVar("S")

Combine = Callable[[FloatArray, FloatArray], Combined]
"""Function: (k, d) updates and (k,) weights -> their robust aggregate."""
ShareOf = Callable[[Any], float | None]
"""Function: client -> its weight in the objective; None if it has left."""


class Source(NamedTuple):
    """The origin of an answer, for rules with a memory of each client."""

    client: Any
    version: int
    """Version of the model that the client trained from."""
    share: float
    """The client's weight in the objective."""
    work: float = 1.0
    """How much the client trained (`Task.work`)."""
    steps: float = math.nan
    """Number of local steps that the client made; NaN = the host does not know it."""


class Update:
    """The update of one client, as the difference of two models: `update[a:b]` computes a part, in their precision.

    So the server holds no copy of it. `np.asarray(update)` is the whole update in double precision.
    """

    def __init__(self, trained: Vector, sent: Vector) -> None:
        self._trained, self._sent = np.asarray(trained), np.asarray(sent)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._trained)

    def __getitem__(self, part: slice) -> FloatArray:
        """Return a part of the update."""
        found: FloatArray = self._trained[part] - self._sent[part]
        return found

    def length(self) -> float:
        """Return the Euclidean length."""

        def square(part: slice) -> float:
            values = np.subtract(self._trained[part], self._sent[part], dtype=np.float64)
            return inner(values, values)

        return math.sqrt(sum(in_parts(square, len(self))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole update."""
        found: NDArray[Any] = np.subtract(self._trained, self._sent, dtype=np.float64 if dtype is None else dtype)
        return found


class WeightedSum:
    """sum a_i u_i of the updates of a large model, computed by `np.asarray`: some rules never need it."""

    def __init__(self, updates: Sequence[Update], weights: Sequence[float], length: int) -> None:
        self._updates, self._weights, self.shape = updates, weights, (length,)

    def measured(self, into: NDArray[Any] | None = None) -> tuple[NDArray[Any], float]:
        """Return the sum, and sum a_i |u_i|^2. The sum is in double precision, or in that of `into`, which it fills."""
        total = np.empty(self.shape) if into is None else into

        def add(part: slice) -> float:
            found, square = np.zeros(len(total[part])), 0.0
            for update, weight in zip(self._updates, self._weights, strict=True):
                if weight:
                    values = update[part]
                    found += weight * values
                    square += weight * inner(values, values)
            total[part] = found
            return square

        return total, sum(in_parts(add, *self.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the sum."""
        return self.measured()[0].astype(np.float64 if dtype is None else dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Answers:
    """The updates u_i = x_i - sent of the clients and their weights a_i, which sum to 1 except in mode `delta`."""

    step: Vector
    """sum a_i u_i in double precision; equal to `average` for rules that take `models` or `mixture` instead. If the
    model is large and the rule takes `slices`, a `WeightedSum`, and the rule also measures `mean_square` itself."""
    weights: FloatArray
    """(k,) a_i."""
    average: Vector | None = None
    """sum a_i x_i: for a rule that takes `models`, if the weights sum to 1 and no answer is stale; for a rule that
    takes `mixture`, always. None otherwise."""
    mean_square: float = 0.0
    """sum a_i |u_i|^2, for a rule that takes `squares`."""
    rows: tuple[Vector, ...] = ()
    """Each u_i in double precision, for a rule that takes `rows`; an `Update` if the model is large and the rule takes
    `slices` too."""
    sources: tuple[Source, ...] = ()
    """Origin of each answer, if the host knows it."""
    version: int = 0
    """Version of the model that the step starts from."""
    awaited: frozenset[int] | None = None
    """Versions of the model that answers may still come from; None = unknown."""
    share_of: ShareOf | None = None
    """Gives the current weight of a client in the objective; None = unknown."""
    facts: Mapping[str, float | FloatArray] = field(default_factory=dict)
    """What the policy tells the rule (`Apply.facts`): name -> a number about the step, or (k,) one per answer."""
    combine: Combine | None = None
    """The robust combination for a rule that takes `corrected`; None = use the weighted sum."""
    clients: int | None = None
    """Number of clients in the objective; None = unknown."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Vectors in a rule's state, such as one per client. A step replaces a few and shares the others without a copy.

    They are in single precision to save memory, or stored in fewer bits (`fedpace.numerics.quantised`), all in the same
    form. On disk they are one table.
    """

    empty: Vector
    """(0, d) an empty table of the right array type (NumPy or torch)."""
    rows: tuple[SingleArray | ByteArray, ...] = ()

    @classmethod
    def none(cls, zero: Vector) -> Stack:
        """Return a stack without rows, for vectors as long as `zero`."""
        return cls(like(zero, np.zeros((0, zero.shape[0]))))

    def of(self, rows: Iterable[NDArray[Any]]) -> Stack:
        """Return a stack of the same type with these rows; bytes are taken as stored rows and kept as they are."""
        kept = [np.asarray(row, dtype=None if row.dtype == np.uint8 else np.float32) for row in list(rows)]
        return Stack(self.empty, tuple(kept))

    def table(self) -> Vector:
        """(m, d) the rows as one table of the model's array type; use it in a rule's arithmetic."""
        return like(self.empty, np.array(self.rows)) if self.rows else self.empty

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, d), or (m, bytes) if the rows are stored in fewer bits."""
        return (len(self.rows), *self.rows[0].shape) if self.rows else tuple(self.empty.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the rows."""
        return self.rows[0].dtype if self.rows else np.asarray(self.empty).dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the rows as one table."""
        return np.array(self.rows, dtype=dtype) if self.rows else np.asarray(self.empty, dtype=dtype)


@runtime_checkable
class ServerRule(Protocol[S]):
    """A server rule: a frozen dataclass with its options as fields.

    Its state is None or a dataclass of scalars, vectors and stacks.
    """

    name: ClassVar[str]
    takes: ClassVar[frozenset[Part]]

    def init(self, zero: Vector) -> S:
        """Return the state before the first step; `zero` is a vector of zeros in double precision."""

    def apply(self, state: S, model: Vector, answers: Answers) -> tuple[Vector, S]:
        """Return the next model, in double precision, and the new state.

        The model of a large model may have the precision of `model`. A rule may write into the vectors of the `state`
        of a large model; go on with the state that it returns.
        """


class Gather:
    """Adds up the answers of a step one by one.

    Args:
        rule: its `takes` says what to gather.
        zero: zeros of the model's length, in double precision; changed in place.
        mean: whether the weights sum to 1 and no answer is stale. The models themselves can then be averaged, and the
            average of equal models is exactly that model.
        keep: keep every update, even if the rule does not take `rows`.
    """

    def __init__(self, rule: ServerRule[Any], zero: Vector, *, mean: bool = True, keep: bool = False) -> None:
        self._models = not keep and ((mean and "models" in rule.takes) or "mixture" in rule.takes)
        self._squares = "squares" in rule.takes
        self._keeps = keep or "rows" in rule.takes
        self._length = zero.shape[0]
        self._slices = "slices" in rule.takes and self._length > LARGE and not self._models
        self._total: Vector = None if self._slices else zero  # nothing is added up then, and zeros take memory
        self._in_place = hasattr(zero, "add_")
        self._mean_square = 0.0
        self._weights: list[float] = []
        self._rows: list[Vector] = []
        self._sources: list[Source] = []

    def add(self, trained: Vector, sent: Vector, weight: float, source: Source | None = None) -> None:
        """Add an answer: the trained model, the model that the client received, and the weight."""
        self._weights.append(weight)
        if source is not None:
            self._sources.append(source)
        if self._models:
            self._add(trained, weight)
            return
        if self._slices:
            self._rows.append(Update(trained, sent))  # the two models instead of a copy; nothing is computed yet
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
        """Return the gathered answers; None if all weights are 0, and the model does not change.

        Args:
            version: version of the model that the step starts from.
            awaited: see `Answers.awaited`.
            share_of: see `Answers.share_of`.
        """
        weights = np.array(self._weights)
        if not weights.any():
            return None
        average = self._total if self._models else None
        rows, sources = tuple(self._rows), tuple(self._sources)
        total = WeightedSum(rows, self._weights, self._length) if self._slices else self._total
        return Answers(total, weights, average, self._mean_square, rows, sources, version, awaited, share_of)


def double(vector: Vector) -> Vector:
    """Return the vector in double precision."""
    return vector.double() if hasattr(vector, "double") else np.asarray(vector, dtype=np.float64)


def norm(vector: Vector) -> float:
    """Return the Euclidean length."""
    return math.sqrt(float(vector @ vector))


def like(vector: Vector, values: FloatArray) -> Vector:
    """Return `values` as the array type of `vector` (NumPy or torch), for rules that need more than operators."""
    return vector.new_tensor(values) if hasattr(vector, "new_tensor") else np.asarray(values, dtype=np.float64)


def same(vector: Vector, values: NDArray[Any]) -> Vector:
    """Return `values` as the array type of `vector` (NumPy or torch), without a copy; they share their memory."""
    return sys.modules["torch"].from_numpy(values) if hasattr(vector, "new_tensor") else values


# -- states on disk ------------------------------------------------------------------------------------------------


def split_state(state: Any) -> tuple[dict[str, Any], dict[str, Vector]]:
    """Return a rule's state as name -> scalar and name -> vector or stack, for saving without a copy."""
    if state is None:
        return {}, {}
    if not is_dataclass(state) or isinstance(state, type):
        raise InputError(f"the state of a server step must be None or a dataclass, not a {type(state).__name__}")
    parts = {item.name: getattr(state, item.name) for item in fields(state)}
    vectors = {name: value for name, value in parts.items() if hasattr(value, "shape")}
    return {name: value for name, value in parts.items() if name not in vectors}, vectors


def join_state(initial: Any, scalars: dict[str, Any], vectors: dict[str, Vector]) -> Any:
    """Return the state from the parts that `split_state` returned; `initial` is the result of the rule's `init`."""
    if initial is None:
        return None
    known = {item.name for item in fields(initial)}
    if {*scalars, *vectors} != known:
        raise InputError(
            f"expected {sorted(known)} in the saved state of the server step, but {sorted({*scalars, *vectors})} came: "
            "it was saved with another rule"
        )
    stacks = {
        name: empty.of(value.rows if isinstance(value := vectors[name], Stack) else np.asarray(value))
        for name in vectors
        if isinstance(empty := getattr(initial, name), Stack)
    }
    return replace(initial, **{**scalars, **vectors, **stacks})


def step_notes(state: Any) -> dict[str, Any]:
    """Return what a rule says about its last step, for the record and the log: the property `notes` of its state."""
    return dict(getattr(state, "notes", {}))


def step_facts(state: Any) -> dict[str, Any]:
    """Return name -> number for all numbers in a rule's state, for the record of a step."""
    if state is None:
        return {}
    parts = {item.name: getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in parts.items() if isinstance(value, int | float)}
