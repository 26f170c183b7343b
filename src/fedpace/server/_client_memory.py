"""`memory-corrected` with the memory on the clients: the server keeps sums, and sees no client's update or offset.

The step is that of `fedpace.server.memory_corrected`; read its docstring first. Each client keeps its own offset h_i
(`OwnMemory`). It receives the model and the reference of the version that it trained from last, and computes
h_i = u_i - reference. The server (`ClientMemory`) keeps H = sum_i w_i h_i in the unit of the current step, and these
sums over the remembered clients: of the lengths |u_i|, and of the drifts with and without the distances at which they
hold. Versions, shares and scales are its own numbers.

A step opens up to four groups, each of at least `minimum` clients; answers of a smaller group stay in hand, and open
later:

| group | sums of vectors | sums of numbers |
|---|---|---|
| fresh, remembered | updates, offsets | squares of both, their inner product, lengths, drifts |
| fresh, new | updates | squares, lengths |
| late, remembered | change of w_i h_i | length of the change, lengths, drifts |
| late, new | w_i h_i | lengths |

Sums of fresh updates and offsets are weighted by the shares. With a minimum of 1 up to three weightings are used: ones,
the weights of the step, and the shares (`_basis`), as `memory-corrected` does.

With a minimum of 1, all steps equal those of `memory-corrected` up to rounding, until the limit `reach` makes both
forget clients. Otherwise these things differ, because the server cannot take a single offset out of H:

- Answers of groups that are too small wait. If neither fresh group is large enough but both together are, the server
  forgets all clients, and all fresh answers count as new.
- Within a group, clients weigh by their shares in the step and in all measurements. Two weightings that differ for one
  client would tell its update.
- The server forgets all clients before a step whose sums, together with earlier ones, would tell something about one
  client alone (`fedpace.core.exposure`).
- Changes of offsets are weighted in the unit of the last step when their coherence is measured, not each in the unit of
  its own version (with a minimum of 1, a second sum gives that). The second sum would tell versions apart, and a group
  may have one client of a version.
- Where `memory-corrected` forgets the clients heard longest ago (limit `reach`), all clients are forgotten but those
  with a fresh answer in this step.
- A client that leaves stays in H, as it was when last heard, until those that left have more than `DEPARTED` of the
  weight. Then all clients are forgotten, as after a change of shares other than a common factor.

Forgotten clients are new when they answer next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import AtLeast, Between, Options
from fedpace.core.server_rule import Answers, Part, ShareOf, Stack, Vector, like
from fedpace.core.sums import SQUARE, Contribution, Group, GroupPlan, GroupSum, Member
from fedpace.server._counting import still_counting
from fedpace.server.memory_corrected import (
    EVIDENCE,
    JUMP,
    KEPT,
    LEAST_SHRINKING,
    SHORTEST,
    UNKNOWN,
    VERSIONS,
)
from fedpace.server.nesterov import MomentumState, Nesterov

DEPARTED = 0.1
"""Largest part of the remembered weight that may belong to clients that left."""
SAME = 1e-9
"""Relative difference below which weightings count as equal."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SumsState(MomentumState):
    """State of `ClientMemory`: sums over clients, the references of past model versions, and the momentum.

    Fields that `fedpace.server.memory_corrected.MemoryState` has too mean the same.
    """

    summed: Vector
    """H: the sum of the clients' offsets, weighted by shares, in the unit of the current step."""
    references: Stack
    lengths: float = 0.0
    """Sum of share x |u_j|."""
    drifts: float = 0.0
    """Sum of share x drift, over clients that have revealed it."""
    drift_paths: float = 0.0
    """The same sum, with each drift multiplied by the path at the client's newest answer."""
    departed: float = 0.0
    """Shares of clients that left, but are still part of H."""
    remembered_clients: tuple[object, ...] = ()
    remembered_versions: tuple[int, ...] = ()
    remembered_shares: tuple[float, ...] = ()
    remembered_scales: tuple[float, ...] = ()
    remembered_paths: tuple[float, ...] = ()
    remembered_revealed: tuple[bool, ...] = ()
    """(m,) whether each client has revealed its drift."""
    reference_versions: tuple[int, ...] = ()
    reference_scales: tuple[float, ...] = ()
    reference_paths: tuple[float, ...] = ()
    reference_squares: tuple[float, ...] = ()
    log_scale: float = 0.0
    shrinking: float = 1.0
    predicted: float = 1.0
    disagreement: float = 0.0
    disagreement_left: float = 1.0
    square: float = 0.0
    mean_square: float = 0.0
    path: float = 0.0
    common_change: float = 0.0
    total_change: float = 0.0
    memory_error: float = 0.0
    reach_spent: float = 0.0
    mean_age: float = 0.0
    remembered: int = 0


class _Known(NamedTuple):
    """What the server knows about a remembered client."""

    version: int
    share: float
    log_scale: float
    path: float
    revealed: bool


class _Version(NamedTuple):
    """What the server knows about a model version with a reference."""

    place: int
    log_scale: float
    path: float
    square: float


@dataclass(frozen=True)
class ClientMemory(Options):
    """`memory-corrected` with sums only.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
        reach: how far the model may move since the clients' last answers, on average over their shares, in units of the
            mean length of the clients' updates; 0 = no limit.
    """

    name: ClassVar[str] = "client-memory"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "sources"})

    power: Annotated[float, Between(0, 1)] = 1.0
    reach: Annotated[float, AtLeast(0)] = 0.0

    def init(self, zero: Vector) -> SumsState:
        """Return the state before the first step."""
        return SumsState(
            momentum=zero, last=zero, move=zero, move_before=zero, summed=zero, references=Stack.none(zero)
        )

    def apply(self, state: SumsState, model: Vector, answers: Answers) -> tuple[Vector, SumsState]:
        """Return the step of `nesterov`: a rule for sums gets no single updates."""
        return Nesterov(self.power).apply(state, model, answers)

    def plan(
        self,
        state: SumsState,
        members: Sequence[Member],
        version: int,
        minimum: int,
        share_of: ShareOf | None,
        *,
        forget: bool = False,
    ) -> GroupPlan:
        """Return the groups of a step; with `forget`, all fresh answers count as new, and late ones wait."""
        state = current(state, share_of)
        known, versions = _known(state), _versions(state)
        fresh = [member for member in members if member.version == version and member.weight > 0]
        late = _Late(known, versions, {"unit": state.log_scale, "predicted": state.predicted})
        if minimum > 1:
            late.square = state.square
        for member in members:
            if member.version != version:
                late.add(member)
        late.hold_small(minimum)
        known = late.known
        groups: dict[Contribution, list[Member]] = {
            "fresh": [member for member in fresh if member.client in known],
            "fresh-new": [member for member in fresh if member.client not in known],
        }
        small = max(map(_clients, groups.values())) < minimum
        forget = _clients(fresh) >= minimum and (forget or small)
        if forget:
            groups = {"fresh": [], "fresh-new": fresh}
            late.hold_all()
        held = set(late.held)
        for kind, some in groups.items():
            if _clients(some) < minimum:
                held |= {member.task for member in some}
                groups[kind] = []
        if not any(groups.values()):  # no step without fresh answers
            return GroupPlan((), frozenset(held | {member.task for member in (*late.old, *late.new)}))
        plain: Mapping[Contribution, list[Member]] = {"late-new": late.new, "late": late.old}
        found = [
            Group(kind, tuple(some), tuple(late.asks[m.task] for m in some), self._references(state, some))
            for kind, some in plain.items()
            if some
        ]
        found += [_fresh(kind, some, known, state, one=minimum > 1) for kind, some in groups.items() if some]
        return GroupPlan(tuple(found), frozenset(held), forget)

    @staticmethod
    def _references(state: SumsState, members: Sequence[Member]) -> dict[int, Vector]:
        rows = dict(zip(state.reference_versions, state.references.rows, strict=True))
        return {member.version: rows[member.version] for member in members}

    def apply_sums(
        self, state: SumsState, model: Vector, plan: GroupPlan, sums: Sequence[GroupSum | None], answers: Answers
    ) -> tuple[Vector, SumsState]:
        """Return the next model to send, and the state."""
        state = current(state, answers.share_of)
        memory = SumMemory(forgotten(state) if plan.forget else state, answers.version, self.reach)
        for group, found in zip(plan.groups, sums, strict=True):
            if found is not None:
                memory.add(group, found)
        if not memory.spoke:
            return model, memory.unmoved()
        memory.learn()
        step, reference = memory.corrected()
        total = float(sum(answers.weights))
        memory.remember_fresh(reference)
        whole = Answers(like(answers.step, total * step), answers.weights, None, memory.mean_square * total)
        _, after = Nesterov(self.power).apply(state, model, whole)
        if self.reach and (part := memory.within(after.moved)) < 1:
            after = replace(after, move=part * after.move, momentum=part * after.momentum)
        model = model + after.move
        return model, memory.state(after, reference, total**2 * float(step @ step), answers.awaited)

    def published(self, state: SumsState) -> tuple[int, Vector] | None:
        """Return the version of the last step and its reference."""
        return (state.reference_versions[-1], state.references.rows[-1]) if state.reference_versions else None


# -- planning ----------------------------------------------------------------------------------------------------------


class _Late:
    """Sorts late answers into those of remembered clients and those of new ones, in the order of their tasks."""

    def __init__(
        self, known: Mapping[object, _Known], versions: Mapping[int, _Version], common: Mapping[str, float]
    ) -> None:
        self.known, self._before, self._versions, self._common = dict(known), known, versions, common
        self.old: list[Member] = []
        self.new: list[Member] = []
        self.held: set[int] = set()
        self.asks: dict[int, dict[str, float]] = {}
        self._first: dict[object, _Known] = {}
        """New clients after their first late answer."""
        self.square = math.nan
        """|u|^2 of the last step, if changes are measured in its unit; NaN = each in the unit of its own version."""

    def add(self, member: Member) -> None:
        """Add an answer; it is ignored if its version has no reference, or if a newer answer is known."""
        then, was = self._versions.get(member.version), self.known.get(member.client)
        if then is None or (was is not None and member.version < was.version):
            return
        ask = {"share": member.share, "log_scale": then.log_scale, "path": then.path, **self._common}
        revealed = False
        if was is not None:
            shows = then.path > was.path and then.square > 0
            revealed = was.revealed or shows
            ask |= {"old_share": was.share, "old_log_scale": was.log_scale, "old_path": was.path, "change": 0.0}
            if shows and math.isnan(self.square):
                ask |= {"change": member.share / math.sqrt(then.square), "apart": 1.0}
            elif shows and self.square > 0:
                unit = math.exp(self._common["unit"] - then.log_scale)
                ask["change"] = member.share * unit / math.sqrt(self.square)
        self.asks[member.task] = ask
        (self.new if was is None else self.old).append(member)
        self.known[member.client] = _Known(member.version, member.share, then.log_scale, then.path, revealed)
        if was is None:
            self._first[member.client] = self.known[member.client]

    def hold_small(self, minimum: int) -> None:
        """Hold back groups that are too small."""
        if _clients(self.new) < minimum:
            waiting = {member.client for member in self.new}
            self.held |= {member.task for member in self.new}
            self.held |= {member.task for member in self.old if member.client in waiting}
            self.old, self.new = [member for member in self.old if member.client not in waiting], []
            for client in waiting:
                del self.known[client]
        if _clients(self.old) < minimum:
            self.held |= {member.task for member in self.old}
            for member in self.old:  # back to what was known before their first answer in this group
                self.known[member.client] = (self._first if member.client in self._first else self._before)[
                    member.client
                ]
            self.old = []

    def hold_all(self) -> None:
        """Hold back all late answers."""
        self.held |= {member.task for member in (*self.old, *self.new)}
        self.old, self.new = [], []


def _clients(members: Sequence[Member]) -> int:
    return len({member.client for member in members})


def _fresh(
    kind: Contribution,
    members: Sequence[Member],
    known: Mapping[object, _Known],
    state: SumsState,
    *,
    one: bool,
) -> Group:
    """Return a group of fresh answers, all of remembered clients or all of new ones; `one`: with one weighting."""
    if one:
        shares, weights = sum(member.share for member in members), sum(member.weight for member in members)
        if shares > 0:
            members = [member._replace(weight=weights * member.share / shares) for member in members]
    basis, _ = _basis(members, one=one)
    asks = []
    for place, member in enumerate(members):
        ask = {"share": member.share, "weight": member.weight, "log_scale": state.log_scale, "path": state.path}
        ask |= {f"w{row}": float(values[place]) for row, values in enumerate(basis)}
        if one:
            ask["statistic"] = float(basis[0][place])
        if kind == "fresh":
            was = known[member.client]
            ask |= {"old_share": was.share, "old_log_scale": was.log_scale, "old_path": was.path}
        asks.append(ask)
    return Group(kind, tuple(members), tuple(asks))


def _basis(members: Sequence[Member], *, one: bool = False) -> tuple[list[FloatArray], FloatArray]:
    """Return weightings from which ones, weights and shares follow, and the (3, q) coefficients for each of these.

    Equal shares and weights need one weighting. With `one`, weights are proportional to shares, and the shares, scaled
    to mean 1, stand for the ones too.
    """
    if one:
        shares = np.array([member.share for member in members])
        total = float(shares.sum())
        scaled = shares * (len(members) / total) if total > 0 else np.ones(len(members))
        weights = sum(member.weight for member in members)
        return [scaled], np.array([[1.0], [weights / len(members)], [total / len(members)]])
    wanted = [
        np.ones(len(members)),
        np.array([member.weight for member in members]),
        np.array([member.share for member in members]),
    ]
    basis: list[FloatArray] = []
    for row in wanted:
        scale = float(np.abs(row).max(initial=0.0))
        if scale == 0:
            continue
        if basis:
            told = np.linalg.lstsq(np.array(basis).T, row, rcond=None)[0]
            if float(np.abs(row - told @ np.array(basis)).max()) <= SAME * scale:
                continue
        basis.append(row / scale)
    coefficients = [np.linalg.lstsq(np.array(basis).T, row, rcond=None)[0] for row in wanted]
    return basis, np.array(coefficients)


def _known(state: SumsState) -> dict[object, _Known]:
    columns = zip(
        state.remembered_versions,
        state.remembered_shares,
        state.remembered_scales,
        state.remembered_paths,
        state.remembered_revealed,
        strict=True,
    )
    return {client: _Known(*each) for client, each in zip(state.remembered_clients, columns, strict=True)}


def _versions(state: SumsState) -> dict[int, _Version]:
    columns = zip(state.reference_scales, state.reference_paths, state.reference_squares, strict=True)
    return {
        version: _Version(place, *each)
        for place, (version, each) in enumerate(zip(state.reference_versions, columns, strict=True))
    }


def forgotten(state: SumsState) -> SumsState:
    """Return the state without any remembered client."""
    return replace(
        state,
        summed=0.0 * state.summed,
        lengths=0.0,
        drifts=0.0,
        drift_paths=0.0,
        departed=0.0,
        remembered_clients=(),
        remembered_versions=(),
        remembered_shares=(),
        remembered_scales=(),
        remembered_paths=(),
        remembered_revealed=(),
    )


def current(state: SumsState, share_of: ShareOf | None) -> SumsState:
    """Return the state with the clients' current shares, and without clients that left.

    If all shares changed by one factor, so do the sums. What a client that left added stays in the sums.
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
    return replace(
        state,
        summed=factor * state.summed,
        lengths=factor * state.lengths,
        drifts=factor * state.drifts,
        drift_paths=factor * state.drift_paths,
        departed=departed,
        remembered_clients=tuple(state.remembered_clients[place] for place in kept),
        remembered_versions=tuple(state.remembered_versions[place] for place in kept),
        remembered_shares=shares,
        remembered_scales=tuple(state.remembered_scales[place] for place in kept),
        remembered_paths=tuple(state.remembered_paths[place] for place in kept),
        remembered_revealed=tuple(state.remembered_revealed[place] for place in kept),
    )


# -- the server's half -------------------------------------------------------------------------------------------------


class _Spoken(NamedTuple):
    """The sums of one group of fresh answers."""

    members: tuple[Member, ...]
    updates: FloatArray
    """(3, d) the sum of updates, weighted by 1, by the weights of the step, and by the shares."""
    offsets: FloatArray
    """(3, d) the same for offsets; zeros for new clients."""
    scalars: Mapping[str, float]
    number: float
    """Sum of the weighting that stands for ones."""

    def total(self, which: int) -> float:
        """Sum of the weights: 1 = of the step, 2 = of the shares."""
        return sum(member.weight if which == 1 else member.share for member in self.members)


class SumMemory:
    """Mutable working copy of the sums during one step."""

    def __init__(self, state: SumsState, version: int, reach: float) -> None:
        self._was, self._version, self._reach = state, version, reach
        self._clients = _known(state)
        self._only_fresh = (np.zeros(0), 0.0, 0.0, 0.0)
        """H, lengths, drifts and drift_paths if only the clients with a fresh answer are remembered."""
        self._references = dict(zip(state.reference_versions, state.references.rows, strict=True))
        self._versions = _versions(state)
        self._summed = np.asarray(state.summed, dtype=np.float64).copy()
        self._lengths, self._drifts, self._drift_paths = state.lengths, state.drifts, state.drift_paths
        self._departed = state.departed
        self._spoken: dict[str, _Spoken] = {}
        self._predicted, self._left, self._shrinking = state.predicted, state.disagreement_left, state.shrinking
        self._variance = 0.0
        self._change = (0, 0.0, 0.0, 0.0)
        """Of late answers that show drift: their number, shares, |sum of scaled changes| and sum of their lengths."""

    @property
    def spoke(self) -> bool:
        """Whether a group of fresh answers was opened."""
        return bool(self._spoken)

    @property
    def mean_square(self) -> float:
        """Weighted mean of |u_i|^2 over the fresh answers."""
        weights = sum(each.total(1) for each in self._spoken.values())
        return sum(each.scalars[SQUARE] for each in self._spoken.values()) / weights

    def add(self, group: Group, found: GroupSum) -> None:
        """Add the sums of a group; late groups come first."""
        members = tuple(member for member in group.members if member.task not in found.absent)
        if group.kind in ("fresh", "fresh-new"):
            self._add_fresh(group, members, found)
            return
        self._summed += np.asarray(found.vectors["memory"])
        self._add_scalars(found.scalars)
        asks = {member.task: ask for member, ask in zip(group.members, group.asks, strict=True)}
        shown = [member for member in members if asks[member.task].get("change", 0.0) > 0]
        if len(shown) > 1:  # one client does not show what clients have in common
            if "change" in found.vectors:
                change = np.asarray(found.vectors["change"])
            else:
                change = np.asarray(found.vectors["memory"]) / math.sqrt(self._was.square)
            shares = sum(member.share for member in shown)
            self._change = (len(shown), shares, _length(change), found.scalars["change_length"])
        for member in members:
            then, was = self._versions[member.version], self._clients.pop(member.client, None)
            revealed = (was is not None and was.revealed) or asks[member.task].get("change", 0.0) > 0
            self._clients[member.client] = _Known(member.version, member.share, then.log_scale, then.path, revealed)

    def _add_fresh(self, group: Group, members: tuple[Member, ...], found: GroupSum) -> None:
        # The basis is that of all members, for whom the weightings were made; the sums are over those that are left.
        basis, coefficients = _basis(group.members, one="statistic" in group.asks[0])
        updates = np.array([np.asarray(found.vectors[f"update{row}"]) for row in range(len(basis))])
        offsets = np.zeros_like(updates)
        if group.kind == "fresh":
            offsets = np.array([np.asarray(found.vectors[f"offset{row}"]) for row in range(len(basis))])
        left = [place for place, member in enumerate(group.members) if member.task not in found.absent]
        count = float(sum((coefficients[0] @ np.array(basis))[left]))
        sums = coefficients @ updates, coefficients @ offsets
        self._spoken[group.kind] = _Spoken(members, *sums, found.scalars, count)

    def _add_scalars(self, scalars: Mapping[str, float]) -> None:
        self._lengths += scalars["length"] - scalars.get("old_length", 0.0)
        self._drifts += scalars.get("drift", 0.0) - scalars.get("old_drift", 0.0)
        self._drift_paths += scalars.get("drift_path", 0.0) - scalars.get("old_drift_path", 0.0)

    def learn(self) -> None:
        """Measure b, the disagreement, its unexplained part and the shrinking, as `Memory.learn` does from rows."""
        count = sum(each.number for each in self._spoken.values())
        if count > 1:
            mean = sum(each.updates[0] for each in self._spoken.values())
            squares = sum(each.scalars["uu"] for each in self._spoken.values())
            self._variance = max(0.0, squares - float(mean @ mean) / count) / (count - 1)
        told = self._spoken.get("fresh")
        if told is None or len(told.members) < 2:
            return
        number, update, offset = told.number, told.updates[0], told.offsets[0]
        were = told.scalars["oo"] - float(offset @ offset) / number
        are = told.scalars["uu"] - float(update @ update) / number
        both = told.scalars["uo"] - float(update @ offset) / number
        if not (were > 0 and are > 0):
            return
        b = self._predicted = min(max(both / were, 0.0), 1.0)
        self._left = min(max((are - 2 * b * both + b * b * were) / are, 0.0), 1.0)
        age = float(np.mean([self._version - self._clients[member.client].version for member in told.members]))
        shrinking = self._was.shrinking * (are / were) ** (0.5 / max(age, 1.0))
        kept = KEPT if self._was.disagreement_left < 1 else 0.0
        self._shrinking = kept * self._shrinking + (1 - kept) * min(max(shrinking, LEAST_SHRINKING), 1.0)

    def corrected(self) -> tuple[FloatArray, FloatArray]:
        """Return the step for weights that sum to 1, and the reference for fresh answers."""
        b, told, new = self._predicted, self._spoken.get("fresh"), self._spoken.get("fresh-new")
        total = sum(each.total(1) for each in self._spoken.values())
        before = sum(each.share for each in self._clients.values()) + self._departed
        mean = self._summed / (before or 1.0)
        common = sum((each.updates[1] - b * each.offsets[1] for each in self._spoken.values()), np.zeros(mean.size))
        if new is not None:
            common = common - b * new.total(1) * mean
        common = common / total
        everybody = before + (new.total(2) if new is not None else 0.0)
        step = common + b * mean
        if everybody > 0:
            step = common + b * (before / everybody) * mean
            for each in self._spoken.values():
                own = each.updates[2] - b * each.offsets[2] - each.total(2) * common
                step = step + own / everybody
        telling = told if told is not None else new
        assert telling is not None
        reference = (telling.updates[1] - telling.offsets[1]) / telling.total(1)
        # Clients get it in single precision, so the server must use the same numbers.
        return step, reference.astype(np.float32).astype(np.float64)

    def remember_fresh(self, reference: FloatArray) -> None:
        """Replace the offsets of the clients that answered in H and in the other sums."""
        for each in self._spoken.values():
            self._summed += each.updates[2] - each.total(2) * reference - each.offsets[2]
            self._add_scalars(each.scalars)
            for member in each.members:
                was = self._clients.pop(member.client, None)
                revealed = was is not None and was.revealed
                here = self._was.log_scale, self._was.path
                self._clients[member.client] = _Known(self._version, member.share, *here, revealed)
        self._only_fresh = (
            sum((e.updates[2] - e.total(2) * reference for e in self._spoken.values()), np.zeros(reference.size)),
            sum(each.scalars["length"] for each in self._spoken.values()),
            sum(each.scalars.get("drift", 0.0) for each in self._spoken.values()),
            sum(each.scalars.get("drift_path", 0.0) for each in self._spoken.values()),
        )

    def within(self, move: float) -> float:
        """Return the part of a move that the limit `reach` allows.

        If it allows less than `SHORTEST`, forget all clients but those with a fresh answer.
        """
        if move <= 0:
            return 1.0
        shares, moved = self._departed, 0.0
        for each in self._clients.values():
            shares += each.share
            moved += each.share * (self._was.path - each.path)
        allowed = (self._reach * self._lengths - moved) / shares if shares > 0 else math.inf
        if allowed < SHORTEST * move and any(each.version != self._version for each in self._clients.values()):
            self._summed, self._lengths, self._drifts, self._drift_paths = self._only_fresh
            self._departed = 0.0
            self._clients = {client: each for client, each in self._clients.items() if each.version == self._version}
            shares = sum(each.share for each in self._clients.values())
            allowed = self._reach * self._lengths / shares if shares > 0 else math.inf
        return min(1.0, allowed / move)

    def unmoved(self) -> SumsState:
        """Return the state after a step in which only late groups were opened."""
        return self._stored(self._was, like(self._was.summed, self._summed))

    def state(
        self, after: SumsState, reference: FloatArray, square: float, awaited: frozenset[int] | None
    ) -> SumsState:
        """Return the state for the next step.

        Args:
            after: the state after the momentum step.
            reference: the reference for fresh answers.
            square: |u|^2 of the step.
            awaited: model versions that clients still train from; None = unknown.
        """
        versions = [version for version in self._references if awaited is None or version in awaited]
        versions = versions[-(VERSIONS - 1) :] if awaited is None else versions
        rows = [self._references[version] for version in versions] + [reference]
        facts = [self._versions[version] for version in versions]
        facts.append(_Version(0, self._was.log_scale, self._was.path, square))
        known = list(self._clients.values())
        shares = np.array([each.share for each in known])
        everybody = (float(shares.sum()) + self._departed) or 1.0
        path = self._was.path + after.moved
        common_change, total_change = self._change_sums(everybody)
        coherence = math.sqrt(common_change / total_change) if total_change > 0 else 1.0
        paths = np.array([path - each.path for each in known])
        hidden = np.array([not each.revealed for each in known])
        fresh = np.concatenate([[member.weight for member in e.members] for e in self._spoken.values()])
        fresh = fresh / fresh.sum()
        unknown = min(after.curvature * math.sqrt(float(fresh @ fresh)), 1.0)
        revealed = coherence * max(0.0, path * self._drifts - self._drift_paths)
        error = (revealed + unknown * float(shares[hidden] @ paths[hidden])) / everybody
        limit = self._reach * self._lengths / everybody
        spent = (float(shares @ paths) / everybody + after.moved) / limit if limit > 0 else 0.0
        mean_square = square
        if self._was.mean_square > 0:
            mean_square = KEPT * self._was.mean_square + (1 - KEPT) * square
        ages = np.array([self._version + 1 - each.version for each in known])
        scaled = self._shrinking * self._summed
        return replace(
            self._stored(after, like(after.summed, scaled)),
            references=after.references.of(rows),
            reference_versions=(*versions, self._version),
            reference_scales=tuple(each.log_scale for each in facts),
            reference_paths=tuple(each.path for each in facts),
            reference_squares=tuple(each.square for each in facts),
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
            mean_age=float(shares @ ages) / everybody,
            remembered=len(known),
        )

    def _stored(self, state: SumsState, summed: Vector) -> SumsState:
        known = list(self._clients.values())
        return replace(
            state,
            summed=summed,
            lengths=self._lengths,
            drifts=self._drifts,
            drift_paths=self._drift_paths,
            departed=self._departed,
            remembered_clients=tuple(self._clients),
            remembered_versions=tuple(each.version for each in known),
            remembered_shares=tuple(each.share for each in known),
            remembered_scales=tuple(each.log_scale for each in known),
            remembered_paths=tuple(each.path for each in known),
            remembered_revealed=tuple(each.revealed for each in known),
            remembered=len(known),
        )

    def _change_sums(self, everybody: float) -> tuple[float, float]:
        common, total = self._was.common_change, self._was.total_change
        count, shares, mean, lengths = self._change
        if count < 2:
            return common, total
        kept = max(0.0, 1 - shares / (EVIDENCE * everybody))
        return kept * common + mean**2, kept * total + lengths**2

    def _disagreement(self, square: float) -> float:
        if not (self._variance > 0 and square > 0):
            return self._was.disagreement
        now, before = self._variance / square, self._was.disagreement
        if before > 0:
            now = KEPT * before + (1 - KEPT) * min(max(now, before / JUMP), before * JUMP)
        return now


# -- the client's half -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnMemory:
    """What a client keeps between its tasks; it never leaves the client."""

    offset: FloatArray | None = None
    """h: its newest opened update minus the reference of that version."""
    waiting: FloatArray | None = None
    """Its newest opened update, until the reference of its version comes."""
    version: int = -1
    """Version that `waiting` belongs to."""
    length: float = 0.0
    """|u| of its newest opened update."""
    drift: float = UNKNOWN

    def received(self, version: int, reference: FloatArray) -> OwnMemory:
        """Return the memory after the reference of a model version has come."""
        if self.waiting is None or version != self.version:
            return self
        return replace(self, offset=self.waiting - np.asarray(reference, dtype=np.float64), waiting=None)

    def contribution(
        self,
        kind: Contribution,
        update: FloatArray,
        member: Member,
        ask: Mapping[str, float],
        reference: FloatArray | None = None,
    ) -> tuple[dict[str, FloatArray], dict[str, float], OwnMemory] | None:
        """Return the vectors and numbers that the client adds to the sums, and its memory if the group is opened.

        None = the client has lost its memory, and drops out of the group.

        Args:
            kind: of the group.
            update: the trained model minus the received one.
            member: the client's place in the group.
            ask: the client's numbers from `Group.asks`.
            reference: of the version that a late answer was trained from.
        """
        old = self.offset
        if kind in ("fresh", "late") and old is None:
            return None
        length = _length(update)
        scalars = {"length": ask["share"] * length}
        if kind in ("fresh", "late"):
            scalars["old_length"] = ask["old_share"] * self.length
            if self.drift >= 0:
                scalars["old_drift"] = ask["old_share"] * self.drift
                scalars["old_drift_path"] = scalars["old_drift"] * ask["old_path"]
        if kind in ("fresh", "fresh-new"):
            return self._fresh(kind, update, length, member, ask, scalars)
        assert reference is not None
        offset = update - np.asarray(reference, dtype=np.float64)
        drift = UNKNOWN
        memory = ask["share"] * math.exp(ask["unit"] - ask["log_scale"]) * offset
        vectors = {"memory": memory}
        if kind == "late":
            assert old is not None
            drift = self.drift
            vectors["memory"] = memory - ask["old_share"] * math.exp(ask["unit"] - ask["old_log_scale"]) * old
            change = offset - math.exp(ask["log_scale"] - ask["old_log_scale"]) * old
            if "apart" in ask:
                vectors["change"] = ask["change"] * change
            scalars["change_length"] = ask["change"] * _length(change)
            if ask["change"] > 0:
                shown = ask["predicted"] * _length(change) / (ask["path"] - ask["old_path"])
                drift = max(shown, KEPT * drift + (1 - KEPT) * shown)
            if drift >= 0:
                scalars["drift"] = ask["share"] * drift
                scalars["drift_path"] = scalars["drift"] * ask["path"]
        return vectors, scalars, OwnMemory(offset, None, member.version, length, drift)

    def _fresh(
        self,
        kind: Contribution,
        update: FloatArray,
        length: float,
        member: Member,
        ask: Mapping[str, float],
        scalars: dict[str, float],
    ) -> tuple[dict[str, FloatArray], dict[str, float], OwnMemory]:
        weightings = [ask[name] for name in sorted(ask) if name.startswith("w") and name != "weight"]
        vectors = {f"update{row}": weight * update for row, weight in enumerate(weightings)}
        one = ask.get("statistic", 1.0)
        scalars |= {"uu": one * length**2, SQUARE: ask["weight"] * length**2}
        drift = UNKNOWN
        if kind == "fresh":
            assert self.offset is not None
            drift = self.drift
            offset = math.exp(ask["log_scale"] - ask["old_log_scale"]) * self.offset
            vectors |= {f"offset{row}": weight * offset for row, weight in enumerate(weightings)}
            scalars |= {"oo": one * float(offset @ offset), "uo": one * float(update @ offset)}
            if drift >= 0:
                scalars["drift"] = ask["share"] * drift
                scalars["drift_path"] = scalars["drift"] * ask["path"]
        return vectors, scalars, OwnMemory(self.offset, update, member.version, length, drift)


def _length(vector: FloatArray) -> float:
    return math.sqrt(float(vector @ vector))
