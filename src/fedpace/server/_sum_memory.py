"""What the server remembers where it sees sums only, and its working copy of that during one step.

The server rule is `fedpace.server._client_memory`; read its docstring first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace.core.server_rule import ShareOf, Source, like, norm
from fedpace.core.sums import Contribution, Group, GroupSum, Member
from fedpace.server._counting import still_counting
from fedpace.server._memory import KEPT, SHORTEST, UNKNOWN, Memory, MemoryState, _Client, _Reference
from fedpace.server._row_store import Row, RowStore

DEPARTED = 0.1
"""Largest part of the remembered weight that may belong to clients that left."""
SAME = 1e-9
"""Relative difference below which factors count as equal."""
NO_ROW = np.zeros(0, dtype=np.float32)
"""Stands for a client's offset, which the server does not have."""
Asks = dict[str, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class SumsState(MemoryState):
    """State of `ClientMemory`; `offsets` is empty, and `offset_sum` is H."""

    departed: float = 0.0
    """Shares of clients that left, but are still part of H."""


def forgotten(state: SumsState) -> SumsState:
    """Return the state without any remembered client."""
    return replace(_only(state, []), offset_sum=0.0 * state.offset_sum, departed=0.0, remembered=0)


def _only(state: SumsState, places: Sequence[int]) -> SumsState:
    """Return the state with the remembered clients at these places."""
    names = [name for name in vars(state) if name.startswith("remembered_")]
    kept: dict[str, Any] = {name: tuple(getattr(state, name)[place] for place in places) for name in names}
    return replace(state, **kept)


def current(state: SumsState, share_of: ShareOf | None) -> SumsState:
    """Return the state with the clients' current shares, and without clients that left.

    If all shares changed by one factor, so does H. What a client that left added stays in it.
    """
    kept, shares = still_counting(state.remembered_clients, state.remembered_shares, share_of)
    if shares == state.remembered_shares:
        return state
    before = np.array([state.remembered_shares[place] for place in kept])
    ratios = np.divide(np.array(shares), before, out=np.ones(len(kept)), where=before > 0)
    factor = float(ratios[0]) if ratios.size else 1.0
    departed = factor * (state.departed + sum(state.remembered_shares) - float(before.sum()))
    unequal = ratios.size and np.abs(ratios - factor).max() > SAME * factor
    if not ratios.size or unequal or departed > DEPARTED * (departed + sum(shares)):
        return forgotten(state)
    summed = factor * state.offset_sum
    return replace(_only(state, kept), offset_sum=summed, departed=departed, remembered_shares=shares)


class _NoRows(RowStore):
    """A store for clients whose offsets are elsewhere."""

    def keep(self, vector: Row, bits: int | None = None) -> Row:
        """Return the row as it is."""
        return vector


@dataclass(eq=False)
class _Spoken:
    """The sums of the groups of fresh answers of one kind."""

    members: list[Member] = field(default_factory=list)
    number: float = 0.0
    weight: float = 0.0
    share: float = 0.0
    new: float = 0.0
    """Weight of new clients in a mixed group."""
    updates: FloatArray | float = 0.0
    """(3, d) the sum of updates, weighted by 1, by the weights of the step, and by the shares."""
    offsets: FloatArray | float = 0.0
    """(3, d) the same for offsets; 0 for new clients, and where the offsets are in `updates` already."""
    scalars: dict[str, float] = field(default_factory=dict)


class SumMemory(Memory):
    """Mutable working copy of the sums during one step."""

    def __init__(self, state: SumsState, version: int, reach: float = 0.0) -> None:
        blank = state.offsets.of([NO_ROW] * len(state.remembered_clients))
        super().__init__(replace(state, offsets=blank), version, reach, _NoRows(state.offsets.empty.shape[1]))
        self._sum = None  # the sum in double precision, for models of any size, is `_sums`
        self._sums = np.asarray(state.offset_sum, dtype=np.float64).copy()
        self._departed = state.departed
        self.spoken: dict[str, _Spoken] = {}
        self._only_fresh = np.zeros(0)
        """H if only the clients with a fresh answer are remembered."""

    # -- planning --------------------------------------------------------------------------------------------

    def knows(self, client: object) -> bool:
        """Return whether a client is remembered."""
        return client in self._clients

    def counts(self, member: Member) -> bool:
        """Return whether a late answer is of use: its version has a reference, and no newer answer is known."""
        known = self._clients.get(member.client)
        return member.version in self._references and (known is None or member.version >= known.version)

    def late_group(self, members: Sequence[Member], state: SumsState, minimum: int) -> Group:
        """Return a group of late answers, after which their clients are remembered."""
        asks: list[Asks] = []
        shows: list[object] = []
        before = set(self._clients)
        for member in members:
            then, was = self._references[member.version], self._clients.get(member.client)
            unit = math.exp(state.log_scale - then.log_scale)
            ask = {"share": member.share, "new": member.share * unit}
            if was is not None:
                ask |= {"old_version": was.version, "scale": was.factor(then.log_scale)}
                ask["old"] = was.factor(state.log_scale, was.share)
                if member.client in before and then.path > was.path and then.square > 0:
                    ask["change"] = member.share * unit
                    shows.append(member.client)
            asks.append(ask)
            self._know(member, then, UNKNOWN if was is None else was.drift, 0.0)
        if len(set(shows)) < minimum:  # their lengths would be a sum over too few clients
            asks = [{name: value for name, value in ask.items() if name != "change"} for ask in asks]
        rows = {version: np.asarray(self._references[version].mean) for version in {m.version for m in members}}
        return Group("late", tuple(members), tuple(asks), rows)

    def fresh_group(self, kind: Contribution, members: Sequence[Member]) -> Group:
        """Return a group of fresh answers; its clients weigh by their shares."""
        shares, weights = sum(member.share for member in members), sum(member.weight for member in members)
        if shares > 0:
            members = [member._replace(weight=weights * member.share / shares) for member in members]
        asks: list[Asks] = []
        for member in members:
            ask = {"w": member.share * len(members) / shares if shares > 0 else 1.0}
            if kind != "fresh-new" and (was := self._clients.get(member.client)) is not None:
                ask |= {"old_version": was.version, "scale": was.factor(self._was.log_scale)}
            asks.append(ask)
        return Group(kind, tuple(members), tuple(asks))

    # -- sums ------------------------------------------------------------------------------------------------

    def add(self, group: Group, found: GroupSum) -> None:
        """Add the sums of a group; late groups come first."""
        both = list(zip(group.members, group.asks, strict=True))
        for member, ask in both:
            if member.task in found.absent and "old_version" in ask and member.client in self._clients:
                self._departed += self._clients.pop(member.client).share  # it lost its memory
        kept = [(member, ask) for member, ask in both if member.task not in found.absent]
        if group.kind == "late":
            self._add_late(kept, found)
        else:
            self._add_fresh(group.kind, kept, found)

    def _add_late(self, kept: Sequence[tuple[Member, Mapping[str, float]]], found: GroupSum) -> None:
        memory = np.asarray(found.vectors["memory"])
        self._sums += memory
        shares = sum(member.share for member, _ in kept) or 1.0
        length = found.scalars["length"] / shares
        shown = [(member, ask) for member, ask in kept if ask.get("change", 0.0) > 0]
        drift, told = UNKNOWN, sum(member.share for member, _ in shown)
        if shown and told > 0:
            change = found.scalars["change"] / told  # mean length of the changes, in the unit of the current step
            thens = [(self._references[member.version], self._clients[member.client]) for member, _ in shown]
            way = sum(m.share * (then.path - was.path) for (m, _), (then, was) in zip(shown, thens, strict=True)) / told
            units = [math.exp(then.log_scale - self._was.log_scale) for then, _ in thens]
            drift = self._predicted * change * float(np.mean(units)) / way if way > 0 else UNKNOWN
            if len(shown) == len(kept):  # in units of the step that shows it, or of the last step
                one = len(kept) == 1
                size = math.sqrt(thens[0][0].square) / units[0] if one else math.sqrt(self._was.square)
                if size > 0:
                    self._changes += [(member.share, change / size) for member, _ in shown]
                    added = memory / size
                    self._change_sum = self._change_sum + added if self._change_sum.size else added
        showing = {member.task for member, _ in shown}
        for member, _ in kept:
            was = self._clients.get(member.client)
            own = UNKNOWN if was is None else was.drift
            if member.task in showing and drift >= 0:
                own = max(drift, KEPT * own + (1 - KEPT) * drift)  # rises at once, falls slowly
            self._know(member, self._references[member.version], own, length)

    def _add_fresh(
        self, kind: Contribution, kept: Sequence[tuple[Member, Mapping[str, float]]], found: GroupSum
    ) -> None:
        each = self.spoken.setdefault(kind, _Spoken())
        members = [member for member, _ in kept]
        number, weight, share = (
            sum(a["w"] for _, a in kept),
            sum(m.weight for m in members),
            sum(m.share for m in members),
        )
        factors = np.array([1.0, weight / number, share / number])
        each.updates = each.updates + np.outer(factors, found.vectors["update"])
        if "offset" in found.vectors:
            each.offsets = each.offsets + np.outer(factors, found.vectors["offset"])
        each.members += members
        each.number, each.weight, each.share = each.number + number, each.weight + weight, each.share + share
        each.new += sum(member.weight for member, ask in kept if "old_version" not in ask)
        for name, value in found.scalars.items():
            each.scalars[name] = each.scalars.get(name, 0.0) + value
        if number > 0:
            mean = found.scalars["length"] / number
            each.scalars |= {f"length {member.task}": mean for member in members}

    @property
    def fresh_square(self) -> float:
        """Weighted mean of |u_i|^2 over the fresh answers."""
        weights = sum(each.weight for each in self.spoken.values())
        return sum(e.weight * e.scalars["uu"] / e.number for e in self.spoken.values()) / weights

    def learn_from_sums(self) -> None:
        """Measure what `Memory.learn` measures from rows; a mixed group does not show it."""
        if "mixed" not in self.spoken:
            members = [member for each in self.spoken.values() for member in each.members]
            self.learn(tuple(members), tuple(Source(m.client, m.version, m.share) for m in members))

    def _spread(self, updates: Any, sources: tuple[Source, ...], known: list[int]) -> tuple[float, float, float, float]:
        count = sum(each.number for each in self.spoken.values())
        mean = sum((np.atleast_2d(each.updates)[0] for each in self.spoken.values()), np.zeros(self._sums.size))
        squares = sum(each.scalars["uu"] for each in self.spoken.values())
        spread = max(0.0, squares - float(mean @ mean) / count)
        if (told := self.spoken.get("fresh")) is None:
            return spread, 0.0, 0.0, 0.0
        update, offset = np.atleast_2d(told.updates)[0], np.atleast_2d(told.offsets)[0]
        were = told.scalars["oo"] - float(offset @ offset) / told.number
        are = told.scalars["uu"] - float(update @ update) / told.number
        return spread, were, are, told.scalars["uo"] - float(update @ offset) / told.number

    def step_and_reference(self, bits: int = 32) -> tuple[FloatArray, FloatArray]:
        """Return the step for weights that sum to 1, and the reference for fresh answers in so many bits per value."""
        b = 1.0 if "mixed" in self.spoken else self._predicted
        weight = sum(each.weight for each in self.spoken.values())
        before = self.share + self._departed
        mean = self._sums / (before or 1.0)
        corrected = {kind: each.updates - b * np.asarray(each.offsets) for kind, each in self.spoken.items()}
        common = sum((each[1] for each in corrected.values()), np.zeros(mean.size))
        common = (common - b * sum(each.new for each in self.spoken.values()) * mean) / weight
        joining = [m for each in self.spoken.values() for m in each.members if m.client not in self._clients]
        everybody = before + sum(member.share for member in joining)
        step = common + b * mean
        if everybody > 0:
            step = common + b * (before / everybody) * mean
            for kind, each in self.spoken.items():
                step = step + (corrected[kind][2] - each.share * common) / everybody
        # Clients heard for the first time define the reference only if no other client can.
        telling = next(kind for kind in ("fresh", "mixed", "fresh-new") if kind in self.spoken)
        told = self.spoken[telling]
        reference = (told.updates - np.asarray(told.offsets))[1]
        if telling == "mixed":
            reference = reference - told.new * mean
        # Clients get it in these bits, so the server must use the same numbers.
        store = RowStore(reference.size, bits)
        return step, store.values(store.keep(reference / told.weight))

    def remember_sums(self, reference: FloatArray) -> None:
        """Replace the offsets of the clients that answered in H."""
        now = _Reference(reference, self._was.log_scale, self._was.path, 0.0)
        self._only_fresh = np.zeros(reference.size)
        for each in self.spoken.values():
            shared = np.atleast_2d(each.updates)[2] - each.share * reference
            self._sums += shared - (np.atleast_2d(each.offsets)[2] if np.ndim(each.offsets) else 0.0)
            self._only_fresh += shared
            for member in each.members:
                was = self._clients.get(member.client)
                drift = UNKNOWN if was is None else was.drift
                self._know(member, now, drift, each.scalars[f"length {member.task}"])

    def _know(self, member: Member, then: _Reference, drift: float, length: float) -> None:
        self._clients.pop(member.client, None)  # reinsert last: order of hearing
        facts = (member.version, member.share, then.log_scale, then.path, drift, length)
        self._clients[member.client] = _Client(NO_ROW, *facts)

    def within(self, move: float) -> float:
        """Return the part of a move that the limit `reach` allows.

        If it allows less than `SHORTEST`, forget all clients but those with a fresh answer.
        """
        if move <= 0:
            return 1.0
        if self._allowed() < SHORTEST * move and any(e.version != self._version for e in self._clients.values()):
            # The sum of a mixed group has old offsets in it, which H would keep.
            fresh = "mixed" not in self.spoken
            self._sums = self._only_fresh if fresh else 0.0 * self._sums
            self._departed = 0.0
            self._clients = {c: each for c, each in self._clients.items() if fresh and each.version == self._version}
        return min(1.0, self._allowed() / move)

    def _allowed(self) -> float:
        """Return how far the model may move."""
        known = list(self._clients.values())
        moved = sum(each.share * (self._was.path - each.path) for each in known)
        lengths = sum(each.share * each.length for each in known)
        return (self._reach * lengths - moved) / self.share if self.share > 0 else math.inf

    def unmoved(self) -> SumsState:
        """Return the state after a step in which only late groups were opened."""
        assert isinstance(self._was, SumsState)
        state = self._was
        columns = ("versions", "shares", "scales", "paths", "drifts", "lengths", "responses")
        fields = ("version", "share", "log_scale", "path", "drift", "length", "response")
        values: dict[str, Any] = {
            f"remembered_{column}": tuple(getattr(each, name) for each in self._clients.values())
            for column, name in zip(columns, fields, strict=True)
        }
        summed = like(state.offset_sum, self._sums)
        return replace(
            state,
            **values,
            remembered_clients=tuple(self._clients),
            remembered=len(self._clients),
            offsets=state.offsets.of([]),
            offset_sum=summed,
            departed=self._departed,
        )

    def next_state(
        self, after: SumsState, reference: FloatArray, square: float, awaited: frozenset[int] | None
    ) -> SumsState:
        """Return the state for the next step (see `Memory.state`)."""
        weights = np.array([member.weight for each in self.spoken.values() for member in each.members])
        weights = weights / weights.sum()
        room = len(self._clients) + len(self._references) + 1
        self._common_length = norm(np.asarray(self._change_sum))
        found = self.state(after, reference, square, float(weights @ weights), awaited, room)
        summed = like(after.offset_sum, self._shrinking * self._sums)
        assert isinstance(found, SumsState)
        return replace(
            found, offsets=after.offsets.of([]), offset_sum=summed, departed=self._departed, told="", memory_bytes=0
        )
