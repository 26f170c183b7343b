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

Four numbers are measured in every step, on clients that were heard before: how much differences shrink from step to
step as training converges; b, how well the old ones predict the new ones; which part of the clients' disagreement is
left; and by how much those that are late find their differences changed in common, because the reference moves as
those move who count, and not as everybody does. The last two say to a scheme how few clients do. docs/theory.md derives
all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from fedpace._base.checks import BoolArray, above, between, finite
from fedpace.core.stepping import Answers, Part, ShareOf, Source, Stack, Vector, like
from fedpace.server._counting import still_counting
from fedpace.server._memory import Memory, Remembered
from fedpace.server.nesterov import Nesterov

T = TypeVar("T")


@dataclass(frozen=True)
class Remembering:
    """Momentum on updates without what is the clients' own.

    Args:
        power: exponent of FedExP's factor, momentum included: 0 = steps are not lengthened.
        memory_gib: room for what clients differ by, 4 bytes per client and parameter, and as much for what they differ
            from; beyond it the clients that were heard of longest ago are forgotten.
    """

    name: ClassVar[str] = "remembering"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "rows", "corrected"})

    power: float = 1.0
    memory_gib: float = 1.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        between(self.power, 0, 1, "power of remembering")
        above(self.memory_gib, 0, "memory_gib of remembering")
        finite(self.memory_gib, "memory_gib of remembering")

    def init(self, zero: Vector) -> Remembered:
        """Nothing is remembered."""
        return Remembered(
            momentum=zero,
            last=zero,
            move=zero,
            move_before=zero,
            offsets=Stack.none(zero),
            references=Stack.none(zero),
        )

    def apply(self, state: Remembered, model: Vector, answers: Answers) -> tuple[Vector, Remembered]:
        """Return the model that is sent next. Where the host does not say whose answers they are, it is `nesterov`."""
        moment = Nesterov(self.power)
        if len(answers.sources) != len(answers.rows):
            return moment.apply(state, model, answers)
        memory = Memory(_counted(state, answers.share_of), answers.version)
        updates = np.array([np.asarray(row) for row in answers.rows])
        robust = None
        if answers.combine is not None:
            combined = answers.combine(*memory.by_client(updates, answers.weights, answers.sources))
            kept = combined.weights[: len(updates)] > 0
            if not kept.any():  # what is left is the server's own part, where it has one
                return model + like(answers.step, combined.step), state
            robust, updates, answers = combined.step, updates[kept], _kept(answers, kept)
        fresh = np.array([source.version == answers.version for source in answers.sources])
        for update, source in zip(updates[~fresh], _some(answers.sources, ~fresh), strict=True):
            memory.remember_late(source, update)
        memory.learn(updates[fresh], _some(answers.sources, fresh))  # first: what is taken off is measured in this step
        step, reference = memory.freed(updates, answers.weights, fresh, answers.sources)
        step = step if robust is None else robust
        for update, source in zip(updates[fresh], _some(answers.sources, fresh), strict=True):
            memory.remember_now(source, update - reference)
        whole = Answers(like(answers.step, step), answers.weights, None, answers.mean_square)
        model, after = moment.apply(state, model, whole)
        room = max(2, int(self.memory_gib * 2**30) // (4 * step.size))
        spread = float(answers.weights[fresh] @ answers.weights[fresh])
        return model, memory.state(after, reference, float(step @ step), spread, answers.awaited, room)


def _counted(state: Remembered, share_of: ShareOf | None) -> Remembered:
    """Return the state with what clients weigh now, and without those that have left or are excluded.

    What these differed by would stay in the mean of all for ever; and since nothing new is heard of them, it would seem
    to drift further and further, until every step waited for everybody.
    """
    kept, shares = still_counting(state.remembered_clients, state.remembered_shares, share_of)
    if shares == state.remembered_shares:
        return state

    def still(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(values[place] for place in kept)

    return replace(
        state,
        offsets=state.offsets.of(still(state.offsets.rows)),
        remembered_clients=still(state.remembered_clients),
        remembered_versions=still(state.remembered_versions),
        remembered_shares=shares,
        remembered_scales=still(state.remembered_scales),
        remembered_paths=still(state.remembered_paths),
    )


def _kept(answers: Answers, kept: BoolArray) -> Answers:
    """Return the answers that a robust rule used: the others are not remembered."""
    total, left = float(answers.weights.sum()), answers.weights[kept]
    scaled = left * (total / float(left.sum())) if left.any() else np.full(left.size, total / left.size)
    rows = tuple(row for row, used in zip(answers.rows, kept.tolist(), strict=True) if used)
    square = float(scaled @ np.array([float(row @ row) for row in rows]))
    return replace(answers, weights=scaled, mean_square=square, rows=rows, sources=_some(answers.sources, kept))


def _some(sources: tuple[Source, ...], which: BoolArray) -> tuple[Source, ...]:
    return tuple(source for source, wanted in zip(sources, which.tolist(), strict=True) if wanted)
