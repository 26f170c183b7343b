"""What clients send: models as named arrays, the note beside a model, and the parser that checks both on the server.

A note holds feature moments, sketches of updates and label counts as plain numbers, text, bytes and lists, which any
framework can send. A client may be broken or malicious: only `parse` unpacks its data, and an invalid reply is a
failure of that client, never an exception on the server.

Buffers, such as the statistics of a batch norm, are not part of an update. An array is a buffer if it is not floating,
or if its name ends like the running statistics of torch or Keras.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import FloatArray, above, at_least, float_array, printable
from fedpace._base.codec import is_text
from fedpace._base.errors import InputError
from fedpace.moments.factor import factor_from_features, private_moment
from fedpace.numerics.accounting import gaussian_epsilon, gaussian_multiplier
from fedpace.numerics.count_sketch import CountSketch

Arrays = Mapping[str, NDArray[np.generic]]
MAX_REASON = 300
"""Most characters of a failure reason in the log."""
BUFFERS = ("running_mean", "running_var", "moving_mean", "moving_variance")
"""Last parts of the names of batch-norm statistics, after the layer's name."""


def is_buffer(name: str, array: NDArray[np.generic]) -> bool:
    """Return whether an array is a buffer, which the server averages and never extrapolates."""
    return not np.issubdtype(array.dtype, np.floating) or name.replace("/", ".").rpartition(".")[2] in BUFFERS


def is_variance(name: str) -> bool:
    """Return whether an array holds variances, which must be at least 0."""
    return name.replace("/", ".").rpartition(".")[2] in ("running_var", "moving_variance")


class UpdateSketch:
    """A fixed projection of updates to `width` entries; width 0 = the updates themselves."""

    def __init__(self, current: Arrays, width: int, *, seed: int) -> None:
        """Make the projection for models with the arrays of `current`."""
        self._shapes = {key: array.shape for key, array in current.items() if not is_buffer(key, array)}
        length = sum(math.prod(shape) for shape in self._shapes.values())
        self._sketch = CountSketch(length, width, seed=seed)
        self.width = self._sketch.width

    def __call__(self, trained: Arrays, current: Arrays) -> FloatArray | None:
        """Return the sketch of trained - current; None if arrays are missing, of another shape, or not finite."""
        return self._of(flat(trained, self._shapes) - flat(current, self._shapes)) if self._fits(trained) else None

    def of_step(self, step: Arrays) -> FloatArray | None:
        """Return the sketch of an update; None if arrays are missing, of another shape, or not finite."""
        return self._of(flat(step, self._shapes)) if self._fits(step) else None

    def _of(self, vector: FloatArray) -> FloatArray | None:
        return self._sketch(vector) if np.isfinite(vector).all() else None

    def _fits(self, arrays: Arrays) -> bool:
        return all(key in arrays and arrays[key].shape == shape for key, shape in self._shapes.items())


def flat(arrays: Arrays, names: Iterable[str]) -> FloatArray:
    """Return the named arrays as one flat vector, in the order of `names`."""
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in names]
    return np.concatenate(parts) if parts else np.zeros(0)


def buffer_lengths(models: Sequence[tuple[Arrays, Arrays]]) -> dict[str, list[float]]:
    """Return kind of buffer -> Euclidean distance of each model's buffers from the sent ones.

    The kind is the last part of the name, or `counters`. A buffer of another shape counts as not moved. A distance that
    overflows is infinite.

    Args:
        models: (trained, sent) of each client.
    """
    names = {key for trained, _ in models for key, array in trained.items() if is_buffer(key, array)}
    kinds: dict[str, list[float]] = {}
    for key in sorted(names):
        last = key.replace("/", ".").rpartition(".")[2]
        squares = kinds.setdefault(last if last in BUFFERS else "counters", [0.0] * len(models))
        for place, (trained, sent) in enumerate(models):
            if key in trained and key in sent and np.shape(trained[key]) == np.shape(sent[key]):
                with np.errstate(over="ignore", invalid="ignore"):
                    squares[place] += float(np.sum((np.float64(trained[key]) - np.float64(sent[key])) ** 2))
    return {kind: [math.sqrt(square) for square in squares] for kind, squares in kinds.items()}


# -- the note, written by the client ----------------------------------------------------------------------------------


def pack_moment(factor: FloatArray) -> dict[str, Any]:
    """Return a moment factor as entries of a note, in single precision to halve the bytes."""
    if not len(factor):  # the moment is 0: all features are 0, or the privacy noise hides them
        factor = np.zeros((1, factor.shape[1]))
    return {"moment": np.ascontiguousarray(factor, dtype="<f4").tobytes(), "shape": [int(n) for n in factor.shape]}


def pack_update(sketch: FloatArray) -> dict[str, Any]:
    """Return a sketch as an entry of a note, in double precision, so that it equals the server's own sketch exactly."""
    return {"update": np.ascontiguousarray(sketch, dtype="<f8").tobytes()}


def pack_labels(histogram: ArrayLike) -> dict[str, Any]:
    """Return a label histogram and its number of samples as entries of a note."""
    counts = float_array(histogram, "the label histogram")
    if (counts < 0).any():
        raise InputError(f"a label histogram must hold counts of at least 0, but {counts.tolist()} came")
    return {"labels": counts.tolist(), "samples": float(counts.sum())}


@dataclass(frozen=True)
class Privacy:
    """Options for differentially private moments with the Gaussian mechanism; see `fedpace.moments.factor`.

    Args:
        epsilon: privacy loss of one release, for one row of the batch.
        delta: probability of a larger loss.
        clip: longer rows of features are clipped to this length; choose it without looking at the data.
        releases: number of moments that the client sends in one run; each spends (epsilon, delta). Later it sends none.
    """

    epsilon: float
    delta: float
    clip: float
    releases: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for invalid options when the client starts, not in its first round."""
        above(self.epsilon, 0, "epsilon of Privacy")
        above(self.clip, 0, "clip of Privacy")
        at_least(self.releases, 1, "releases of Privacy")
        if not 0 < self.delta < 1:
            raise InputError(f"delta of Privacy must lie between 0 and 1, but {self.delta!r} came")

    @classmethod
    def in_all(cls, *, epsilon: float, delta: float, clip: float, releases: int) -> Privacy:
        """Return options with which all releases together are (epsilon, delta)-private; needs the extra `privacy`.

        The epsilon of a single release is then larger than epsilon / releases: losses of Gaussian noise grow with the
        square root of the number of releases.
        """
        above(epsilon, 0, "epsilon of Privacy")
        at_least(releases, 1, "releases of Privacy")
        cost = gaussian_multiplier(epsilon, delta) ** -2
        return cls(gaussian_epsilon(cost / releases, delta), delta, clip, releases)

    def total_epsilon(self, releases: int | None = None) -> float:
        """Return the epsilon that this many releases (None = all) spend together, at the same delta."""
        count = self.releases if releases is None else releases
        return gaussian_epsilon(count * gaussian_multiplier(self.epsilon, self.delta) ** -2, self.delta)


def steps_of_work(work: Any, usual: int) -> int:
    """Return the local steps of a task with this `work` from the server; None = the usual number."""
    amount = 1.0 if work is None else float(work)
    above(amount, 0, "the work that the server asks for")
    return max(1, round(amount * usual))


MAX_FEATURES = 512
"""Largest number of columns of features, and of targets. Wider data are sketched to this width, because the time of a
selection grows with the square of the width."""
MAX_MOMENT_ROWS = 256
"""Largest number of rows of a moment that is sent."""


def narrowed(rows: ArrayLike) -> FloatArray:
    """Return the rows with at most MAX_FEATURES columns, by a count sketch that is the same on all clients.

    The sketch preserves inner products approximately.
    """
    whole = np.asarray(rows, dtype=np.float64)
    if whole.ndim != 2 or whole.shape[1] <= MAX_FEATURES:
        return whole
    sketch = CountSketch(whole.shape[1], MAX_FEATURES, seed=0)
    return np.array([sketch(row) for row in whole])


def moment_rows(features: ArrayLike, targets: ArrayLike | None = None) -> FloatArray:
    """Return the (n, d) rows for a moment; with targets (n, d + c), the targets after the features."""
    rows = narrowed(features)
    if targets is None:
        return rows
    columns = np.asarray(targets, dtype=np.float64)
    columns = narrowed(columns[:, None] if columns.ndim == 1 else columns)
    if len(columns) != len(rows):
        raise InputError(f"expected one target per row of features ({len(rows)}), but {len(columns)} came")
    return np.hstack([rows, columns])


def packed_moment(rows: ArrayLike, max_rank: int, privacy: Privacy | None = None) -> dict[str, Any]:
    """Return the moment of a batch as entries of a note; privacy noise uses the operating system's randomness."""
    max_rank = min(max_rank, MAX_MOMENT_ROWS)
    if privacy is None:
        return pack_moment(factor_from_features(rows, max_rank=max_rank))
    released = private_moment(
        rows,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        seed=secrets.randbits(128),
        max_rank=max_rank,
    )
    return pack_moment(released.factor)


# -- the reply, read by the server ------------------------------------------------------------------------------------


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


def short(reason: str) -> str:
    """Return a failure reason that is safe to log: escaped and cut, because a client may have written it."""
    reason = printable(reason)
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3] + "..."
