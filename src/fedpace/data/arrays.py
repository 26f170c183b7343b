"""`data_from_arrays` makes a data set from a user's arrays, tensors or lists, one pair (X, y) per client.

Such a data set has no registered name. Its record holds only sizes and a digest, so runs can be told apart, but only
the program that has the arrays can resume them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedpace._base.errors import InputError
from fedpace.data.federated import FederatedData, Metric, Samples

Array = NDArray[Any]
Problem = Literal["classification", "regression"]
OWN = "own"
"""Name of a user's own data and models in records."""


@dataclass(frozen=True)
class ArrayData:
    """A user's arrays as a data set, the same under every seed, from `data_from_arrays`. The fields describe it."""

    name: ClassVar[str] = OWN

    clients: int
    samples: int
    test_samples: int
    input_shape: tuple[int, ...]
    metric: Metric
    digest: str

    def build(self, *, seed: int) -> FederatedData:
        """Return the data."""
        return cast("FederatedData", self.__dict__["federated"])


def data_from_arrays(
    clients: Sequence[Any] | Mapping[Any, Any],
    test: Any,
    *,
    task: Problem,
    classes: int | None,
    tokens: bool = False,
    names: tuple[str, ...] | None = None,
) -> ArrayData:
    """Return a data set of pairs (X, y), checked and converted to the types that models are trained on.

    Args:
        clients: one pair per client.
        test: one pair, or one pair per client.
        task: `classification` or `regression`.
        classes: number of classes; None for regression.
        tokens: whether inputs are integers for an embedding.
        names: names of the clients; None = their numbers.
    """
    train = [_samples(pair, f"client {at}", task, classes, tokens) for at, pair in enumerate(listed(clients))]
    tests = [_samples(pair, what, task, classes, tokens) for what, pair in _tests(test, len(train))]
    shape = train[0].inputs.shape[1:]
    for what, samples in [
        *((f"client {at}", samples) for at, samples in enumerate(train)),
        *(("the test data", samples) for samples in tests),
    ]:
        if samples.inputs.shape[1:] != shape:
            raise InputError(
                f"one input of client 0 has shape {shape}, but one of {what} has {samples.inputs.shape[1:]}: "
                "give all of them the same"
            )
    whole = Samples(np.concatenate([t.inputs for t in tests]), np.concatenate([t.targets for t in tests]))
    federated = FederatedData(
        name=OWN,
        train=tuple(train),
        test=whole,
        classes=classes,
        metric="loss" if classes is None else "accuracy",
        test_sizes=tuple(len(t) for t in tests) if len(tests) > 1 else None,
        names=names,
    )
    found = ArrayData(
        clients=len(train),
        samples=sum(len(samples) for samples in train),
        test_samples=len(whole),
        input_shape=tuple(shape),
        metric=federated.metric,
        digest=_digest([*train, whole]),
    )
    found.__dict__["federated"] = federated  # not a field, because fields go into the record
    return found


def listed(clients: Any) -> list[Any]:
    """Return the clients' pairs as a list."""
    if isinstance(clients, Mapping):
        clients = clients.values()
    if isinstance(clients, str | bytes) or not hasattr(clients, "__iter__") or getattr(clients, "ndim", 1) == 0:
        raise InputError(f"clients must be a list of pairs (X, y), one per client, but a {_kind(clients)} came")
    found = list(clients)
    if not found:
        raise InputError("clients must be a list of pairs (X, y), one per client, but it is empty")
    return found


def pair_of(pair: Any, what: str) -> tuple[Array, Array]:
    """Return X and y as arrays; y may hold names."""
    single = isinstance(pair, str | bytes | Mapping | set) or not hasattr(pair, "__len__")
    if single or getattr(pair, "ndim", 1) == 0 or len(pair) != 2 or _is_data_set(pair):
        if _is_data_set(pair):
            hint = ": stack it, X = torch.stack([x for x, _ in it]) and y = [int(y) for _, y in it]"
        else:
            hint = ": of two lists make one with zip(X, y)" if what == "client 0" else ""
        raise InputError(f"{what} must be a pair (X, y) of inputs and targets, but a {_kind(pair)} came{hint}")
    X, y = _array(pair[0], f"X of {what}"), _array(pair[1], f"y of {what}", names=True)
    if X.ndim == 0 or y.ndim == 0 or len(X) != y.shape[0]:
        raise InputError(f"X and y of {what} must have as many rows, but they have the shapes {X.shape} and {y.shape}")
    if len(X) == 0:
        raise InputError(f"{what} holds no samples: leave it out, or give it some")
    return X if X.ndim > 1 else X[:, None], y


def number_names(
    pairs: Sequence[tuple[Array, Array]], test: Any
) -> tuple[list[tuple[Array, Array]], Any, tuple[str, ...]]:
    """Replace class names by numbers; return the pairs, the test data, and the names in order.

    Names are numbered in alphabetical order over all clients and the test data, so that a name has the same number for
    every client. Without names, the data are returned unchanged.
    """
    named = [is_named(y) for _, y in pairs]
    if not any(named):
        return list(pairs), test, ()
    if not all(named):
        raise InputError(f"y of client {named.index(False)} holds numbers, but y of client {named.index(True)} names")
    tests = [(what, pair_of(pair, what)) for what, pair in _tests(test, len(pairs))]
    for what, (_, y) in tests:
        if not is_named(y):
            raise InputError(f"y of {what} holds numbers, but the clients' hold names")
    known = np.unique(np.concatenate([y.ravel() for _, y in [*pairs, *(pair for _, pair in tests)]]))
    numbered = [(X, np.searchsorted(known, y)) for X, y in pairs]
    judged = [(X, np.searchsorted(known, y)) for _, (X, y) in tests]
    return numbered, judged if len(judged) > 1 else judged[0], tuple(map(str, known))


def is_named(y: Array) -> bool:
    """Return whether these targets are names."""
    return y.dtype.kind == "U"


def task_of(targets: Sequence[Array], outputs: int) -> Problem:
    """Return the task that the targets' type and the model's number of outputs suggest."""
    if all(np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_ for y in targets):
        return "classification"
    if outputs == 1:
        return "regression"
    if all(np.issubdtype(y.dtype, np.floating) and (y == np.round(y)).all() for y in targets):
        return "classification"
    raise InputError(
        f"the targets are no whole numbers, so this is regression, but the model has {outputs} outputs: regression "
        "needs one; classes are whole numbers from 0 on"
    )


def _samples(pair: Any, what: str, task: Problem, classes: int | None, tokens: bool) -> Samples:
    X, y = pair_of(pair, what)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        hint = "; of one-hot rows take y.argmax(1)" if task == "classification" else ""
        raise InputError(f"y of {what} must have one target per row, but its shape is {y.shape}{hint}")
    try:
        if task == "regression":
            return Samples(_numbers(X, what, tokens), _single(y, f"y of {what}"))
        with np.errstate(invalid="ignore"):  # the check below reports targets that are not integers
            labels = y.astype(np.int64)
        if (labels != y).any():
            raise InputError(f"classes are whole numbers from 0 on, but y of {what} has others")
        if labels.min() < 0 or (classes is not None and labels.max() >= classes):
            raise InputError(
                f"y of {what} has classes from {labels.min()} to {labels.max()}, but the model tells {classes} apart, "
                f"numbered from 0: number them 0 to {(classes or 2) - 1}, give the model more outputs, or hand names "
                "over, such as y.astype(str), which are numbered for you"
            )
        return Samples(_numbers(X, what, tokens), labels)
    except (InputError, ValueError, TypeError) as cause:
        message = str(cause)
        raise InputError(message if what in message else f"{what}: {message}") from cause


def _numbers(X: Array, what: str, tokens: bool) -> Array:
    if tokens and np.issubdtype(X.dtype, np.integer):
        return X.astype(np.int64)
    return _single(X, what)


def _single(numbers: Array, what: str) -> Array:
    """Convert numbers to single precision, in which all models are trained."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(numbers, dtype=np.float32)
    if np.isinf(found).any() and np.isfinite(numbers).all():
        most = np.abs(numbers).max()
        raise InputError(f"{what} holds numbers up to {most:.3g}, and single precision ends at 3.4e38: scale them")
    return found


def _tests(test: Any, clients: int) -> list[tuple[str, Any]]:
    if isinstance(test, Mapping):
        test = list(test.values())
    if isinstance(test, Sequence) and not isinstance(test, str) and test and _is_pair(test[0]):
        if len(test) != clients:
            raise InputError(
                f"test must be one pair (X, y), or one per client, but {len(test)} pairs came for {clients} clients"
            )
        return [(f"the test data of client {at}", pair) for at, pair in enumerate(test)]
    return [("the test data", test)]


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and not np.isscalar(value[0])


def _is_data_set(value: Any) -> bool:
    """Return whether `value` is a torch data set; one with two samples must not be taken for a pair."""
    return any(kind.__module__.startswith("torch.utils.data") for kind in type(value).__mro__)


def _array(value: Any, what: str, *, names: bool = False) -> Array:
    if hasattr(value, "detach"):  # a torch tensor; checked without importing torch
        value = value.detach().cpu().numpy()
    try:
        found = np.asarray(value)
    except ValueError as cause:
        raise InputError(f"{what} has rows of different shapes: {cause}") from cause
    if names and found.size and all(isinstance(entry, str) for entry in found.ravel()[:1]) and found.dtype.kind in "OU":
        if odd := [entry for entry in found.ravel() if not isinstance(entry, str)]:
            raise InputError(f"{what} holds names and {odd[0]!r}: give names alone")
        return found.astype(str)
    if found.dtype.kind not in "fiub":
        raise InputError(f"{what} must hold numbers{' or names' if names else ''}, but its type is {found.dtype}")
    return found


def _digest(parts: list[Samples]) -> str:
    found = hashlib.sha256()
    for samples in parts:
        for array in (samples.inputs, samples.targets):
            found.update(str((array.shape, array.dtype)).encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]


def _kind(value: Any) -> str:
    counted = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    return f"{type(value).__name__} of {len(value)}" if counted else type(value).__name__
