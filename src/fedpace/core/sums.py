"""Group sums: what a server learns where it must not see single updates, and the aggregation that needs nothing else.

With `Settings(aggregation="sums")` a host sums the clients' contributions before the server sees them: by a secure
aggregation protocol, or in a trusted aggregator. The server gets a `GroupSum` per group of at least `minimum` clients:

    aggregator = SumAggregator(rule, zero)
    applied = aggregator.apply(coordinator, step, model, opener)     # opener.open(group) -> GroupSum

There is no type for a single update here, and `fedpace.core.aggregation.Trained` is not accepted. The server still
knows who is in a group, which version of the model each client trained from, and the weight of each client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.exposure import Exposure
from fedpace.core.server_rule import Answers, ServerRule, ShareOf, Source, Vector, double, join_state, like, split_state
from fedpace.core.tasks import Step
from fedpace.core.types import ClientId

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator

Contribution = Literal["weighted", "fresh", "fresh-new", "mixed", "late"]
"""What a client adds to a sum. `weighted`: its weight times its update. The others belong to a memory on the client
(`fedpace.server._client_memory`)."""
Caution = Literal["none", "late", "forget"]
"""What a plan does so that its sums, with earlier ones, tell nothing about one client: nothing; it lets late answers
wait; it forgets all clients."""
UPDATE, SQUARE, LOSS, BUFFERS, POSITIVE, COUNT = "update", "square", "loss", "buffers", "positive", "count"
"""Names of sums: of weight x update, weight x |update|^2, losses, positive weight x buffers, positive weights, and
answers."""
EXPOSURE = "exposure"
"""Name of `SumAggregator.exposure` in the saved state."""
SINGLE = frozenset({"rows", "corrected"})
"""What a server rule may take (`Part`) that sums do not show."""


class Member(NamedTuple):
    """A client in a group, as the server knows it."""

    task: int
    client: ClientId
    version: int
    """Version of the model that the client trained from."""
    share: float
    """The client's weight in the objective."""
    weight: float
    """The weight of its answer in the step."""


@dataclass(frozen=True, eq=False)
class Group:
    """Clients whose contributions are summed, and the numbers that each of them needs to compute its own."""

    kind: Contribution
    members: tuple[Member, ...]
    asks: tuple[Mapping[str, float], ...]
    """Name -> number, one mapping per member."""
    references: Mapping[int, Vector] = field(default_factory=dict)
    """Version -> vector that members of that version need."""

    @property
    def clients(self) -> int:
        """Number of different clients."""
        return len({member.client for member in self.members})


@dataclass(frozen=True, eq=False)
class GroupSum:
    """The sums over a group: all that the server learns about its members' updates."""

    clients: int
    """Number of different clients in the sums."""
    vectors: Mapping[str, Vector]
    """Name -> sum of the clients' vectors."""
    scalars: Mapping[str, float]
    """Name -> sum of the clients' numbers."""
    absent: frozenset[int] = frozenset()
    """Tasks of members that are not in the sums, because their clients dropped out."""


class Opener(Protocol):
    """The part of a host that sums contributions: a protocol between clients, or a trusted aggregator."""

    def open(self, group: Group, minimum: int) -> GroupSum | None:
        """Return the sums over the group; None if fewer than `minimum` clients are left in it."""
        ...

    def publish(self, version: int, reference: Vector) -> None:
        """Send the reference of a model version to those that keep the memory of the clients."""
        ...

    @property
    def lost_memory(self) -> bool:
        """Whether the memory of all clients is lost, so that they must be forgotten; until the next `forget`."""
        ...

    def forget(self) -> None:
        """Forget all clients: their memory enters no other sum."""
        ...


@dataclass(frozen=True, eq=False)
class GroupPlan:
    """The groups to open for a step."""

    groups: tuple[Group, ...]
    held: frozenset[int] = frozenset()
    """Tasks that stay in hand, because too few clients are of their kind."""
    forget: bool = False
    """Whether the rule forgets what it remembers before this step."""


@runtime_checkable
class SumRule(Protocol):
    """A server rule that plans its own groups; other rules get the weighted sum of the updates."""

    def plan(
        self,
        state: Any,
        members: Sequence[Member],
        version: int,
        minimum: int,
        share_of: ShareOf | None,
        caution: Caution = "none",
    ) -> GroupPlan:
        """Return the groups to open."""
        ...

    def apply_sums(
        self, state: Any, model: Vector, plan: GroupPlan, sums: Sequence[GroupSum | None], answers: Answers
    ) -> tuple[Vector, Any]:
        """Return the next model and the state; `answers` has no updates, only weights, versions and shares."""
        ...

    def published(self, state: Any) -> tuple[int, Vector] | None:
        """Return the model version and the reference that its clients need, after a step."""
        ...

    def forget(self, state: Any) -> Any:
        """Return the state without any remembered client."""
        ...


class SumsApplied(NamedTuple):
    """The result of `SumAggregator.apply`."""

    model: Vector
    moved: bool
    """False = no group was large enough, or no answer had weight; the model is unchanged."""
    step: Step
    """The step with the answers that were opened."""
    buffers: Vector | None = None
    """Weighted mean of the clients' buffers; None = they have none, or none had a positive weight."""
    loss: float | None = None
    """Mean training loss of the clients in the groups."""
    refused: frozenset[int] = frozenset()
    """Tasks whose clients dropped out, or are in a group that was too small."""


class SumAggregator:
    """Aggregates the group sums of each step into the next model; the counterpart of `Aggregator` for sums.

    Args:
        rule: a server rule that needs no single updates (`check_sum_rule`).
        zero: returns zeros of the model's length, in double precision.
    """

    def __init__(self, rule: ServerRule[Any], zero: Callable[[], Vector]) -> None:
        check_sum_rule(rule)
        self.rule, self._zero = rule, zero
        self.state: Any = rule.init(zero())
        self.exposure = Exposure()
        """The sums that were opened, for a rule whose clients have a memory."""

    def apply(self, coordinator: Coordinator, step: Step, model: Vector, opener: Opener) -> SumsApplied:
        """Open the groups of a step and return the next model.

        Args:
            coordinator: holds the clients' shares. It keeps answers that are held back in hand.
            step: the step that is due.
            model: the current model.
            opener: returns the sums of a group.
        """
        minimum, share_of, version = coordinator.settings.minimum, coordinator.share_of(), step.number - 1
        members = [Member(t.id, t.client, t.step, share_of(t.client) or 0.0, weight) for t, weight in step.answers]
        plan = self._plan(members, version, minimum, share_of, lost=opener.lost_memory)
        if plan.forget:
            opener.forget()
        sums = [opener.open(group, minimum) for group in plan.groups]
        step, refused = self._opened(coordinator, step, plan, sums, minimum)
        opened = [found for found in sums if found is not None]
        pairs = zip(plan.groups, sums, strict=True)
        # A memory that cannot be opened is of no use; and what the opener forgot, the rule must forget too.
        lost = any(found is None and any("old_version" in ask for ask in group.asks) for group, found in pairs)
        if not opened:
            if lost or plan.forget:
                self._forget(opener)
            return SumsApplied(model, False, step, refused=refused)
        counted = {m.task for group, found in zip(plan.groups, sums, strict=True) if found for m in group.members}
        inside = [(task, weight) for task, weight in step.answers if task.id in counted]
        weights = np.array([weight for _, weight in inside])
        sources = tuple(Source(task.client, task.step, share_of(task.client) or 0.0) for task, _ in inside)
        awaited = coordinator.task_table.versions
        answers = Answers(self._zero(), weights, None, 0.0, (), sources, version, awaited, share_of, facts=step.facts)
        if isinstance(self.rule, SumRule):
            stepped, self.state = self.rule.apply_sums(self.state, model, plan, sums, answers)
            if (reference := self.rule.published(self.state)) is not None:
                opener.publish(*reference)
            if lost:
                self._forget(opener)
        else:
            stepped, self.state = self._weighted(model, opened[0], plan.groups[0], answers)
        if step.scale != 1.0:  # all clients in the step reached their weight caps
            stepped = double(model) + step.scale * (stepped - double(model))
        return SumsApplied(stepped, bool(weights.any()), step, _buffers(opened), _loss(opened), refused)

    def _forget(self, opener: Opener) -> None:
        assert isinstance(self.rule, SumRule)
        self.state = self.rule.forget(self.state)
        self.exposure.clear()
        opener.forget()

    @staticmethod
    def _opened(
        coordinator: Coordinator, step: Step, plan: GroupPlan, sums: Sequence[GroupSum | None], minimum: int
    ) -> tuple[Step, frozenset[int]]:
        """Return the step without answers that are held back, and without those that it refuses, which come second."""
        if plan.held:
            step = coordinator.hold(plan.held, step)
        reasons: dict[int, str] = {}
        for group, found in zip(plan.groups, sums, strict=True):
            if found is None:
                why = f"not opened: a sum needs at least {minimum} clients"
                reasons |= dict.fromkeys([member.task for member in group.members], why)
            else:
                reasons |= dict.fromkeys(found.absent, "it dropped out of the sum")
        return (coordinator.refuse(reasons, step) if reasons else step), frozenset(reasons)

    def _plan(
        self, members: Sequence[Member], version: int, minimum: int, share_of: ShareOf, *, lost: bool = False
    ) -> GroupPlan:
        """Return the groups to open; `lost`: the clients' memory is lost, so that all are new."""
        if isinstance(self.rule, SumRule):
            plan = self.rule.plan(self.state, members, version, minimum, share_of, "forget" if lost else "none")
            if minimum == 1:
                return plan
            after = self.exposure.after(plan.groups)
            if not lost and not plan.forget and not self.exposure.full and after.clients():
                plan = self.rule.plan(self.state, members, version, minimum, share_of, "late")
                after = self.exposure.after(plan.groups)
            if not plan.forget and (self.exposure.full or after.clients()):
                plan = self.rule.plan(self.state, members, version, minimum, share_of, "forget")
            if plan.forget:
                self.exposure.clear()
                after = self.exposure.after(plan.groups)
            self.exposure = after
            return plan
        counted = tuple(member for member in members if member.weight != 0)
        if not counted:
            return GroupPlan(())
        return GroupPlan((Group("weighted", counted, tuple({"weight": member.weight} for member in counted)),))

    def _weighted(self, model: Vector, found: GroupSum, group: Group, answers: Answers) -> tuple[Vector, Any]:
        """Apply a rule to the weighted sum; where clients dropped out, the others' weights are scaled up."""
        asked = sum(member.weight for member in group.members if member.task not in found.absent)
        factor = float(answers.weights.sum()) / asked if asked else 1.0
        update = factor * double(like(answers.step, np.asarray(found.vectors[UPDATE])))
        square = factor * found.scalars.get(SQUARE, 0.0)
        whole = Answers(
            update,
            answers.weights,
            None,
            square,
            (),
            answers.sources,
            answers.version,
            answers.awaited,
            answers.share_of,
            answers.facts,
        )
        if "mixture" in self.rule.takes:
            raise InputError(f"{self.rule.name} mixes single models: use fedbuff with another server step")
        stepped, state = self.rule.apply(self.state, model, whole)
        return stepped, state

    def saved(self) -> tuple[dict[str, Any], dict[str, Vector]]:
        """Return the state as name -> scalar and name -> vector, for saving."""
        scalars, vectors = split_state(self.state)
        return {**scalars, EXPOSURE: self.exposure.saved()}, vectors

    def load(self, scalars: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
        """Restore the state from the result of `saved`."""
        others = {
            n: tuple(value) if isinstance(value, list) else value for n, value in scalars.items() if n != EXPOSURE
        }
        self.state = join_state(self.rule.init(self._zero()), others, dict(vectors))
        self.exposure.load(scalars[EXPOSURE])


Sums = tuple[dict[str, FloatArray], dict[str, float]]
"""Vectors and numbers by name."""


def weighted_contribution(update: FloatArray, weight: float) -> Sums:
    """Return what a client adds to the sums of a group of kind `weighted`.

    Args:
        update: the trained model minus the received one.
        weight: of the client's answer.
    """
    return {UPDATE: weight * update}, {SQUARE: weight * float(update @ update)}


def with_training(own: Sums, weight: float, loss: float, buffers: FloatArray | None = None) -> Sums:
    """Return a contribution of any kind with what local training adds: the loss (unless NaN), and buffers."""
    vectors, scalars = own
    if buffers is not None:
        vectors[BUFFERS] = max(weight, 0.0) * buffers
    told = {} if math.isnan(loss) else {LOSS: loss, COUNT: 1.0}
    return vectors, scalars | {POSITIVE: max(weight, 0.0), **told}


def add_up(
    contributions: Iterable[Sums],
) -> Sums:
    """Return the sums of vectors and of numbers by name."""
    vectors: dict[str, FloatArray] = {}
    scalars: dict[str, float] = {}
    for own_vectors, own_scalars in contributions:
        for name, vector in own_vectors.items():
            vectors[name] = vectors[name] + vector if name in vectors else vector
        for name, value in own_scalars.items():
            scalars[name] = scalars.get(name, 0.0) + value
    return vectors, scalars


def _buffers(opened: Sequence[GroupSum]) -> Vector | None:
    total = sum(found.scalars.get(POSITIVE, 0.0) for found in opened)
    told = [found.vectors[BUFFERS] for found in opened if BUFFERS in found.vectors]
    return sum(told[1:], told[0]) / total if told and total > 0 else None


def _loss(opened: Sequence[GroupSum]) -> float | None:
    count = sum(found.scalars.get(COUNT, 0.0) for found in opened)
    return sum(found.scalars.get(LOSS, 0.0) for found in opened) / count if count else None


# -- what works with sums ----------------------------------------------------------------------------------------------


def check_sum_rule(rule: ServerRule[Any]) -> None:
    """Raise InputError if a server rule needs single updates."""
    if SINGLE & rule.takes or "mixture" in rule.takes:
        raise InputError(
            f"the server step {rule.name!r} needs single updates, but this run shows the server sums only: use "
            "nesterov, fedavgm, fedadam, fedexp or average, or aggregation = 'individual'"
        )


def why_not_sums(policy: Any) -> str:
    """Return why a scheme cannot work with sums, and what to use instead; empty if it can."""
    if getattr(policy, "sets_work", False):
        return "it sets how much each client trains, and sums take no account of that. Use fedbuff, or pace-async"
    return str(getattr(policy, "not_with_sums", ""))


def check_sums(policy: Any, minimum: int) -> None:
    """Raise InputError if a scheme cannot work with sums over at least `minimum` clients."""
    if why := why_not_sums(policy):
        raise InputError(f"{policy.name} does not work with aggregation = 'sums': {why}")
    for name in getattr(policy, "sum_sizes", ()):
        size = getattr(policy, name, 0)
        if isinstance(size, int) and 0 < size < minimum:
            raise InputError(
                f"{policy.name} has {name} = {size}, but a sum needs at least {minimum} clients: raise {name}, or "
                "lower minimum"
            )
