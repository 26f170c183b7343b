"""Data that a program hands over: what each client holds, as arrays, tensors or lists.

It is no named data set: its record says how large it is and gives a digest, so that runs can be told apart, and only
the program that has the arrays can go on with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedpace.core.errors import InputError
from fedpace.data.federated import FederatedData, Metric, Samples

Array = NDArray[Any]
Task = Literal["classification", "regression"]
OWN = "own"
"""What the records call data and models that a program handed over."""


@dataclass(frozen=True)
class ArrayData:
    """Arrays as a data set: the same under every seed. Its fields describe it; `give_arrays` makes one."""

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


def give_arrays(
    clients: Sequence[Any] | Mapping[Any, Any], test: Any, *, task: Task, classes: int | None, tokens: bool = False
) -> ArrayData:
    """Return a data set of these pairs (X, y), checked and brought to the types that are trained on.

    Args:
        clients: a pair per client.
        test: one pair, or a list of as many pairs as there are clients.
        task: classes to tell apart, or numbers to predict.
        classes: how many a model tells apart; None for regression.
        tokens: whether inputs are whole numbers that stand for something, as an embedding takes them.
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
    )
    found = ArrayData(
        clients=len(train),
        samples=sum(len(samples) for samples in train),
        test_samples=len(whole),
        input_shape=tuple(shape),
        metric=federated.metric,
        digest=_digest([*train, whole]),
    )
    found.__dict__["federated"] = federated  # beside the fields, which are what a record says
    return found


def listed(clients: Any) -> list[Any]:
    """Return the clients' pairs as a list."""
    if isinstance(clients, Mapping):
        clients = clients.values()
    if isinstance(clients, str | bytes) or not hasattr(clients, "__iter__"):
        raise InputError(f"clients must be a list of pairs (X, y), one per client, but a {_kind(clients)} came")
    found = list(clients)
    if not found:
        raise InputError("clients must be a list of pairs (X, y), one per client, but it is empty")
    return found


def pair_of(pair: Any, what: str) -> tuple[Array, Array]:
    """Return X and y as arrays."""
    if isinstance(pair, str | bytes) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise InputError(f"{what} must be a pair (X, y) of inputs and targets, but a {_kind(pair)} came")
    X, y = (_array(part, f"{name} of {what}") for name, part in zip(("X", "y"), pair, strict=True))
    if X.ndim == 0 or len(X) != y.shape[0]:
        raise InputError(f"X and y of {what} must have as many rows, but they have the shapes {X.shape} and {y.shape}")
    if len(X) == 0:
        raise InputError(f"{what} holds no samples: leave it out, or give it some")
    return X if X.ndim > 1 else X[:, None], y


def task_of(targets: Sequence[Array], outputs: int) -> Task:
    """Return whether these are classes or numbers, where nobody said: by their type, and by the model's outputs."""
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


def _samples(pair: Any, what: str, task: Task, classes: int | None, tokens: bool) -> Samples:
    X, y = pair_of(pair, what)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        hint = "; of one-hot rows take y.argmax(1)" if task == "classification" else ""
        raise InputError(f"y of {what} must have one target per row, but its shape is {y.shape}{hint}")
    try:
        if task == "regression":
            return Samples(_numbers(X, what, tokens), y.astype(np.float32))
        labels = y.astype(np.int64)
        if (labels != y).any():
            raise InputError(f"classes are whole numbers from 0 on, but y of {what} has others")
        if labels.min() < 0 or (classes is not None and labels.max() >= classes):
            raise InputError(
                f"y of {what} has classes from {labels.min()} to {labels.max()}, but the model tells {classes} apart, "
                "numbered from 0"
            )
        return Samples(_numbers(X, what, tokens), labels)
    except (InputError, ValueError, TypeError) as cause:
        message = str(cause)
        raise InputError(message if what in message else f"{what}: {message}") from cause


def _numbers(X: Array, what: str, tokens: bool) -> Array:
    if tokens and np.issubdtype(X.dtype, np.integer):
        return X.astype(np.int64)
    return np.ascontiguousarray(X, dtype=np.float32)


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


def _array(value: Any, what: str) -> Array:
    if hasattr(value, "detach"):  # a tensor, without importing torch to know it
        value = value.detach().cpu().numpy()
    try:
        found = np.asarray(value)
    except ValueError as cause:
        raise InputError(f"{what} has rows of different shapes: {cause}") from cause
    if found.dtype.kind not in "fiub":
        hint = "; of names make numbers with numpy.unique(y, return_inverse=True)" if found.dtype.kind in "OUS" else ""
        raise InputError(f"{what} must hold numbers, but its type is {found.dtype}{hint}")
    return found


def _digest(parts: list[Samples]) -> str:
    found = hashlib.sha256()
    for samples in parts:
        for array in (samples.inputs, samples.targets):
            found.update(str((array.shape, array.dtype)).encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__
