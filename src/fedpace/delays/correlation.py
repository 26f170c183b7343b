"""Correlates delays with data: decides which clients are slow. Ours; the paper draws delays and data independently.

The ranking of schemes depends on whether slow clients hold data that other clients lack. If they do not, selecting the
fastest clients costs nothing; if they do, it fails. `correlated` reassigns the existing delays so that clients with
large scores get the slow ones. The distribution of delays stays the same at every strength.

    model = correlated(model, rarity(labels), strength=0.8)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import FloatArray, IntArray, between, float_array, frozen
from fedpace._base.errors import InputError
from fedpace.core.types import DelayModel
from fedpace.delays.base import WorkDelays

MAX_MOMENT_FEATURES = 512
"""Largest number of features with full second moments: about a megabyte per client."""


class ReorderedDelays:
    """A delay model with reassigned rows: client i has the delays of row `source[i]`."""

    def __init__(self, model: DelayModel, source: IntArray) -> None:
        """Store the model and the source row of each client."""
        self._model = model
        self.source: IntArray = frozen(source, np.int64)

    def expected(self) -> FloatArray:
        """(n,) expected seconds of a round."""
        return frozen(self._model.expected()[self.source])

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        return frozen(self._model.draw(step)[self.source])


class ReorderedWorkDelays(ReorderedDelays):
    """The same, for a model that tells compute from the rest."""

    def __init__(self, model: WorkDelays, source: IntArray) -> None:
        """Store the model and the source row of each client."""
        super().__init__(model, source)
        self._split = model

    def compute_seconds(self, step: int) -> FloatArray:
        """(n,) the part of `draw(step)` that grows with the work."""
        return frozen(self._split.compute_seconds(step)[self.source])

    def expected_compute(self) -> FloatArray:
        """(n,) the part of the expected seconds that grows with the work."""
        return frozen(self._split.expected_compute()[self.source])


@runtime_checkable
class DeviceDelays(DelayModel, Protocol):
    """Delay models with a device and an amount of work per client; only the devices are reassigned."""

    def device_seconds(self) -> FloatArray:
        """(n,) seconds that each device would take for the same work."""

    def reassigned(self, source: IntArray) -> DelayModel:
        """Return the same clients with reassigned devices: client i gets the device of client `source[i]`."""


def correlated(model: DelayModel, scores: ArrayLike, *, strength: float) -> DelayModel:
    """Return `model` with its slow rows assigned to the clients with large `scores`.

    `strength` is the correlation between score and delay, on the scale of normal scores: 0 changes nothing, 1 sorts
    completely. Clients with equal scores keep their relative order. If a delay consists of a device and of work, only
    the devices are reassigned, and clients keep their work.
    """
    if isinstance(model, DeviceDelays):
        return model.reassigned(reorder_by(scores, model.device_seconds(), strength=strength))
    source = reorder_by(scores, model.expected(), strength=strength)
    return ReorderedWorkDelays(model, source) if isinstance(model, WorkDelays) else ReorderedDelays(model, source)


def reorder_by(scores: ArrayLike, delays: ArrayLike, *, strength: float) -> IntArray:
    """(n,) the row of `delays` that each client gets.

    A client's key is `strength * score + sqrt(1 - strength^2) * own delay`, both as normal scores of their ranks. The
    client with the k-th smallest key gets the k-th smallest delay.
    """
    between(strength, 0, 1, "strength")
    score = float_array(scores, "scores")
    delay = float_array(delays, "delays")
    if score.size != delay.size:
        raise InputError(f"expected {delay.size} scores, one per client, but {score.size} came")
    if delay.size == 0:
        raise InputError("expected at least one client, but there are none")
    by_delay = np.argsort(delay, kind="stable")
    own = np.empty(delay.size)
    own[by_delay] = np.arange(delay.size)
    key = strength * _normal(_ranks(score)) + np.sqrt(1 - strength**2) * _normal(own)
    source = np.empty(delay.size, dtype=np.int64)
    source[np.lexsort((own, key))] = by_delay
    return source


def rarity(labels: ArrayLike) -> FloatArray:
    """(n,) rarity of each client's data: the mean of -log(share of the class in the fleet) over its samples.

    `labels` are (n, c) counts. A client without samples gets the lowest score.
    """
    counts = _counts(labels)
    share = counts.sum(axis=0) / max(counts.sum(), 1.0)
    surprise = -np.log(np.where(share > 0, share, 1.0))
    size = counts.sum(axis=1)
    score = counts @ surprise / np.maximum(size, 1.0)
    return np.where(size > 0, score, score[size > 0].min() if (size > 0).any() else 0.0)


def holding(labels: ArrayLike, classes: Sequence[int]) -> FloatArray:
    """(n,) fraction of a client's samples in `classes`; use it for data in which no class is rare."""
    counts = _counts(labels)
    wanted = np.asarray(classes, dtype=np.int64)
    if not wanted.size or wanted.min() < 0 or wanted.max() >= counts.shape[1]:
        raise InputError(f"classes must be numbers in 0..{counts.shape[1] - 1}, but {list(classes)!r} came")
    return np.asarray(counts[:, wanted].sum(axis=1) / np.maximum(counts.sum(axis=1), 1.0))


def outlying(inputs: Sequence[NDArray[Any]]) -> FloatArray:
    """(n,) each client's position on the axis along which clients' features differ most; for data without classes.

    `inputs` has one array (samples, ...) per client. A client is represented by its second moment A_i = X_i'X_i / n_i.
    The score is its component along the leading principal axis of the A_i around their mean. The end of the axis with
    fewer clients is the rare one and scores high, as rare classes do in `rarity`. Inputs with more than 512 features
    are first projected to their 512 leading principal axes.
    """
    flat = [array.reshape(len(array), -1).astype(np.float64) for array in inputs]
    widths = {rows.shape[1] for rows in flat}
    if len(widths) != 1 or min(len(rows) for rows in flat) == 0:
        raise InputError(
            f"inputs must be samples of one width, at least one per client, but widths {sorted(widths)} came"
        )
    if widths.pop() > MAX_MOMENT_FEATURES:
        total = sum(rows.T @ rows / len(rows) for rows in flat)
        axes = np.linalg.eigh(total)[1][:, -MAX_MOMENT_FEATURES:]
        flat = [rows @ axes for rows in flat]
    moments = np.array([(rows.T @ rows / len(rows)).ravel() for rows in flat], dtype=np.float32)
    moments -= moments.mean(axis=0)
    gram = (moments @ moments.T).astype(np.float64)
    values, vectors = np.linalg.eigh(gram)
    score = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
    # A long tail on one side means few clients there; the sum of cubes gives its sign.
    return np.asarray(score if (score**3).sum() >= 0 else -score)


def _counts(labels: ArrayLike) -> FloatArray:
    counts = float_array(labels, "labels", ndim=2)
    if (counts < 0).any():
        raise InputError(f"labels must be counts of at least 0, but {counts.min():g} came")
    return counts


def _ranks(values: FloatArray) -> FloatArray:
    """Return ranks from 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _normal(ranks: FloatArray) -> FloatArray:
    """Return the normal scores of ranks."""
    from scipy.special import ndtri

    return np.asarray(ndtri((ranks + 0.5) / ranks.size))
