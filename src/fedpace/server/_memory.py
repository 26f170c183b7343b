"""What `memory-corrected` remembers, and its working copy of that during one step.

The server rule is `fedpace.server.memory_corrected`; read its docstring first: it has the formulas. `MemoryState` is
saved between steps. `Memory` takes in the answers of one step, measures what it can, and returns the next state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace.core.server_rule import (
    SingleArray,
    Source,
    Stack,
    Vector,
    same,
)
from fedpace.numerics.parts import LARGE, in_parts, inner
from fedpace.server._row_store import Row, RowStore
from fedpace.server.nesterov import MomentumState

E = TypeVar("E")
K = TypeVar("K")

Updates = Sequence[Any]
"""The updates of k clients: vectors, or `fedpace.core.server_rule.Update` for a large model."""

KEPT = 0.7
"""Part of the old value that running averages keep per step: shrinking, disagreement and |u|^2."""
LEAST_SHRINKING = 0.5
"""Smallest factor by which offsets may shrink per step; two clients can agree by accident."""
VERSIONS = 128
"""Number of references to keep if the host does not report which model versions clients still train from."""
EVIDENCE = 0.25
"""Share of the clients' weight whose late answers replace all earlier evidence of how coherent changes are."""
JUMP = 10.0
"""Largest factor by which one step may change the measured disagreement; |u| can be close to 0 by accident."""
SHORTEST = 0.5
"""Rather than shorten a step to less than this part, forget old offsets: training goes on if clients stay silent."""
UNKNOWN = -1.0
"""Drift of a client that has not revealed it."""
SIMILAR = 2.0
"""Clients whose numbers of local steps differ by less than this factor count as equally responsive."""
LEAST_RESPONSE = 0.1
"""Least response of a client: updates are divided by it, and a client that claims few local steps must not count more
than ten times as much in a reference."""
LEAST_DRIFT = 0.5
"""Least drift of a client that responds far more than the clients that answered: half of what it may respond."""
LARGEST = 1e100
"""Ignore changes with a coordinate at or above this size: their squares would overflow."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryState(MomentumState):
    """State of `memory-corrected`: the clients' offsets, the references of past model versions, and the momentum.

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
    remembered_paths: tuple[float, ...] = ()
    """(m,) `path` at the version of each client's newest answer."""
    remembered_drifts: tuple[float, ...] = ()
    """(m,) drift of each client: the change of its offset per distance that the model moved; -1 = not revealed yet."""
    remembered_lengths: tuple[float, ...] = ()
    """(m,) |u_j| of each client's newest answer."""
    remembered_responses: tuple[float, ...] = ()
    """(m,) s_j: how long each client's updates are, and how much they change, relative to those of a usual client."""
    reference_versions: tuple[int, ...] = ()
    """(v,) the model versions that have a reference."""
    reference_scales: tuple[float, ...] = ()
    """(v,) `log_scale` at each version."""
    reference_paths: tuple[float, ...] = ()
    """(v,) `path` at each version."""
    reference_squares: tuple[float, ...] = ()
    """(v,) |u|^2 of the step made from each version."""
    reference_lengths: tuple[float, ...] = ()
    """(v,) typical |u_i| / s_i of the answers to each version."""
    usual_steps: float = 0.0
    """Local steps of a client with s_j = 1: the geometric mean over the first answers; 0 = not reported yet."""
    log_scale: float = 0.0
    """Logarithm of the factor by which offsets have shrunk since the first step."""
    shrinking: float = 1.0
    """Factor by which offsets shrink per step."""
    predicted: float = 1.0
    """b: the slope of new offsets against remembered ones, in [0, 1]; 1 until measured."""
    disagreement: float = 0.0
    """Running average of the variance between clients' updates, divided by |u|^2; 0 until measured."""
    disagreement_left: float = 1.0
    """Part of that variance that the memory does not explain."""
    square: float = 0.0
    """|u|^2 of the last step, before momentum and FedExP lengthened it."""
    mean_square: float = 0.0
    """Running average of |u|^2 over steps."""
    path: float = 0.0
    """Total distance that the model has moved."""
    common_change: float = 0.0
    """Decaying sum of the squared length of the mean change of offsets, over groups of late answers."""
    total_change: float = 0.0
    """The same sum with the mean length of the changes in place of the length of their mean."""
    memory_error: float = 0.0
    """Expected squared error of the predicted average update if no client answers, divided by |u|^2."""
    reach_spent: float = 0.0
    """Part of the limit `reach` that a next move as long as the last one would use up; 0 without a limit."""
    mean_age: float = 0.0
    """Mean number of steps since each client's newest answer, weighted by shares."""
    remembered: int = 0
    """Number of clients with an offset."""
    offset_sum: Vector
    """(d,) sum of the offsets, each rescaled to `log_scale` and times its share, for large models; else (0,)."""
    memory_bits: int = 32
    """Bits per value of the stored offsets."""
    memory_bytes: int = 0
    """Bytes of the stored offsets and references."""
    forgotten_clients: tuple[object, ...] = ()
    """Clients that the last step forgot, because memory was full or because they had been silent for too long."""
    told: str = ""
    """What the last step said about its memory; empty if nothing changed."""

    @property
    def notes(self) -> dict[str, Any]:
        """What to record about the last step: the form of the memory if it is unusual, and who was forgotten."""
        told: dict[str, Any] = {"memory": self.told} if self.told and self.memory_bits < 32 else {}
        return told | ({"forgotten": [str(each) for each in self.forgotten_clients]} if self.forgotten_clients else {})


class _Client(NamedTuple):
    """What the server remembers about one client."""

    offset: Row
    version: int
    share: float
    log_scale: float
    path: float
    drift: float
    length: float
    response: float = 1.0

    def factor(self, log_scale: float, weight: float = 1.0) -> float:
        """Return the number that rescales the offset to `log_scale`, times `weight`."""
        return weight * math.exp(log_scale - self.log_scale)


class _Reference(NamedTuple):
    """The reference of one model version, and the step that was made from it."""

    mean: Row
    log_scale: float
    path: float
    square: float
    length: float = 1.0


def _entries(kind: Callable[..., E], keys: Iterable[K], *columns: Iterable[Any]) -> dict[K, E]:
    """Return a dictionary from `keys` to `kind` objects built from parallel columns."""
    return dict(zip(keys, starmap(kind, zip(*columns, strict=True)), strict=True))


class Memory:
    """Mutable working copy of the memory during one step.

    Vectors are handled part by part (`fedpace.numerics.parts`), so that there are no temporary copies of whole vectors;
    a small model is one part. For a large model, the sum of all offsets is part of the state. A step changes the sum by
    the clients that answered, so that its time does not grow with the number of remembered clients.
    """

    def __init__(
        self,
        state: MemoryState,
        version: int,
        reach: float = 0.0,
        store: RowStore | None = None,
        *,
        owned: bool = False,
        awaited: frozenset[int] | None = None,
    ) -> None:
        self._was, self._reach = state, reach
        self._awaited = awaited
        self._version = version
        self._store = RowStore(state.offsets.empty.shape[1]) if store is None else store
        self._clients = _entries(
            _Client,
            state.remembered_clients,
            map(self._store.keep, state.offsets.rows),
            state.remembered_versions,
            state.remembered_shares,
            state.remembered_scales,
            state.remembered_paths,
            state.remembered_drifts,
            state.remembered_lengths,
            state.remembered_responses,
        )
        self._references = _entries(
            _Reference,
            state.reference_versions,
            (self._store.keep(row, self._store.reference_bits) for row in state.references.rows),
            state.reference_scales,
            state.reference_paths,
            state.reference_squares,
            state.reference_lengths,
        )
        self._predicted, self._left, self._shrinking = state.predicted, state.disagreement_left, state.shrinking
        self._variance = 0.0
        """Variance between clients' updates; 0 = not measured in this step."""
        self._changes: list[tuple[float, float]] = []
        """Share and length of each change of an offset, in units of the step that shows it."""
        self._change_sum: Row = np.zeros(0)
        """Sum of the changes, each times its share."""
        self._common_length = 0.0
        """Length of that sum, once the sum is dropped."""
        self._sum = self._summed(state, owned=owned) if self._store.length > LARGE else None
        """(d,) sum of the offsets, each rescaled to the current step and times its share; None for a small model."""
        self._owned = owned and self._sum is not None
        """Write new rows over old ones."""
        self.overwritten: tuple[set[object], set[int]] = (set(), set())
        """The clients and the versions whose rows in the state before the step are no longer theirs."""
        self.covered = 0.0
        """Share of the objective that the memory had before the fresh answers of the step."""
        self._usual_steps = state.usual_steps
        self._lengths: dict[object, float] = {}
        """|u_i| of the fresh answers, by client."""
        self._now = _Reference(np.zeros(0), state.log_scale, state.path, 0.0)
        self._telling_response = 1.0
        """Mean s_i of the clients that define the reference of this step."""

    @property
    def share(self) -> float:
        """Share of the objective that the remembered clients have together."""
        return sum(each.share for each in self._clients.values())

    # -- late answers ------------------------------------------------------------------------------------------

    def remember_late(self, source: Source, update: Any) -> None:
        """Remember a late answer; ignore it if its version has no reference, or if a newer answer is known."""
        then, known = self._references.get(source.version), self._clients.get(source.client)
        if then is None or (known is not None and source.version < known.version):
            return
        row = self._blank() if known is None else self._over(source.client, known)
        factor = source.share * math.exp(self._was.log_scale - then.log_scale)
        response = self._response(source, then.length, lambda: _length(update[:]))
        shows = known is not None and then.path > known.path and then.square > 0
        if shows and not self._change_sum.size:
            self._change_sum = np.zeros(self._store.length, np.float32 if self._store.single else np.float64)
        # In units of that step, because updates shrink during training: old steps would dominate the sums.
        unit = math.sqrt(then.square) if shows else 1.0

        def put(part: slice) -> tuple[float, float, float, bool]:
            values = update[part]
            offset = values - response * self._store.values(then.mean, part)
            square, relative_square, small = 0.0, 0.0, True
            if known is not None:  # first, because the new row may be written over the known one
                if shows:
                    change = offset - self._shrunk(known, then.log_scale, part)
                    small = float(np.abs(change).max(initial=0.0)) < LARGEST
                    if small:
                        square, relative = self._inner(change, change), change / unit
                        relative_square = self._inner(relative, relative)
                        self._change_sum[part] += source.share * relative
                if self._sum is not None:
                    self._sum[part] -= self._shrunk(known, self._was.log_scale, part, known.share)
            stored = self._store.put(row, offset, part.start)
            if self._sum is not None:
                self._sum[part] += factor * stored
            return self._inner(values, values), square, relative_square, small

        lengths, squares, relatives, smalls = zip(*in_parts(put, self._store.length), strict=True)
        drift = UNKNOWN if known is None else known.drift
        if known is not None and shows and all(smalls):
            self._changes.append((source.share, math.sqrt(sum(relatives))))
            shown = self._predicted * math.sqrt(sum(squares)) / (then.path - known.path)
            drift = max(shown, KEPT * drift + (1 - KEPT) * shown)  # rises at once, falls slowly
        elif any(smalls) and not all(smalls):  # a part of a change that is too large is in the sum
            self._changes, self._change_sum = [], np.zeros(0)
        self._remember(source, row, then, drift, math.sqrt(sum(lengths)), response)

    def _remember(
        self, source: Source, row: Row, then: _Reference, drift: float, length: float, response: float
    ) -> None:
        self._clients.pop(source.client, None)  # reinsert last: order of hearing
        self._clients[source.client] = _Client(
            row, source.version, source.share, then.log_scale, then.path, drift, length, response
        )

    def _response(self, source: Source, usual: float, length: Callable[[], float]) -> float:
        """Return s_j of the client of an answer: how its update compares in length with a usual one.

        It is measured on the client's first answer. It lies between 1 and the ratio of local steps, because updates
        grow at most in proportion to them, and it is at least `LEAST_RESPONSE`, because clients only claim their steps.
        It is 1 for clients with a similar number of steps, or an unknown one: their lengths differ because their data
        do.

        Args:
            source: the answer.
            usual: typical |u_i| / s_i of answers to the same version.
            length: returns |u_j|; called only if it matters.
        """
        known = self._clients.get(source.client)
        if known is not None:
            return known.response
        ratio = source.steps / self._usual_steps if self._usual_steps else math.nan
        if not ratio > 0 or 1 / SIMILAR <= ratio <= SIMILAR or not usual > 0:  # NaN is not above 0
            return 1.0
        least = max(LEAST_RESPONSE, min(1.0, ratio * SIMILAR))
        return min(max(length() / usual, least), max(1.0, ratio / SIMILAR))

    def _blank(self, bits: int | None = None) -> Row:
        """Return a row to fill. In single precision, offsets of small models are rounded at the end of the step."""
        if self._sum is None and self._store.bits == 32:
            return np.empty(self._store.length)
        return self._store.blank(bits)

    def _over(self, client: object, known: _Client) -> Row:
        """Return the row to fill for a client that is known: its old one if the step may write over it."""
        if not (self._owned and self._store.fills(known.offset)):
            return self._blank()
        self.overwritten[0].add(client)
        return known.offset

    def _reference_row(self) -> Row:
        """Return the row of this step's reference: that of a version from which no answer can come any more."""
        bits = self._store.reference_bits
        done = () if self._awaited is None or not self._owned else self._references.keys() - self._awaited
        for version in sorted(done):
            row = self._references.pop(version).mean
            if self._store.fills(row, bits):
                self.overwritten[1].add(version)
                return row
        return self._blank(bits)

    def _inner(self, one: FloatArray, other: FloatArray) -> float:
        return float(one @ other) if self._sum is None else inner(one, other)

    def _shrunk(self, known: _Client, log_scale: float, part: slice = slice(None), weight: float = 1.0) -> FloatArray:
        """Return a part of a client's offset rescaled to `log_scale`, times `weight`."""
        return known.factor(log_scale, weight) * self._store.values(known.offset, part)

    # -- fresh answers -----------------------------------------------------------------------------------------

    def by_client(
        self, updates: FloatArray, weights: FloatArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return one row per known client and one vote per row, for a robust rule to combine.

        The first rows are the updates that were sent. For every other remembered client, the row predicts its update:
        what the senders have in common, plus b times the client's offset. Each client votes with its share of the
        objective, however often it answers, so that fast clients cannot outvote slow ones.
        """
        total = float(weights.sum())
        if not self._clients:
            return updates, weights
        mean = self._mean(slice(None), self.share)
        common = np.zeros(updates.shape[1])
        for place, source in enumerate(sources):
            known = self._clients.get(source.client)
            offset = mean if known is None else self._shrunk(known, self._was.log_scale)
            response = 1.0 if known is None else known.response**self._predicted
            common += weights[place] / total * (updates[place] - self._predicted * offset) / response
        answered = {source.client for source in sources}
        others = [client for client in self._clients if client not in answered]
        rows = [
            each.response**self._predicted * common + self._predicted * self._shrunk(each, self._was.log_scale)
            for each in (self._clients[client] for client in others)
        ]
        shares = np.array([source.share for source in sources] + [self._clients[client].share for client in others])
        votes = shares * (total / float(shares.sum())) if shares.any() else np.full(shares.size, total / shares.size)
        return np.concatenate([updates, np.array(rows).reshape(len(others), updates.shape[1])]), votes

    def step(
        self, updates: Updates, weights: FloatArray, fresh: BoolArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, Row, float]:
        """Return the step u of the module's docstring, the reference for fresh answers, and sum a_i |u_i|^2.

        The fresh answers are remembered.
        """
        self._common_length, self._change_sum = _length(self._change_sum), np.zeros(0)  # makes room
        reweighted = self._reweight(sources)
        b, total = self._predicted, float(weights.sum())
        log_scale, whole = self._was.log_scale, self._store.length
        known = [self._clients.get(source.client) for source in sources]
        heard = np.array([each is not None for each in known])
        before = self.covered = self.share
        counting = fresh & (weights > 0)
        weight = weights.tolist()
        weighing, speaking = np.flatnonzero(weights != 0).tolist(), np.flatnonzero(counting).tolist()
        shares = {client: each.share for client, each in self._clients.items()}
        shares.update((sources[place].client, sources[place].share) for place in speaking)
        everybody = sum(shares.values())
        usual, responses = self._responses(sources, fresh)
        # s_j^b: where offsets predict nothing (b = 0), clients that did not answer count like those that did.
        powers = [response**b for response in responses]
        responding = {client: each.share * each.response**b for client, each in self._clients.items()}
        responding.update((sources[place].client, sources[place].share * powers[place]) for place in speaking)
        mean_response = sum(responding.values()) / everybody if everybody > 0 else 1.0
        # Clients heard for the first time have no offset, so they define the reference only if no other client can.
        if not counting.any():
            counting = weights > 0
        telling = counting & heard if (counting & heard).any() else counting
        told = float(weights[telling].sum())
        self._telling_response = float(weights[telling] @ np.array(responses)[telling]) / told if told > 0 else 1.0
        newest = {source.client: place for place, source in enumerate(sources) if fresh[place]}
        rows = {
            place: self._blank() if (each := known[place]) is None else self._over(sources[place].client, each)
            for place in sorted(newest.values())
        }
        used = sorted({*weighing, *rows})
        step: Row = np.empty(whole, dtype=np.float64 if self._sum is None else np.float32)
        reference = self._reference_row()

        def put(part: slice) -> list[float]:
            if self._sum is not None:
                for row, factor in reweighted:
                    self._sum[part] += factor * self._store.values(row, part)
            own = {place: updates[place][part] for place in used}
            offsets = {
                place: self._shrunk(each, log_scale, part) for place in used if (each := known[place]) is not None
            }
            mean = self._mean(part, before)
            common = np.zeros_like(mean)
            for place in weighing:
                common += weight[place] / total / powers[place] * (own[place] - b * offsets.get(place, mean))
            if everybody > 0:
                # `mean` covers the clients that were known before; those that answer now replace their prediction.
                found = mean_response * common + b * (before / everybody) * mean
                for place in speaking:
                    predicted = powers[place] * common
                    if heard[place]:
                        predicted = predicted + b * offsets[place]
                    found += sources[place].share / everybody * (own[place] - predicted)
            else:
                found = common + b * mean
            step[part] = total * found
            now = np.zeros_like(mean)
            for place in np.flatnonzero(telling).tolist():
                apart = own[place] - offsets[place] if heard[place] else own[place]
                now += weight[place] / told / responses[place] * apart
            self._store.put(reference, now, part.start)
            for place, row in rows.items():
                change = self._store.put(row, own[place] - responses[place] * now, part.start)
                if self._sum is not None:
                    self._sum[part] += sources[place].share * (change - offsets[place] if heard[place] else change)
            return [self._inner(own[place], own[place]) for place in used]

        squares = dict(zip(used, np.sum(in_parts(put, whole), axis=0).tolist(), strict=True))
        then = self._now = _Reference(reference, log_scale, self._was.path, 0.0, usual)
        for place, row in rows.items():
            each, length = known[place], math.sqrt(squares[place])
            drift = UNKNOWN if each is None else each.drift
            self._remember(sources[place], row, then, drift, length, responses[place])
        return step, reference, sum(weight[place] * squares[place] for place in weighing)

    def _responses(self, sources: tuple[Source, ...], fresh: BoolArray) -> tuple[float, list[float]]:
        """Return the typical |u_i| / s_i of the fresh answers, and s_i of all answers."""
        lengths = self._lengths
        told = [source for source, now in zip(sources, fresh.tolist(), strict=True) if now]
        if not self._usual_steps:
            steps = np.array([source.steps for source in told if source.steps > 0])
            self._usual_steps = float(np.exp(np.mean(np.log(steps)))) if steps.size else 0.0
        ratios = [
            lengths[source.client] / (1.0 if (each := self._clients.get(source.client)) is None else each.response)
            for source in [each for each in told if each.client in self._clients] or told
            if lengths.get(source.client, 0.0) > 0
        ]
        usual = float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
        # A late answer that was ignored has no length here; its response only has to be a number.
        all_lengths = {each.client: lengths.get(each.client, usual) for each in sources}
        return usual, [self._response(each, usual, partial(all_lengths.__getitem__, each.client)) for each in sources]

    def _reweight(self, sources: tuple[Source, ...]) -> list[tuple[Row, float]]:
        """Set the shares of clients that have changed since they were heard, and return what to add to the sum."""
        found = []
        for source in sources:
            each = self._clients.get(source.client)
            if each is not None and each.share != source.share:
                self._clients[source.client] = each._replace(share=source.share)
                found.append((each.offset, each.factor(self._was.log_scale, source.share - each.share)))
        return found

    def learn(self, updates: Updates, sources: tuple[Source, ...]) -> None:
        """Measure b, the disagreement, its unexplained part and the shrinking, on fresh answers.

        Both old and new offsets are taken relative to their means over the remembered clients that answered.
        """
        if not updates:
            return
        known = [place for place, source in enumerate(sources) if source.client in self._clients]
        spread, were, are, both = self._spread(updates, sources, known)
        if len(updates) > 1:
            self._variance = spread / (len(updates) - 1)
        if len(known) < 2:
            return
        if not (were > 0 and are > 0):
            return
        b = self._predicted = min(max(both / were, 0.0), 1.0)
        self._left = min(max((are - 2 * b * both + b * b * were) / are, 0.0), 1.0)
        # The remembered offsets were already shrunk at the old rate; their ratio to the new ones corrects that rate.
        age = float(np.mean([self._version - self._clients[sources[place].client].version for place in known]))
        shrinking = self._was.shrinking * (are / were) ** (0.5 / max(age, 1.0))
        kept = KEPT if self._was.disagreement_left < 1 else 0.0  # the first measurement replaces the default
        self._shrinking = kept * self._shrinking + (1 - kept) * min(max(shrinking, LEAST_SHRINKING), 1.0)

    def _spread(
        self, updates: Updates, sources: tuple[Source, ...], known: list[int]
    ) -> tuple[float, float, float, float]:
        """Return sums of squares of differences from the mean: of all updates, of offsets before and now, and of both.

        The last three are over the clients at `known`, with their updates divided by s_i; the last is the sum of the
        products of before and now. Lengths are kept for `_responses`.
        """
        clients = [self._clients[sources[place].client] for place in known]
        responses = [each.response for each in clients]
        equal = len(known) == len(updates) and all(response == 1 for response in responses)
        kind: Any = np.float64 if self._sum is None else np.float32

        def measure(part: slice) -> FloatArray:
            own = _table((update[part] for update in updates), len(updates), part, kind)
            squares = [self._inner(row, row) for row in own]
            now = own if equal else _centred(own[known] / np.array(responses, kind).reshape(-1, 1))
            apart = _centred(own)
            old = (self._shrunk(each, self._was.log_scale, part) / each.response for each in clients)
            before = _centred(_table(old, len(clients), part, kind))
            pairs = (apart, apart), (before, before), (now, now), (now, before)
            return np.array([*(self._inner(one.reshape(-1), other.reshape(-1)) for one, other in pairs), *squares])

        (spread, were, are, both), squares = np.split(np.sum(in_parts(measure, self._store.length), axis=0), [4])
        self._lengths = dict(zip((source.client for source in sources), np.sqrt(squares).tolist(), strict=True))
        return float(spread), float(were), float(are), float(both)

    def within(self, move: float) -> float:
        """Return the part of a move that the limit `reach` allows.

        If the limit allows less than `SHORTEST`, forget the clients heard longest ago until it does. This happens
        only if the scheme does not wait for these clients.
        """
        if not self._clients:  # a robust rule refused all before, and what is late is not remembered
            return 1.0
        clients = sorted(self._clients, key=lambda client: self._clients[client].path)
        shares = np.array([self._clients[client].share for client in clients])
        moved = shares * np.array([self._was.path - self._clients[client].path for client in clients])
        lengths = shares * np.array([self._clients[client].length for client in clients])
        # Entry k: how far the model may move if the first k clients are forgotten.
        shares, moved, lengths = (np.cumsum(each[::-1])[::-1] for each in (shares, moved, lengths))
        allowed = np.divide(self._reach * lengths - moved, shares, out=np.full(shares.size, math.inf), where=shares > 0)
        enough = np.flatnonzero(allowed >= SHORTEST * move)
        first = int(enough[0]) if enough.size else len(clients) - 1
        self._forget(clients[:first])
        return min(1.0, float(allowed[first]) / move) if move > 0 else 1.0

    def state(
        self,
        after: MemoryState,
        reference: FloatArray,
        square: float,
        spread: float,
        awaited: frozenset[int] | None,
        room: int,
    ) -> MemoryState:
        """Return the state for the next step, with at most `room` clients.

        Args:
            after: the state after the momentum step.
            reference: the reference for fresh answers.
            square: |u|^2 of the step.
            spread: sum of the squared weights of fresh answers.
            awaited: model versions that clients still train from; None = unknown.
            room: largest number of clients to remember.
        """
        heard = tuple(self._clients)
        self._forget(heard[:-room])
        clients = tuple(self._clients)
        known = [self._clients[client] for client in clients]
        versions = [version for version in self._references if awaited is None or version in awaited]
        most = min(VERSIONS, room) if awaited is None else room
        versions = versions[-(most - 1) :]  # leaves room for this step's reference
        references = {version: self._references[version] for version in versions}
        references[self._version] = self._now._replace(mean=reference, square=square)
        ages = np.array([self._version + 1 - each.version for each in known])
        shares = np.array([each.share for each in known])
        everybody = float(shares.sum()) or 1.0
        shares = shares / everybody
        path = self._was.path + after.moved
        common_change, total_change = self._change_sums(everybody)
        coherence = math.sqrt(common_change / total_change) if total_change > 0 else 1.0
        paths = np.array([path - each.path for each in known])
        # Clients that have not revealed their drift are assumed to change as fast as the steps have changed.
        unknown = min(after.curvature * math.sqrt(spread), 1.0)
        drifts = np.array([coherence * each.drift if each.drift >= 0 else unknown for each in known])
        drifts = np.maximum(drifts, self._least_drifts(known))
        error = float(shares @ (drifts * paths))
        mean_length = float(shares @ np.array([each.length for each in known]))
        # What a next move of the same length would use up.
        limit = self._reach * mean_length
        spent = (float(shares @ paths) + after.moved) / limit if limit > 0 else 0.0
        mean_square = square
        if self._was.mean_square > 0:
            mean_square = KEPT * self._was.mean_square + (1 - KEPT) * square
        offsets = [self._store.keep(each.offset) for each in known]
        means = [self._store.keep(each.mean, self._store.reference_bits) for each in references.values()]
        held = set(clients)
        if self._sum is not None:
            self._sum *= self._shrinking  # to the scale of the next step
        return replace(
            after,
            offsets=after.offsets.of(offsets),
            references=after.references.of(means),
            remembered_clients=clients,
            remembered_versions=tuple(each.version for each in known),
            remembered_shares=tuple(each.share for each in known),
            remembered_scales=tuple(each.log_scale for each in known),
            remembered_paths=tuple(each.path for each in known),
            remembered_drifts=tuple(each.drift for each in known),
            remembered_lengths=tuple(each.length for each in known),
            remembered_responses=tuple(each.response for each in known),
            reference_versions=tuple(references),
            reference_scales=tuple(each.log_scale for each in references.values()),
            reference_paths=tuple(each.path for each in references.values()),
            reference_squares=tuple(each.square for each in references.values()),
            reference_lengths=tuple(each.length for each in references.values()),
            usual_steps=self._usual_steps,
            log_scale=self._was.log_scale + math.log(self._shrinking),
            shrinking=self._shrinking,
            predicted=self._predicted,
            disagreement=self._disagreement(square),
            disagreement_left=self._left,
            square=square,
            mean_square=mean_square,
            path=path,
            common_change=common_change,
            total_change=total_change,
            memory_error=error**2 / mean_square if mean_square > 0 else 0.0,
            reach_spent=spent,
            mean_age=float(shares @ ages),
            remembered=len(clients),
            offset_sum=after.offset_sum if self._sum is None else same(after.offset_sum, self._sum),
            memory_bits=self._store.bits,
            memory_bytes=sum(row.nbytes for row in (*offsets, *means)),
            forgotten_clients=tuple(
                each for each in dict.fromkeys((*self._was.remembered_clients, *heard)) if each not in held
            ),
            told=self._told(),
        )

    def _least_drifts(self, clients: Sequence[_Client]) -> FloatArray:
        """Return the least drift of each client, from how much more it responds than the clients that answered.

        Their answers do not show how a client with many more local steps responds, so evidence may be missing.
        """
        responses = np.array([each.response for each in clients])
        return np.asarray(np.maximum(LEAST_DRIFT * (1 - SIMILAR * self._telling_response / responses), 0.0))

    def _forget(self, clients: Iterable[object]) -> None:
        """Forget clients."""
        gone = [self._clients.pop(client) for client in clients]
        if gone and self._sum is not None:
            self._add_to_sum(self._sum, gone, -1.0)

    def _summed(self, state: MemoryState, *, owned: bool) -> SingleArray:
        """Return the sum of the offsets, each rescaled to the current step and times its share.

        Args:
            state: its sum has length 0 if it is not known.
            owned: take the sum from the state, because the step changes it; if the step fails, a next one sums up anew.
        """
        kept = np.asarray(state.offset_sum)
        if len(kept) and state.memory_bits == self._store.bits:
            if owned:
                object.__setattr__(state, "offset_sum", state.offset_sum[:0])
            taken = owned and kept.dtype == np.float32 and kept.flags.writeable
            return kept if taken else np.array(kept, dtype=np.float32)
        found = np.zeros(self._store.length, dtype=np.float32)
        self._add_to_sum(found, list(self._clients.values()), 1.0)
        return found

    def _add_to_sum(self, total: SingleArray, clients: list[_Client], sign: float) -> None:
        def add(part: slice) -> None:
            for each in clients:
                total[part] += self._shrunk(each, self._was.log_scale, part, sign * each.share)

        in_parts(add, len(total))

    def _told(self) -> str:
        """Return what to say about the memory: its size at the first step, and when it changes."""
        if self._was.remembered_clients and self._was.memory_bits == self._store.bits:
            return ""
        return self._store.described()

    def _change_sums(self, everybody: float) -> tuple[float, float]:
        """Return the sums that give the coherence of changes. Evidence counts by the share of the clients behind it."""
        common, total = self._was.common_change, self._was.total_change
        if len(self._changes) < 2:  # one client does not show what clients have in common
            return common, total
        mean = _length(self._change_sum) if self._change_sum.size else self._common_length
        lengths = sum(share * length for share, length in self._changes)
        kept = max(0.0, 1 - sum(share for share, _ in self._changes) / (EVIDENCE * everybody))
        return kept * common + mean**2, kept * total + lengths**2

    def _disagreement(self, square: float) -> float:
        """Return the running average of the variance between clients, divided by |u|^2."""
        if not (self._variance > 0 and square > 0):
            return self._was.disagreement
        now, before = self._variance / square, self._was.disagreement
        if before > 0:
            now = KEPT * before + (1 - KEPT) * min(max(now, before / JUMP), before * JUMP)
        return now

    def _mean(self, part: slice, share: float) -> FloatArray:
        """Return a part of the mean offset of the remembered clients, weighted by their shares, `share` together."""
        total = share or 1.0  # all shares may be 0
        if self._sum is not None:
            found: FloatArray = self._store.values(self._sum, part) * (1 / total)
            return found
        mean = np.zeros(self._store.length)[part]
        for each in self._clients.values():  # one at a time: a stacked array would double the memory
            mean += self._shrunk(each, self._was.log_scale, part, each.share / total)
        return mean


def _table(rows: Iterable[FloatArray], count: int, part: slice, kind: Any) -> FloatArray:
    """Return the rows, each a part of a vector, as one table."""
    table = np.empty((count, part.stop - part.start), kind)
    for place, row in enumerate(rows):
        table[place] = row
    return table


def _centred(rows: FloatArray) -> FloatArray:
    """Subtract the mean of the rows from each, in place, and return them."""
    if len(rows):
        rows -= rows.mean(axis=0)
    return rows


def _length(vector: FloatArray | SingleArray) -> float:
    return math.sqrt(squared_length(vector))


def squared_length(vector: FloatArray | SingleArray) -> float:
    """Return the squared length, in double precision."""

    def square(part: slice) -> float:
        values = vector[part].astype(np.float64, copy=False)
        return float(values @ values) if len(vector) <= LARGE else inner(values, values)

    return sum(in_parts(square, len(vector)))
