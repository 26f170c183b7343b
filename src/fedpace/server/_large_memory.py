"""`LargeMemory`: the memory of `memory-corrected` for large models, part by part and in threads.

It computes what `Memory` computes, up to rounding, without copies of the answers or of the offsets. Two things differ:

- The sum of all offsets is part of the state. A step changes it by the clients that answered, so that its time does not
  grow with the number of remembered clients. It is computed anew when shares change.
- Steps and references are products of a few coefficients per client with the updates and offsets of a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray
from fedpace.core.server_rule import Source
from fedpace.numerics.parts import in_parts
from fedpace.server._row_store import Row, RowStore
from fedpace.server.memory_corrected import LARGEST, UNKNOWN, Memory, MemoryState, Updates, _Client, _Reference


class LargeMemory(Memory):
    """Mutable working copy of the memory during one step, for a large model."""

    def __init__(self, state: MemoryState, version: int, reach: float, store: RowStore) -> None:
        super().__init__(state, version, reach, store)
        self._summed = dict(self._clients)
        """The clients as they are in the sum of offsets."""
        if len(state.offset_sum):
            self._sum = np.array(state.offset_sum)
        else:
            self._sum = np.zeros(store.length)
            in_parts(self._add_all, store.length)

    # -- the sum of offsets ------------------------------------------------------------------------------------

    def _add_all(self, part: slice) -> None:
        for each in self._clients.values():
            self._sum[part] += self._part(each, part, self._in_sum(each))

    def _in_sum(self, each: _Client) -> float:
        """Return the factor of a client's stored offset in the sum."""
        return each.factor(self._was.log_scale, each.share)

    def _replace_in_sum(self, changed: dict[object, _Client | None]) -> None:
        """Put clients into the sum in place of what it has of them; None = take the client out."""
        before = [each for client in changed if (each := self._summed.get(client)) is not None]
        after = [each for each in changed.values() if each is not None]

        def put(part: slice) -> None:
            for each in before:
                self._sum[part] -= self._part(each, part, self._in_sum(each))
            for each in after:
                self._sum[part] += self._part(each, part, self._in_sum(each))

        in_parts(put, self._store.length)
        for client, now in changed.items():
            if now is None:
                self._summed.pop(client, None)
            else:
                self._summed[client] = now

    def _sum_of(self, clients: tuple[object, ...]) -> FloatArray:
        held = set(clients)
        gone: dict[object, _Client | None] = {client: None for client in self._summed if client not in held}
        if gone:
            self._replace_in_sum(gone)
        self._sum *= self._shrinking  # to the scale of the next step
        return self._sum

    # -- late answers ------------------------------------------------------------------------------------------

    def remember_late(self, source: Source, update: Any) -> None:
        """Remember a late answer."""
        before = self._clients.get(source.client)
        super().remember_late(source, update)
        if (now := self._clients.get(source.client)) is not None and now is not before:
            self._replace_in_sum({source.client: now})

    def _changed(self, source: Source, update: Any, then: _Reference, known: _Client) -> float | None:
        factor = known.factor(then.log_scale)

        def change(part: slice) -> FloatArray:
            return np.asarray(update[part] - self._store.values(then.mean, part) - self._part(known, part, factor))

        def measure(part: slice) -> tuple[float, float]:
            values = change(part)
            return float(values @ values), float(np.abs(values).max(initial=0.0))

        squares, largest = zip(*in_parts(measure, self._store.length), strict=True)
        if not max(largest) < LARGEST:
            return None
        unit = math.sqrt(then.square)
        if not self._change_sum.size:
            self._change_sum = np.zeros(self._store.length)

        def add(part: slice) -> None:
            self._change_sum[part] += (source.share / unit) * change(part)

        in_parts(add, self._store.length)
        length = math.sqrt(sum(squares))
        self._changes.append((source.share, length / unit))
        return length

    def _difference(self, source: Source, update: Any, then: _Reference) -> tuple[Row, float]:
        row = self._store.blank()

        def put(part: slice) -> float:
            values = update[part]
            square = float(values @ values)
            self._store.put(row, values - self._store.values(then.mean, part), part.start)
            return square

        return row, math.sqrt(sum(in_parts(put, self._store.length)))

    # -- fresh answers -----------------------------------------------------------------------------------------

    def _spread(self, updates: Any, sources: tuple[Source, ...], known: list[int]) -> tuple[float, float, float, float]:
        offsets = [self._clients[sources[place].client] for place in known]

        def measure(part: slice) -> tuple[float, float, float, float]:
            now, before = _stacked(updates, part), self._stack(offsets, part)
            spread = _about_mean(now, now)
            if len(known) == len(now):
                return spread, _about_mean(before, before), spread, _about_mean(now, before)
            now = now[known]
            return spread, _about_mean(before, before), _about_mean(now, now), _about_mean(now, before)

        sums = np.array(in_parts(measure, self._store.length)).sum(axis=0)
        spread, were, are, both = sums.tolist()
        return spread, were, are, both

    def corrected(
        self, updates: Updates, weights: FloatArray, fresh: BoolArray, sources: tuple[Source, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the step, and the reference for fresh answers; see `Memory.corrected` for the formulas."""
        changed: dict[object, _Client | None] = {}
        for source in sources:
            each = self._clients.get(source.client)
            if each is not None and each.share != source.share:
                changed[source.client] = self._clients[source.client] = each._replace(share=source.share)
        if changed:
            self._replace_in_sum(changed)
        b, total = self._predicted, float(weights.sum())
        known = np.array([source.client in self._clients for source in sources])
        counting = fresh & (weights > 0)
        shares = {client: each.share for client, each in self._clients.items()}
        before = sum(shares.values())
        shares.update((source.client, source.share) for source, speaks in zip(sources, counting, strict=True) if speaks)
        everybody = sum(shares.values())
        # common = own_c @ U - b own_c[known] @ H - b own_c[unknown].sum() mean
        own = weights / total
        spoken = np.zeros(len(sources))
        if everybody > 0:
            spoken[counting] = [source.share / everybody for source in _where(sources, counting)]
        left = 1 - float(spoken.sum())
        of_update = left * own + spoken
        of_offset = np.where(known, -b * of_update, 0.0)
        of_mean = b * (before / everybody if everybody > 0 else 1.0) - left * b * float(own[~known].sum())
        if not counting.any():
            counting = weights > 0
        telling = counting & known if (counting & known).any() else counting
        told = np.where(telling, weights, 0.0) / float(weights[telling].sum())
        used = np.flatnonzero((of_update != 0) | (told != 0))
        with_offset = [place for place in used.tolist() if known[place]]
        offsets = [self._clients[sources[place].client] for place in with_offset]
        by_update = np.array([total * of_update[used], told[used]])
        by_offset = np.array([total * of_offset[with_offset], -told[with_offset]])
        step, reference = np.empty(self._store.length), np.empty(self._store.length)
        chosen = [updates[place] for place in used.tolist()]
        mean = total * of_mean / (before or 1.0)

        def combine(part: slice) -> None:
            both = by_update @ _stacked(chosen, part)
            if offsets:
                both += by_offset @ self._stack(offsets, part)
            step[part] = both[0] + mean * self._sum[part]
            reference[part] = both[1]

        in_parts(combine, self._store.length)
        return step, reference

    def remember_fresh(self, updates: Updates, sources: tuple[Source, ...], reference: FloatArray) -> None:
        """Remember the clients' offsets from fresh answers, and put them into the sum, in one pass."""
        now = _Reference(reference, self._was.log_scale, self._was.path, 0.0)
        newest = {source.client: place for place, source in enumerate(sources)}  # the later of two wins
        places = list(newest.values())
        rows = [self._store.blank() for _ in places]
        before = [each for client in newest if (each := self._summed.get(client)) is not None]
        minus = np.array([-self._in_sum(each) for each in before])
        plus = np.array([sources[place].share for place in places])
        chosen = [updates[place] for place in places]

        def put(part: slice) -> FloatArray:
            values = _stacked(chosen, part)
            squares = np.einsum("ij,ij->i", values, values)
            values -= reference[part]
            for place, row in enumerate(rows):
                values[place] = self._store.put(row, values[place], part.start)
            self._sum[part] += plus @ values
            if before:
                self._sum[part] += minus @ np.array([self._store.values(each.offset, part) for each in before])
            return np.asarray(squares)

        lengths = np.sqrt(np.sum(in_parts(put, self._store.length), axis=0)).tolist() if places else []
        for row, place, length in zip(rows, places, lengths, strict=True):
            source, known = sources[place], self._clients.get(sources[place].client)
            drift = UNKNOWN if known is None else known.drift
            self._clients.pop(source.client, None)
            self._clients[source.client] = self._summed[source.client] = _Client(
                row, source.version, source.share, now.log_scale, now.path, drift, length
            )

    # -- parts -------------------------------------------------------------------------------------------------

    def _part(self, each: _Client, part: slice, factor: float) -> FloatArray:
        """Return a part of a client's offset, times `factor`."""
        values = self._store.values(each.offset, part)
        return factor * values

    def _stack(self, clients: Sequence[_Client], part: slice) -> FloatArray:
        """(k, part) the clients' offsets, rescaled to the current step."""
        found = np.empty((len(clients), part.stop - part.start))
        for place, each in enumerate(clients):
            np.multiply(self._store.values(each.offset, part), each.factor(self._was.log_scale), out=found[place])
        return found


def _stacked(updates: Sequence[Any], part: slice) -> FloatArray:
    """(k, part) the updates."""
    found = np.empty((len(updates), part.stop - part.start))
    for place, update in enumerate(updates):
        found[place] = update[part]
    return found


def _about_mean(one: FloatArray, other: FloatArray) -> float:
    """Return the sum of products of the two tables' rows, each relative to the mean of its rows."""
    if not len(one):
        return 0.0
    means = float(one.sum(axis=0) @ other.sum(axis=0)) / len(one)
    return float(np.vdot(one, other)) - means


def _where(sources: tuple[Source, ...], which: BoolArray) -> list[Source]:
    return [source for source, wanted in zip(sources, which.tolist(), strict=True) if wanted]
