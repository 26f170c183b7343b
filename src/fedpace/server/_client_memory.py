"""`memory-corrected` where the server sees sums only: offsets stay on the clients, or with a trusted aggregator.

The step is that of `fedpace.server.memory_corrected`; read its docstring first. A client, or the aggregator, keeps
the client's offset h_i = u_i - reference (`_own_memory.py`). The server keeps H = sum_i w_i h_i in the unit
of the current step, as `MemoryState.offset_sum`. Versions, shares and scales are its own numbers
(`_sum_memory.py`).

A step opens up to four groups, each of at least `minimum` clients. Answers of a group that is too small stay in hand.

| group | sums of vectors | sums of numbers |
|---|---|---|
| fresh: of remembered clients | updates, offsets | |u|^2, |h|^2, their product, |u| |
| fresh-new: of new clients | updates | |u|^2, |u| |
| mixed: of both, if either is too small | updates minus offsets (b is 1) | |u|^2, |u| |
| late: of either or both | change of w_i h_i | |u|, length of the change |

With a minimum of 1 every answer is a group of its own, and all steps equal those of `memory-corrected` up to rounding,
until the limit `reach` makes both forget clients. Otherwise these things differ:

- Within a group, clients weigh by their shares in the step and in all measurements. Two weightings that differ for one
  client would tell its update. All clients of a group get the mean of its drifts and lengths.
- The server cannot take a single offset out of H. Where `memory-corrected` forgets the clients heard longest ago (limit
  `reach`), all are forgotten but those with a fresh answer in this step. A client that leaves or lost its memory stays
  in H as it was, until such clients have more than `DEPARTED` of the weight. Then all clients are forgotten, as after a
  change of shares other than a common factor.
- Before a step whose sums, together with earlier ones, would tell something about one client alone, late answers wait,
  or the server forgets all clients (`fedpace.core.exposure`).

Forgotten clients are new when they answer next.

Under masks, clients keep their memory themselves, so that references go down to them. They are rounded to
`MASKS_SENT` first, and the server goes on with the rounded ones. A reference is the same for all clients of a
version and contains an unknown constant in any case; the error of rounding is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between, Options
from fedpace.core.server_rule import Answers, Part, ServerRule, ShareOf, Vector, like
from fedpace.core.sums import Caution, Contribution, Group, GroupPlan, GroupSum, Member, check_sum_rule
from fedpace.server._row_store import BITS
from fedpace.server._sum_memory import SumMemory, SumsState, current, forgotten
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov

Sent = Literal["float32", "16bit", "8bit", "4bit"]
MASKS_SENT: Sent = "8bit"
"""How references are sent to clients with their tasks."""


@dataclass(frozen=True)
class ClientMemory(Options):
    """`memory-corrected` with sums only.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
        reach: how far the model may move since the clients' last answers, on average over their shares, in units of the
            mean length of the clients' updates; 0 = no limit.
        references: how references are sent to those that keep the clients' memory: `float32`, `16bit`, `8bit`, `4bit`.
    """

    name: ClassVar[str] = "client-memory"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "sources"})

    power: Annotated[float, Between(0, 1)] = 1.0
    reach: Annotated[float, AtLeast(0)] = 0.0
    references: Sent = "float32"

    @property
    def reference_bits(self) -> int:
        """Bits per value of references."""
        return BITS[self.references]

    def init(self, zero: Vector) -> SumsState:
        """Return the state before the first step."""
        plain = MemoryCorrected().init(zero)
        return SumsState(**{**vars(plain), "offset_sum": zero})

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
        caution: Caution = "none",
    ) -> GroupPlan:
        """Return the groups of a step; `caution`: let late answers wait, or forget all clients first."""
        state = current(state, share_of)
        if caution == "forget":
            state = forgotten(state)
        memory = SumMemory(state, version)
        fresh = [member for member in members if member.version == version and member.weight > 0]
        late = [member for member in members if member.version != version and memory.counts(member)]
        groups: list[tuple[Contribution, list[Member]]] = []
        held: set[int] = set()
        for some in (late,) if caution != "none" else _split_late(late, memory, minimum):
            if caution == "none" and _clients(some) >= minimum:
                groups.append(("late", some))
            else:
                held |= {member.task for member in some}
        found = [memory.late_group(some, state, minimum) for _, some in groups]
        old = [member for member in fresh if memory.knows(member.client)]
        new = [member for member in fresh if not memory.knows(member.client)]
        kinds: list[tuple[Contribution, list[Member]]] = [("fresh", old), ("fresh-new", new)]
        if max(_clients(old), _clients(new)) < minimum <= _clients(fresh):
            kinds = [("mixed", fresh)]
        opened: list[Group] = []
        for kind, some in kinds:
            if some and _clients(some) >= minimum:
                parts = [[member] for member in some] if minimum == 1 else [some]
                opened += [memory.fresh_group(kind, part) for part in parts]
            else:
                held |= {member.task for member in some}
        if not opened:  # no step without fresh answers
            return GroupPlan((), frozenset(held | {m.task for group in found for m in group.members}))
        return GroupPlan((*found, *opened), frozenset(held), caution == "forget")

    def apply_sums(
        self, state: SumsState, model: Vector, plan: GroupPlan, sums: Sequence[GroupSum | None], answers: Answers
    ) -> tuple[Vector, SumsState]:
        """Return the next model to send, and the state."""
        state = current(state, answers.share_of)
        memory = SumMemory(forgotten(state) if plan.forget else state, answers.version, self.reach)
        for group, found in zip(plan.groups, sums, strict=True):
            if found is not None:
                memory.add(group, found)
        if not memory.spoken:
            return model, memory.unmoved()
        memory.learn_from_sums()
        step, reference = memory.step_and_reference(self.reference_bits)
        total = float(sum(answers.weights))
        memory.remember_sums(reference)
        whole = Answers(like(answers.step, total * step), answers.weights, None, memory.fresh_square * total)
        model, after = Nesterov(self.power).limited(state, model, whole, memory.within if self.reach else None)
        return model, memory.next_state(after, reference, total**2 * float(step @ step), answers.awaited)

    def published(self, state: SumsState) -> tuple[int, Vector] | None:
        """Return the version of the last step and its reference."""
        return (state.reference_versions[-1], state.references.rows[-1]) if state.reference_versions else None

    def forget(self, state: SumsState) -> SumsState:
        """Return the state without any remembered client."""
        return forgotten(state)


def _clients(members: Iterable[Member]) -> int:
    return len({member.client for member in members})


def _split_late(late: list[Member], memory: SumMemory, minimum: int) -> list[list[Member]]:
    """Return groups of late answers: of remembered clients and of new ones, or together if one of them is small."""
    if minimum == 1:
        return [[member] for member in late]
    old = [member for member in late if memory.knows(member.client)]
    new = [member for member in late if not memory.knows(member.client)]
    if min(_clients(old), _clients(new)) >= minimum:
        return [new, old]
    return [late] if late else []


def sum_rule(rule: ServerRule[Any], *, noisy: bool = False, masks: bool = False) -> ServerRule[Any]:
    """Return the server rule to use with sums in place of `rule`; raise InputError if there is none.

    `memory-corrected` becomes `client-memory`: the same steps, with each client's memory on the client. In rounds
    (`everyone`) it becomes `nesterov`, because cohorts mix remembered and new clients.

    Args:
        rule: the rule that the scheme uses with single updates.
        noisy: whether noise is added to the sums (differential privacy). Noise would add up in the memory and disturb
            FedExP's measurement, so neither is used then.
        masks: whether clients keep their memory themselves, so that references are sent to them.
    """
    if isinstance(rule, MemoryCorrected):
        sent: Sent = MASKS_SENT if masks else "float32"
        rule = Nesterov(rule.power) if rule.everyone or noisy else ClientMemory(rule.power, rule.reach, sent)
    if noisy and isinstance(rule, Nesterov):
        rule = Nesterov(0.0)
    check_sum_rule(rule)
    if noisy and "squares" in rule.takes and not isinstance(rule, Nesterov):
        raise InputError(
            f"the server step {rule.name!r} needs the squares of updates, which are not released under differential "
            "privacy: use nesterov, fedavgm, fedadam or average"
        )
    return rule
