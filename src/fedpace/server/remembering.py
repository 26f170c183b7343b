"""Nesterov's momentum (`nesterov.py`) on updates that are freed of what is each client's own.

How a client's update differs from the average of all changes slowly: the same data pull it to the same side, step after
step. So the difference is remembered, and taken off when the client answers again:

    u = sum_i a_i (u_i - b (h_i - mean of all h)),        h_i = what client i differed by when it was heard last.

A few fast clients then speak for everybody, as far as everybody was heard at all; and an answer to an old model, whose
client is slow, is worth as much as a new one: it says how the client differed, which is what is remembered. Plain
control variates (SAGA; MIFA; CA2FL) remember updates themselves, which are out of date as soon as the model has moved.

What a client differs from must itself not depend on who answered, nor on what is remembered: an error in it would come
back through the memory, later and larger. So h_i is what it differed by from the reference r = sum_i a_i (u_i - h_i) of
the model that it was given. The reference moves with the model as clients do, up to a constant of its own, and the mean
of all h, which is taken off, removes that constant.

Three numbers are measured in every step, on clients that were heard before: how much differences shrink from step to
step as training converges; b, how well the old ones predict the new ones; and which part of the clients' disagreement
is left, which says to a scheme how few clients do. docs/theory.md derives all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpace.core.checks import BoolArray, FloatArray, above, between, finite
from fedpace.core.stepping import Answers, Part, Source, Stack, Vector, like
from fedpace.server.nesterov import Lead, Nesterov

KEPT = 0.7
"""What the measured shrinking keeps of what it was: it is a rate, told from two lengths."""
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
    mean_age: float = 0.0
    """Steps since clients were heard, weighted by their shares."""
    remembered: int = 0
    """Clients with an offset."""


@dataclass(frozen=True)
class Remembering:
    """Momentum on updates without what is the clients' own.

    Args:
        power: exponent of FedExP's factor, momentum included: 0 = steps are not lengthened.
        memory_gib: room for what clients differ by, 4 bytes per client and parameter, and as much for what they differ
            from; beyond it the clients that were heard of longest ago are forgotten.
    """

    name: ClassVar[str] = "remembering"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "rows"})

    power: float = 1.0
    memory_gib: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        between(self.power, 0, 1, "power of remembering")
        above(self.memory_gib, 0, "memory_gib of remembering")
        finite(self.memory_gib, "memory_gib of remembering")

    def init(self, zero: Vector) -> Remembered:
        """Nothing is remembered."""
        return Remembered(momentum=zero, last=zero, offsets=Stack.none(zero), references=Stack.none(zero))

    def apply(self, state: Remembered, model: Vector, answers: Answers) -> tuple[Vector, Remembered]:
        """Return the model that is sent next. Where the host does not say whose answers they are, it is `nesterov`."""
        moment = Nesterov(self.power)
        if len(answers.sources) != len(answers.rows):
            return moment.apply(state, model, answers)
        memory = _Memory(state, answers.version)
        updates = np.array([np.asarray(row) for row in answers.rows])
        fresh = np.array([source.version == answers.version for source in answers.sources])
        for update, source in zip(updates[~fresh], _some(answers.sources, ~fresh), strict=True):
            memory.remember_late(source, update)
        memory.learn(updates[fresh], _some(answers.sources, fresh))  # first: what is taken off is measured in this step
        step, reference = memory.freed(updates, answers.weights, fresh, answers.sources)
        for update, source in zip(updates[fresh], _some(answers.sources, fresh), strict=True):
            memory.hear_now(source, update - reference)
        whole = Answers(like(answers.step, step), answers.weights, None, answers.mean_square)
        model, after = moment.apply(state, model, whole)
        room = max(2, int(self.memory_gib * 2**30) // (4 * step.size))
        return model, memory.state(after, reference, float(step @ step), answers.awaited, room)


class _Known(NamedTuple):
    """What is remembered of one client."""

    offset: NDArray[Any]
    version: int
    share: float
    log_scale: float


class _Memory:
    """The offsets while a step is made."""

    def __init__(self, state: Remembered, version: int) -> None:
        self._was = state
        self._version = version
        known = zip(
            state.offsets.rows,
            state.remembered_versions,
            state.remembered_shares,
            state.remembered_scales,
            strict=True,
        )
        self._known = dict(zip(state.remembered_clients, (_Known(*each) for each in known), strict=True))
        self._references = {
            version: (reference, log_scale)
            for version, reference, log_scale in zip(
                state.reference_versions, state.references.rows, state.reference_scales, strict=True
            )
        }
        self._predicted, self._left, self._shrinking = state.predicted, state.disagreement_left, state.shrinking

    def remember(self, source: Source, offset: FloatArray, log_scale: float) -> None:
        """Remember what a client differed by, and how far differences had shrunk then."""
        self._known.pop(source.client, None)  # so that the order is that in which they were heard
        self._known[source.client] = _Known(offset, source.version, source.share, log_scale)

    def hear_now(self, source: Source, offset: FloatArray) -> None:
        """Remember what a client differed by in this step."""
        self.remember(source, offset, self._was.log_scale)

    def remember_late(self, source: Source, update: FloatArray) -> None:
        """Remember an answer to an older model; one that is too old says nothing any more."""
        then, known = self._references.get(source.version), self._known.get(source.client)
        if then is not None and (known is None or source.version >= known.version):
            self.remember(source, update - then[0], then[1])

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
        self, after: Remembered, reference: FloatArray, square: float, awaited: frozenset[int] | None, room: int
    ) -> Remembered:
        """Return everything as it is remembered until the next step, of `room` clients at the most."""
        clients = tuple(self._known)[-room:]
        known = [self._known[client] for client in clients]
        versions = [version for version in self._references if awaited is None or version in awaited]
        versions = versions[-(min(VERSIONS if awaited is None else room, room) - 1) :]
        references: dict[int, tuple[NDArray[Any], float]] = {version: self._references[version] for version in versions}
        references[self._version] = (reference, self._was.log_scale)
        ages = np.array([self._version + 1 - each.version for each in known])
        shares = np.array([each.share for each in known])
        return replace(
            after,
            offsets=after.offsets.of(each.offset for each in known),
            references=after.references.of(vector for vector, _ in references.values()),
            remembered_clients=clients,
            remembered_versions=tuple(each.version for each in known),
            remembered_shares=tuple(each.share for each in known),
            remembered_scales=tuple(each.log_scale for each in known),
            reference_versions=tuple(references),
            reference_scales=tuple(log_scale for _, log_scale in references.values()),
            log_scale=self._was.log_scale + math.log(self._shrinking),
            shrinking=self._shrinking,
            predicted=self._predicted,
            disagreement_left=self._left,
            square=square,
            mean_age=float(shares @ ages / shares.sum()) if shares.any() else 0.0,
            remembered=len(clients),
        )

    def _shrunk(self, known: _Known) -> float:
        """By how much a difference has shrunk since it was heard."""
        return math.exp(self._was.log_scale - known.log_scale)

    def _offset(self, source: Source) -> FloatArray:
        """Return what a client differed by, shrunk to the present."""
        known = self._known[source.client]
        return self._shrunk(known) * known.offset.astype(np.float64)

    def _mean(self) -> FloatArray:
        """Return the mean offset, weighted by the clients' shares."""
        known = list(self._known.values())
        total = sum(each.share for each in known) or 1.0  # those that are trusted with nothing say nothing
        mean = np.zeros(known[0].offset.size)
        for each in known:  # one by one: a table of them all would be as large as the memory itself
            mean += each.share / total * self._shrunk(each) * each.offset.astype(np.float64)
        return mean


def _some(sources: tuple[Source, ...], which: BoolArray) -> tuple[Source, ...]:
    return tuple(source for source, wanted in zip(sources, which.tolist(), strict=True) if wanted)
