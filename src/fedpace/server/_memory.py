"""The memory of the server step `remembering`: its state, and `Memory`, which updates the state in one step.

Terms: a client's *offset* is its update minus the *reference* of the model version that it trained from. A *fresh*
answer is to the current version, a *late* one to an older version. `remembering.py` has the equations.
"""

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
"""Part of the old value that running averages keep per step: shrinking, drift and |u|^2."""
LEAST_SHRINKING = 0.5
"""Smallest factor by which offsets may shrink per step; two clients can agree by accident."""
VERSIONS = 128
"""Number of references to keep if the host does not report which model versions clients still train from."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Remembered(Lead):
    """State of `remembering`: the clients' offsets, the references of past model versions, and the momentum.

    Shapes: m remembered clients, v remembered model versions, d parameters. Scales are stored as logarithms, because
    offsets keep shrinking for as long as the model converges.
    """

    offsets: Stack
    """(m, d) each client's offset, from its newest answer."""
    references: Stack
    """(v, d) the reference of each model version."""
    remembered_clients: tuple[object, ...] = ()
    """(m,) the clients, in the order in which they were heard."""
    remembered_versions: tuple[int, ...] = ()
    """(m,) the model version that each client's newest answer was trained from."""
    remembered_shares: tuple[float, ...] = ()
    """(m,) the clients' shares of the objective."""
    remembered_scales: tuple[float, ...] = ()
    """(m,) `log_scale` at the version of each client's newest answer."""
    reference_versions: tuple[int, ...] = ()
    """(v,) the model versions that have a reference."""
    reference_scales: tuple[float, ...] = ()
    """(v,) `log_scale` at each version."""
    log_scale: float = 0.0
    """Logarithm of the factor by which offsets have shrunk since the first step."""
    shrinking: float = 1.0
    """Factor by which offsets shrink per step."""
    predicted: float = 1.0
    """b: the slope of new offsets against remembered ones, in [0, 1]; 1 until measured."""
    disagreement_left: float = 1.0
    """Part of the clients' squared disagreement that the memory does not explain."""
    square: float = 0.0
    """|u|^2 of the last step, before momentum and FedExP lengthened it."""
    drift: float = 0.0
    """Squared error that all remembered offsets share, divided by |u|^2 and by the step's sum of squared weights."""
    drift_square: float = 0.0
    """Running average of the squared common change of offsets that late answers revealed. The unit is |u|^2 of the step
    made from the version that the late answers belong to."""
    drift_unit: float = 0.0
    """Running average of the squared distance that the model moved meanwhile, times that step's sum of squared weights,
    in the same unit."""
    mean_square: float = 0.0
    """Running average of |u|^2 over steps."""
    path: float = 0.0
    """Total distance that the model has moved."""
    remembered_paths: tuple[float, ...] = ()
    """(m,) `path` at the version of each client's newest answer."""
    reference_paths: tuple[float, ...] = ()
    """(v,) `path` at each version."""
    reference_squares: tuple[float, ...] = ()
    """(v,) |u|^2 of the step made from each version."""
    reference_spreads: tuple[float, ...] = ()
    """(v,) sum of squared weights in that step."""
    mean_age: float = 0.0
    """Mean number of steps since each client's newest answer, weighted by shares."""
    remembered: int = 0
    """Number of clients with an offset."""


class _Known(NamedTuple):
    """What the server remembers about one client."""

    offset: NDArray[Any]
    version: int
    share: float
    log_scale: float
    path: float

    def shrunk_to(self, log_scale: float, weight: float = 1.0) -> FloatArray:
        """Return the offset rescaled to `log_scale`, times `weight`."""
        return weight * math.exp(log_scale - self.log_scale) * self.offset.astype(np.float64)


class _Reference(NamedTuple):
    """The reference of one model version, and the step that was made from it."""

    mean: NDArray[Any]
    log_scale: float
    path: float
    square: float
    spread: float

    def parts(self, change: FloatArray, way: float) -> tuple[FloatArray, float]:
        """Return a change of offsets and the distance moved, in units of the step that was made from this version.

        Updates shrink faster than distances during training. Without these units, the first steps would dominate the
        averages forever. The distance is multiplied by the root of `spread`, since the reference's error grows with it.
        """
        return change / math.sqrt(self.square), way * math.sqrt(self.spread / self.square)


def _entries(kind: Callable[..., E], keys: Iterable[K], *columns: Iterable[Any]) -> dict[K, E]:
    """Return a dictionary from `keys` to `kind` objects built from parallel columns."""
    return dict(zip(keys, starmap(kind, zip(*columns, strict=True)), strict=True))


class Memory:
    """Mutable working copy of the memory during one step."""

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
        if len(state.reference_squares) != len(state.reference_versions):  # a state saved by an older release
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
        """Remember a client's offset from a fresh answer."""
        self._remember(source, offset, self._was.log_scale, self._was.path)

    def remember_late(self, source: Source, update: FloatArray) -> None:
        """Remember a late answer; ignore it if its version has no reference, or if a newer answer is known."""
        then, known = self._references.get(source.version), self._known.get(source.client)
        if then is None or (known is not None and source.version < known.version):
            return
        if known is not None and source.version > known.version and then.square > 0:
            was = known.shrunk_to(then.log_scale)
            self._drift.add(source.share, *then.parts(update - then.mean - was, then.path - known.path))
        self._remember(source, update - then.mean, then.log_scale, then.path)

    def _remember(self, source: Source, offset: FloatArray, log_scale: float, path: float) -> None:
        self._known.pop(source.client, None)  # reinsert last: order of hearing
        self._known[source.client] = _Known(offset, source.version, source.share, log_scale, path)

    def by_client(
        self, updates: FloatArray, weights: FloatArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return one row per known client and one vote per row, for a robust rule to combine.

        The first rows are the updates that were sent. For every other remembered client, the row predicts its update:
        what the senders have in common, plus b times the client's offset. Each client votes with its share of the
        objective, however often it answers, so that fast clients cannot outvote slow ones.
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
        """Return the step after the correction by offsets, and the reference for fresh answers."""
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
        # Clients heard for the first time have no offset, so they define the reference only if no other client can.
        telling = counting & known if (counting & known).any() else counting
        total = float(weights[telling].sum())
        reference = np.zeros(updates.shape[1])
        for place in np.flatnonzero(telling):
            offset = self._offset(sources[place]) if known[place] else 0.0
            reference = reference + weights[place] / total * (updates[place] - offset)
        return step, reference

    def learn(self, updates: FloatArray, sources: tuple[Source, ...]) -> None:
        """Measure b, the unexplained disagreement and the shrinking, on fresh answers from remembered clients.

        Both old and new offsets are taken relative to their means over these clients.
        """
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
        # The remembered offsets were already shrunk at the old rate; their ratio to the new ones corrects that rate.
        age = float(np.mean([self._version - self._known[sources[place].client].version for place in known]))
        shrinking = self._was.shrinking * (are / were) ** (0.5 / max(age, 1.0))
        kept = KEPT if self._was.disagreement_left < 1 else 0.0  # the first measurement replaces the default
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
        """Return the state for the next step, with at most `room` clients.

        Args:
            after: the state after the momentum step.
            reference: the reference for fresh answers.
            square: |u|^2 of the step.
            spread: sum of the squared weights of fresh answers.
            awaited: model versions that clients still train from; None = unknown.
            room: largest number of clients to remember.
        """
        clients = tuple(self._known)[-room:]
        known = [self._known[client] for client in clients]
        versions = [version for version in self._references if awaited is None or version in awaited]
        most = min(VERSIONS, room) if awaited is None else room
        versions = versions[-(most - 1) :]  # leaves room for this step's reference
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
        # Before any late answer, assume the worst: offsets change with the full curvature that the steps have shown.
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
        """Return the client's offset, rescaled to the current step."""
        return self._known[source.client].shrunk_to(self._was.log_scale)

    def _mean(self) -> FloatArray:
        """Return the mean offset over all remembered clients, weighted by their shares."""
        known = list(self._known.values())
        total = sum(each.share for each in known) or 1.0  # all shares may be 0
        mean = np.zeros(known[0].offset.size)
        for each in known:  # one at a time: a stacked array would double the memory
            mean += each.shrunk_to(self._was.log_scale, each.share / total)
        return mean
