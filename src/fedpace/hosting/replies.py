"""The parser for replies of clients: it returns values that are safe to use, or the reason why a reply is unusable.

A client may be broken or malicious. Only `parse` unpacks and checks the data of a client. An invalid reply is a failure
of that client, and never an exception on the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.codec import is_text
from fedpace._base.errors import InputError
from fedpace._base.names import printable
from fedpace.hosting.client_facts import MAX_FEATURES, MAX_MOMENT_ROWS
from fedpace.hosting.named_arrays import Arrays, is_variance

MAX_MOMENT_COLUMNS = 2 * MAX_FEATURES
"""Largest number of columns of a moment; `report_mod` and `Reporter` obey it. A broken client must neither fill the
server's memory nor slow down every selection."""
MAX_CLASSES = 10_000
"""Largest number of classes in a label histogram."""
MAX_SKETCH_ENTRIES = 65_536
"""Largest number of entries in the sketch of an update."""
MAX_REPORTED_SECONDS = 1e8
"""Longest time that a client may report, about three years: it moves the virtual clock of the `reported` mode."""
MAX_STEPS = 1e9
"""Largest number of local steps that a client may report."""
MAX_NAME_LENGTH = 256
LOSS_KEYS = ("train_loss", "train-loss", "eval_loss", "eval-loss", "loss")
"""Names of metrics to try for the loss if no `loss_key` is given; the first one present counts."""


@dataclass(frozen=True, eq=False)
class Note:
    """The facts that a client sent beside its model; NaN, None or an empty name = not sent."""

    name: str = ""
    """Name that the client keeps when it reconnects."""
    seconds: float = math.nan
    compute: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    update: FloatArray | None = None
    """Sketch of an update or gradient."""
    labels: FloatArray | None = None
    """(c,) number of samples of each class."""


@dataclass(frozen=True, eq=False)
class Raw:
    """A reply as the framework unpacked it; nothing is checked yet."""

    note: Any = field(default_factory=dict)
    metrics: Any = field(default_factory=dict)
    samples: Any = None
    model: Any = None
    """Name -> array; None = no model."""
    is_step: bool = False
    """Whether `model` holds the update (trained minus sent) instead of the trained model."""
    carrier: Any = None
    """The framework's own message, for a framework that aggregates itself."""
    steps: Any = None
    """Number of local steps."""
    sealed: Any = None
    """An update that only a trusted aggregator can open (`fedpace.hosting.aggregator`)."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A reply that has passed all checks."""

    note: Note
    loss: float
    samples: float
    model: dict[str, NDArray[Any]] | None
    """The trained model; None if none was expected."""
    carrier: Any = None
    steps: float = math.nan
    """Number of local steps that the client says it made; NaN = not sent."""
    sealed: bytes = b""


def parse(unpack: Callable[[], Raw], sent: Arrays | None = None, *, loss_key: str = "") -> Reply | str:
    """Return a checked reply, or the reason why it cannot be used.

    Args:
        unpack: unpacks the framework's message; any exception becomes a reason.
        sent: the model that the client received; its reply must have the same arrays. None = no model is expected, and
            a model in the reply is ignored.
        loss_key: name of the metric with the loss; empty = try the names in `LOSS_KEYS`.
    """
    try:
        raw = unpack()
        if not isinstance(raw.metrics, Mapping):
            raise InputError(f"metrics should be a table of numbers, but a {type(raw.metrics).__name__} came")
        loss = next((raw.metrics[key] for key in ((loss_key,) if loss_key else LOSS_KEYS) if key in raw.metrics), None)
        note = read_note(raw.note)
        samples = note.samples if raw.samples is None else _number(raw.samples, "the number of samples")
        model = None if sent is None else read_model(raw.model, sent, is_step=raw.is_step)
        steps = math.nan if raw.steps is None else _number(raw.steps, "the number of local steps", MAX_STEPS)
        sealed = raw.sealed if isinstance(raw.sealed, bytes) else b""
        return Reply(note, _loss(loss), samples, model, raw.carrier, steps, sealed)
    except InputError as problem:
        return short(str(problem))
    except Exception as problem:  # decoding untrusted bytes may raise anything
        return short(f"it cannot be read: {type(problem).__name__}: {problem}")


def read_note(entries: Any) -> Note:
    """Return the checked content of a note; raise InputError if it is invalid. Unknown entries are ignored."""
    if not isinstance(entries, Mapping):
        raise InputError(f"a note should be a table of entries, but a {type(entries).__name__} came")
    name = entries.get("name", "")
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not is_text(name):
        raise InputError(f"a name should be text of at most {MAX_NAME_LENGTH} characters, which UTF-8 can hold")
    return Note(
        name=name,
        seconds=_number(entries.get("seconds", math.nan), "reported seconds", MAX_REPORTED_SECONDS),
        compute=_number(entries.get("compute", math.nan), "reported compute", MAX_REPORTED_SECONDS),
        samples=_number(entries.get("samples", math.nan), "reported samples"),
        moment=_moment(entries.get("moment"), entries.get("shape")),
        update=_update(entries.get("update")),
        labels=_labels(entries.get("labels")),
    )


def read_model(arrays: Any, sent: Arrays, *, is_step: bool = False) -> dict[str, NDArray[Any]]:
    """Return the trained model with the names, shapes and types of the model that was sent, and finite numbers.

    A model that does not match raises InputError.

    Args:
        arrays: name -> array from the client.
        sent: the model that the client received.
        is_step: whether `arrays` hold the update, which is added to `sent`.
    """
    if not isinstance(arrays, Mapping):
        raise InputError("no model came")
    found: dict[str, NDArray[Any]] = {str(key): np.asarray(array) for key, array in arrays.items()}
    if sent and found.keys() != sent.keys():
        wrong = sorted(found.keys() ^ sent.keys())[:5]
        raise InputError(f"the model should have the arrays that were sent, but {wrong} are missing or new")
    for key, array in list(found.items()):
        if array.dtype.kind not in "fiub":
            raise InputError(f"array {key!r} of the model should hold real numbers, but its type is {array.dtype}")
        if sent and array.shape != np.shape(sent[key]):
            expected = np.shape(sent[key])
            raise InputError(f"array {key!r} of the model should have shape {expected}, but it has {array.shape}")
        kind = array.dtype if not sent else np.asarray(sent[key]).dtype
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.asarray(sent[key]) + array if is_step else array
            same = array.astype(kind, copy=False) if np.isfinite(array).all() else array
        if not np.isfinite(same).all():
            raise InputError(f"array {key!r} of the model holds NaN or infinity: training diverged")
        if same.dtype.kind in "iu" and array.dtype.kind == "f" and not (np.abs(np.float64(same) - array) <= 1).all():
            raise InputError(f"array {key!r} of the model holds numbers that do not fit into {same.dtype}")
        if is_variance(key) and (same < 0).any():
            raise InputError(f"array {key!r} of the model holds variances below 0")
        found[key] = same
    return found


def _real(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{what} should be a number, but {value!r} came")
    return float(value)


def _number(value: Any, what: str, most: float = math.inf) -> float:
    number = _real(value, what)
    if not math.isnan(number) and not (math.isfinite(number) and number >= 0):
        raise InputError(f"{what} should be finite and at least 0, but {number} came")
    if number > most:
        raise InputError(f"{what} should be at most {most:g}, but {number} came")
    return number


def _loss(value: Any) -> float:
    if value is None:
        return math.nan
    if not math.isfinite(loss := _real(value, "the loss")):
        raise InputError(f"the loss is {loss}: training diverged")
    return loss


def _moment(data: Any, shape: Any) -> FloatArray | None:
    if data is None:
        return None
    sizes = list(shape) if isinstance(shape, list | tuple) else []
    if not isinstance(data, bytes) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
        raise InputError(f"a moment should be bytes with a shape of two whole numbers, but the shape is {shape!r}")
    rows, columns = sizes
    if not (1 <= rows <= MAX_MOMENT_ROWS and 1 <= columns <= MAX_MOMENT_COLUMNS):
        raise InputError(
            f"a moment should have 1 to {MAX_MOMENT_ROWS} rows and 1 to {MAX_MOMENT_COLUMNS} columns, but its shape is "
            f"{shape!r}"
        )
    if len(data) != 4 * rows * columns:
        raise InputError(f"a moment of shape {shape} should have {4 * rows * columns} bytes, but {len(data)} came")
    return _finite(np.frombuffer(data, dtype="<f4").reshape(rows, columns), "a moment")


def _update(data: Any) -> FloatArray | None:
    if data is None:
        return None
    if not isinstance(data, bytes) or not data or len(data) % 8 or len(data) > 8 * MAX_SKETCH_ENTRIES:
        raise InputError("a sketch should be the bytes of some numbers in double precision, but something else came")
    return _finite(np.frombuffer(data, dtype="<f8"), "a sketch")


def _labels(values: Any) -> FloatArray | None:
    if values is None:
        return None
    if not isinstance(values, list) or not 0 < len(values) <= MAX_CLASSES:
        raise InputError(f"a label histogram should be a list of 1 to {MAX_CLASSES} counts, but something else came")
    counts = np.array([_number(value, "a count in the label histogram") for value in values])
    if np.isnan(counts).any():
        raise InputError("a count in the label histogram should be a number, but NaN came")
    return counts


def _finite(array: NDArray[Any], what: str) -> FloatArray:
    values = np.asarray(array, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{what} should be finite, but it holds NaN or infinity")
    return values


def short(reason: str, limit: int = 300) -> str:
    """Return a failure reason that is safe to log: escaped and cut, because a client may have written it."""
    reason = printable(reason)
    return reason if len(reason) <= limit else reason[: limit - 3] + "..."
