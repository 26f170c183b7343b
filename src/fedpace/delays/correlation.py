"""Delay tied to data: which clients are the slow ones. Ours; the paper draws delays and data independently.

Whether slow clients hold data that nobody else has decides between schemes: choosing the fastest is free where they do
not and fails where they do. `correlated` deals the same delays out anew: the clients with the largest scores get the
slowest ones. Nobody's delay is invented, so a fleet's distribution stays what it was at every strength.

    model = correlated(model, rarity(labels), strength=0.8)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import FloatArray, IntArray, float_array, frozen
from fedpace._base.errors import InputError
from fedpace.core.types import DelayModel
from fedpace.delays.base import number

WIDEST_MOMENT = 512
"""Features of which whole second moments are formed: a megabyte a client."""


class ReorderedDelays:
    """A delay model whose rows were dealt out anew: client i has the delays that row `source[i]` had."""

    def __init__(self, model: DelayModel, source: IntArray) -> None:
        """Take the model and where each client's delays come from."""
        self._model = model
        self.source: IntArray = frozen(source, np.int64)

    def expected(self) -> FloatArray:
        """(n,) mean seconds of a round."""
        return frozen(self._model.expected()[self.source])

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`."""
        return frozen(self._model.draw(step)[self.source])


@runtime_checkable
class Phones(DelayModel, Protocol):
    """Delays of clients that each have a device and each an amount of work: the devices alone are dealt out anew."""

    def speeds(self) -> FloatArray:
        """(n,) seconds that each device would take for the same work."""
        ...

    def dealt_anew(self, source: IntArray) -> DelayModel:
        """Return the same clients with other devices: client i has the one that client `source[i]` had."""
        ...


def correlated(model: DelayModel, scores: ArrayLike, *, strength: float) -> DelayModel:
    """Return `model` with its slow rows given to the clients with large `scores`.

    `strength` is the correlation between score and delay on the scale of normal scores: 0 leaves every delay where it
    was, 1 sorts them completely. Clients with equal scores keep their order among themselves. Where a delay is made of
    a device and of work, the slow devices are given, and everybody keeps its work.
    """
    if isinstance(model, Phones):
        return model.dealt_anew(reorder_by(scores, model.speeds(), strength=strength))
    return ReorderedDelays(model, reorder_by(scores, model.expected(), strength=strength))


def reorder_by(scores: ArrayLike, delays: ArrayLike, *, strength: float) -> IntArray:
    """(n,) for each client, the row of `delays` it gets.

    The key of a client is `strength * score + sqrt(1 - strength^2) * own delay`, both as normal scores of their ranks;
    the client with the k-th smallest key gets the k-th smallest delay.
    """
    number(strength, "strength", low=0.0, high=1.0)
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
    """(n,) how rare a client's data are: the mean of -log(share of the class in the fleet) over its samples.

    `labels` are (n, c) counts. A client without samples gets the lowest score.
    """
    counts = _counts(labels)
    share = counts.sum(axis=0) / max(counts.sum(), 1.0)
    surprise = -np.log(np.where(share > 0, share, 1.0))
    size = counts.sum(axis=1)
    score = counts @ surprise / np.maximum(size, 1.0)
    return np.where(size > 0, score, score[size > 0].min() if (size > 0).any() else 0.0)


def holding(labels: ArrayLike, classes: Sequence[int]) -> FloatArray:
    """(n,) share of a client's samples that belong to `classes`: for data in which no class is rare."""
    counts = _counts(labels)
    wanted = np.asarray(classes, dtype=np.int64)
    if not wanted.size or wanted.min() < 0 or wanted.max() >= counts.shape[1]:
        raise InputError(f"classes must be numbers in 0..{counts.shape[1] - 1}, but {list(classes)!r} came")
    return np.asarray(counts[:, wanted].sum(axis=1) / np.maximum(counts.sum(axis=1), 1.0))


def outlying(inputs: Sequence[NDArray[Any]]) -> FloatArray:
    """(n,) where a client stands on the direction in which the clients' features differ most: for data without classes.

    `inputs` are one array (samples, ...) a client. A client is its second moment A_i = X_i'X_i / n_i; the score is its
    component along the leading principal axis of the A_i about their mean. The end of the axis that fewer clients are
    at is the rare one and scores high, as the rare classes do in `rarity`. Inputs wider than 512 numbers are
    reduced to the 512 leading principal axes of all of them together.
    """
    flat = [array.reshape(len(array), -1).astype(np.float64) for array in inputs]
    widths = {rows.shape[1] for rows in flat}
    if len(widths) != 1 or min(len(rows) for rows in flat) == 0:
        raise InputError(
            f"inputs must be samples of one width, at least one per client, but widths {sorted(widths)} came"
        )
    if widths.pop() > WIDEST_MOMENT:
        total = sum(rows.T @ rows / len(rows) for rows in flat)
        axes = np.linalg.eigh(total)[1][:, -WIDEST_MOMENT:]
        flat = [rows @ axes for rows in flat]
    moments = np.array([(rows.T @ rows / len(rows)).ravel() for rows in flat], dtype=np.float32)
    moments -= moments.mean(axis=0)
    gram = (moments @ moments.T).astype(np.float64)
    values, vectors = np.linalg.eigh(gram)
    score = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
    # A long tail on one side means few clients there; a sum of cubes is its sign.
    return np.asarray(score if (score**3).sum() >= 0 else -score)


def _counts(labels: ArrayLike) -> FloatArray:
    counts = float_array(labels, "labels", ndim=2)
    if (counts < 0).any():
        raise InputError(f"labels must be counts of at least 0, but {counts.min():g} came")
    return counts


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0; equal values share the mean of theirs, so that ties favour nobody."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _normal(ranks: FloatArray) -> FloatArray:
    """Normal scores of ranks."""
    from scipy.special import ndtri

    return np.asarray(ndtri((ranks + 0.5) / ranks.size))
