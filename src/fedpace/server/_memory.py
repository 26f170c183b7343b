"""What the server step `remembering` knows of clients, and how it changes in a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray
from fedpace.core.stepping import Source, Stack
from fedpace.server._drift import Drift
from fedpace.server.nesterov import Lead

E = TypeVar("E")
K = TypeVar("K")

KEPT = 0.7
"""What is measured over steps keeps of what it was: shrinking, a rate told from two lengths, drift, and |u|^2."""
LEAST_SHRINKING = 0.5
"""Differences shrink by no more than this from one step to the next: two clients can agree by accident."""
VERSIONS = 128
"""References that are kept where the host does not say which models are still trained from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Remembered(Lead):
    """What is remembered of clients and of past steps, beside what momentum needs.

    Scales are logarithms: a model that converges shrinks differences for as long as it is trained.
    """

    offsets: Stack
    """(m, d) what each client differed by when it was heard."""
    references: Stack
    """(v, d) what they differed from, by the version of the model."""
    remembered_clients: tuple[object, ...] = ()
    """(m,) whose offsets they are."""
    remembered_versions: tuple[int, ...] = ()
    """(m,) the version of the model that each was last heard about."""
    remembered_shares: tuple[float, ...] = ()
    """(m,)"""
    remembered_scales: tuple[float, ...] = ()
    """(m,) `log_scale` when each was heard."""
    reference_versions: tuple[int, ...] = ()
    """(v,)"""
    reference_scales: tuple[float, ...] = ()
    """(v,) `log_scale` at that time."""
    log_scale: float = 0.0
    """Logarithm of how far offsets have shrunk since the first step."""
    shrinking: float = 1.0
    """By how much they shrink per step."""
    predicted: float = 1.0
    """b: how much of a client's difference is what it was; 1 until it is measured."""
    disagreement_left: float = 1.0
    """Of the squared disagreement between clients, the part that the memory does not explain."""
    square: float = 0.0
    """|u|^2 of the last step, before it was lengthened."""
    drift: float = 0.0
    """Squared error that remembered differences have in common, in units of |u|^2 and of the sum of squared weights."""
    drift_square: float = 0.0
    """What late answers found changed in common, squared, in units of |u|^2 of the step that they were late for,
    averaged over steps."""
    drift_unit: float = 0.0
    """The squared way that the model had gone meanwhile, times the sum of squared weights of that step, in the same
    units, averaged likewise."""
    mean_square: float = 0.0
    """|u|^2, averaged over the last steps."""
    path: float = 0.0
    """How far the model has gone in all."""
    remembered_paths: tuple[float, ...] = ()
    """(m,) how far it had gone when the model was made that each was heard about."""
    reference_paths: tuple[float, ...] = ()
    """(v,) the same by the version of the model."""
    reference_squares: tuple[float, ...] = ()
    """(v,) |u|^2 of the step that was made from it."""
    reference_spreads: tuple[float, ...] = ()
    """(v,) the sum of the squared weights in it."""
    mean_age: float = 0.0
    """Steps since clients were heard, weighted by their shares."""
    remembered: int = 0
    """Clients with an offset."""


class _Known(NamedTuple):
    """What is remembered of one client."""

    offset: NDArray[Any]
    version: int
    share: float
    log_scale: float
    path: float

    def shrunk_to(self, log_scale: float, weight: float = 1.0) -> FloatArray:
        """Return the offset as it is where differences have shrunk so far, times `weight`."""
        return weight * math.exp(log_scale - self.log_scale) * self.offset.astype(np.float64)


class _Reference(NamedTuple):
    """What clients that were given one version of the model are compared with."""

    mean: NDArray[Any]
    log_scale: float
    path: float
    square: float
    spread: float

    def parts(self, change: FloatArray, way: float) -> tuple[FloatArray, float]:
        """Return a change and the way that brought it about, in units of the step that was made from this version.

        As training goes on, updates shrink faster than ways do: sums of plain lengths would tell of the first steps
        for as long as there are any. Those that count move the reference with an error of the size of their spread.
        """
        return change / math.sqrt(self.square), way * math.sqrt(self.spread / self.square)


def _entries(kind: Callable[..., E], keys: Iterable[K], *columns: Iterable[Any]) -> dict[K, E]:
    """Return what a state keeps in columns as entries by their keys."""
    return dict(zip(keys, starmap(kind, zip(*columns, strict=True)), strict=True))


class Memory:
    """The offsets while a step is made."""

    def __init__(self, state: Remembered, version: int) -> None:
        self._was = state
        self._version = version
        self._known = _entries(
            _Known,
            state.remembered_clients,
            state.offsets.rows,
            state.remembered_versions,
            state.remembered_shares,
            state.remembered_scales,
            state.remembered_paths,
        )
        if len(state.reference_squares) != len(state.reference_versions):  # saved before steps were told apart
            unknown = (0.0,) * len(state.reference_versions)
            state = replace(
                state, reference_squares=unknown, reference_spreads=unknown, drift_square=0.0, drift_unit=0.0
            )
            self._was = state
        self._references = _entries(
            _Reference,
            state.reference_versions,
            state.references.rows,
            state.reference_scales,
            state.reference_paths,
            state.reference_squares,
            state.reference_spreads,
        )
        self._predicted, self._left, self._shrinking = state.predicted, state.disagreement_left, state.shrinking
        self._drift = Drift()

    def remember_now(self, source: Source, offset: FloatArray) -> None:
        """Remember what a client differed by in this step."""
        self._remember(source, offset, self._was.log_scale, self._was.path)

    def remember_late(self, source: Source, update: FloatArray) -> None:
        """Remember an answer to an older model; one that is too old says nothing any more."""
        then, known = self._references.get(source.version), self._known.get(source.client)
        if then is None or (known is not None and source.version < known.version):
            return
        if known is not None and source.version > known.version and then.square > 0:
            was = known.shrunk_to(then.log_scale)
            self._drift.add(source.share, *then.parts(update - then.mean - was, then.path - known.path))
        self._remember(source, update - then.mean, then.log_scale, then.path)

    def _remember(self, source: Source, offset: FloatArray, log_scale: float, path: float) -> None:
        self._known.pop(source.client, None)  # so that the order is that in which they were heard
        self._known[source.client] = _Known(offset, source.version, source.share, log_scale, path)

    def by_client(
        self, updates: FloatArray, weights: FloatArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return what every client would send now, and its vote: what robust rules combine.

        Clients that answered have sent it: these rows come first. Of the others it is what they differed by when they
        were heard, from what those that answered have in common. Each client votes with its share of the objective,
        however often it answers, so that the fastest cannot outvote the others.
        """
        total = float(weights.sum())
        if not self._known:
            return updates, weights
        mean = self._mean()
        common = np.zeros(updates.shape[1])
        for place, source in enumerate(sources):
            offset = self._offset(source) if source.client in self._known else mean
            common += weights[place] / total * (updates[place] - self._predicted * offset)
        answered = {source.client for source in sources}
        others = [client for client in self._known if client not in answered]
        rows = [common + self._predicted * self._known[client].shrunk_to(self._was.log_scale) for client in others]
        shares = np.array([source.share for source in sources] + [self._known[client].share for client in others])
        votes = shares * (total / float(shares.sum())) if shares.any() else np.full(shares.size, total / shares.size)
        return np.concatenate([updates, np.array(rows).reshape(len(others), updates.shape[1])]), votes

    def freed(
        self, updates: FloatArray, weights: FloatArray, fresh: BoolArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the step without what is the clients' own, and what fresh answers differ from."""
        step = weights @ updates
        counting = fresh & (weights > 0)
        if not counting.any():
            counting = weights > 0
        known = np.array([source.client in self._known for source in sources])
        if self._known:
            mean = self._mean()
            for place in np.flatnonzero(known & (weights != 0)):
                own = self._offset(sources[place]) - mean
                step = step - weights[place] * self._predicted * own
        # Those that are heard for the first time cannot say how far the reference has moved, unless all of them are.
        telling = counting & known if (counting & known).any() else counting
        total = float(weights[telling].sum())
        reference = np.zeros(updates.shape[1])
        for place in np.flatnonzero(telling):
            offset = self._offset(sources[place]) if known[place] else 0.0
            reference = reference + weights[place] / total * (updates[place] - offset)
        return step, reference

    def learn(self, updates: FloatArray, sources: tuple[Source, ...]) -> None:
        """Measure how well what was remembered predicts what came, relative to the mean of those that were heard."""
        known = [place for place, source in enumerate(sources) if source.client in self._known]
        if len(known) < 2:
            return
        now = updates[known]
        now -= now.mean(axis=0)
        before = np.array([self._offset(sources[place]) for place in known])
        before -= before.mean(axis=0)
        were, are, both = float(np.vdot(before, before)), float(np.vdot(now, now)), float(np.vdot(now, before))
        if not (were > 0 and are > 0):
            return
        b = self._predicted = min(max(both / were, 0.0), 1.0)
        self._left = min(max((are - 2 * b * both + b * b * were) / are, 0.0), 1.0)
        # The offsets have been shrunk already, step by step since the clients were heard: it was by so much too little.
        age = float(np.mean([self._version - self._known[sources[place].client].version for place in known]))
        shrinking = self._was.shrinking * (are / were) ** (0.5 / max(age, 1.0))
        kept = KEPT if self._was.disagreement_left < 1 else 0.0  # the first measurement is all there is
        self._shrinking = kept * self._shrinking + (1 - kept) * min(max(shrinking, LEAST_SHRINKING), 1.0)

    def state(
        self,
        after: Remembered,
        reference: FloatArray,
        square: float,
        spread: float,
        awaited: frozenset[int] | None,
        room: int,
    ) -> Remembered:
        """Return everything as it is remembered until the next step, of `room` clients at the most.

        Args:
            after: what momentum remembers.
            reference: what fresh answers differ from.
            square: |u|^2 of the step.
            spread: sum of the squared weights on fresh answers.
            awaited: versions of the model that clients still train from; None = not known.
            room: clients that can be remembered.
        """
        clients = tuple(self._known)[-room:]
        known = [self._known[client] for client in clients]
        versions = [version for version in self._references if awaited is None or version in awaited]
        most = min(VERSIONS, room) if awaited is None else room
        versions = versions[-(most - 1) :]  # and the one of this step
        references = {version: self._references[version] for version in versions}
        references[self._version] = _Reference(reference, self._was.log_scale, self._was.path, square, spread)
        ages = np.array([self._version + 1 - each.version for each in known])
        shares = np.array([each.share for each in known])
        shares = shares / (shares.sum() or 1.0)
        path = self._was.path + after.moved
        gone = float(shares @ np.array([path - each.path for each in known]))
        drift, unit, mean_square = self._was.drift_square, self._was.drift_unit, self._was.mean_square
        if (found := self._drift.common()) is not None:
            kept = KEPT if unit > 0 else 0.0
            drift = kept * drift + (1 - kept) * self._predicted**2 * found[0]
            unit = kept * unit + (1 - kept) * found[1]
        kept = KEPT if mean_square > 0 else 0.0
        mean_square = kept * mean_square + (1 - kept) * square
        # Until late answers tell, one client alone is taken to miss what everybody's updates change by on the way.
        per_way = max(drift, 0.0) / unit if unit > 0 else after.curvature**2
        return replace(
            after,
            drift=per_way * gone**2 / mean_square if mean_square > 0 else 0.0,
            drift_square=drift,
            drift_unit=unit,
            mean_square=mean_square,
            offsets=after.offsets.of(each.offset for each in known),
            references=after.references.of(each.mean for each in references.values()),
            remembered_clients=clients,
            remembered_versions=tuple(each.version for each in known),
            remembered_shares=tuple(each.share for each in known),
            remembered_scales=tuple(each.log_scale for each in known),
            reference_versions=tuple(references),
            reference_scales=tuple(each.log_scale for each in references.values()),
            log_scale=self._was.log_scale + math.log(self._shrinking),
            shrinking=self._shrinking,
            predicted=self._predicted,
            disagreement_left=self._left,
            square=square,
            path=path,
            remembered_paths=tuple(each.path for each in known),
            reference_paths=tuple(each.path for each in references.values()),
            reference_squares=tuple(each.square for each in references.values()),
            reference_spreads=tuple(each.spread for each in references.values()),
            mean_age=float(shares @ ages),
            remembered=len(clients),
        )

    def _offset(self, source: Source) -> FloatArray:
        """Return what a client differed by, shrunk to the present."""
        return self._known[source.client].shrunk_to(self._was.log_scale)

    def _mean(self) -> FloatArray:
        """Return the mean offset, weighted by the clients' shares."""
        known = list(self._known.values())
        total = sum(each.share for each in known) or 1.0  # clients without a share say nothing
        mean = np.zeros(known[0].offset.size)
        for each in known:  # one by one: a table of them all would be as large as the memory itself
            mean += each.shrunk_to(self._was.log_scale, each.share / total)
        return mean
