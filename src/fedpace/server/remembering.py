"""The server step `remembering`: Nesterov momentum (`nesterov.py`) on updates with a control variate per client.

A client's update differs from the average update in much the same way in every step, because its data do not change.
The server remembers this difference as the client's offset h_i and subtracts it when the client answers again:

    u = sum_i a_i (u_i - b (h_i - mean of all h)),        h_i = the client's update minus a reference, when last heard.

So a few fast clients can represent the whole population, provided that every client has answered at least once. Stale
answers stay useful: an answer to an old model still shows how the client differs from the others. Plain control
variates (SAGA, MIFA, CA2FL) remember the updates themselves, which are out of date as soon as the model has moved.

The reference must depend neither on which clients answered nor on the mean of the memory. Otherwise an error in the
reference would return through the memory, later and larger. The reference of a model version is r = sum_i a_i (u_i -
h_i) over the fresh answers to that version, and h_i is the client's update minus the reference of the version that the
client trained from. Each reference contains an unknown constant; subtracting the mean of all h removes it.

The step measures four numbers on clients that were heard before:

- how much offsets shrink per step as training converges;
- b, how well old offsets predict new ones;
- the part of the clients' squared disagreement that the memory does not explain;
- drift: the error that all remembered offsets share, because the reference follows only the clients that counted. Late
  answers reveal it.

A scheme uses the last two to decide how few clients are enough. docs/theory.md derives the method.
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
    """Momentum on updates corrected by control variates.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
        memory_gib: memory for the clients' offsets, 4 bytes per client and parameter, and the same again for
            references. When it is full, the server forgets the clients that it heard from longest ago.
    """

    name: ClassVar[str] = "remembering"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "rows", "corrected"})

    power: float = 1.0
    memory_gib: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        between(self.power, 0, 1, "power of remembering")
        above(self.memory_gib, 0, "memory_gib of remembering")
        finite(self.memory_gib, "memory_gib of remembering")

    def init(self, zero: Vector) -> Remembered:
        """Return the state before the first step, without any offsets."""
        return Remembered(
            momentum=zero,
            last=zero,
            move=zero,
            move_before=zero,
            offsets=Stack.none(zero),
            references=Stack.none(zero),
        )

    def apply(self, state: Remembered, model: Vector, answers: Answers) -> tuple[Vector, Remembered]:
        """Return the next model to send, and the state. Without `answers.sources`, the step is that of `nesterov`."""
        moment = Nesterov(self.power)
        if len(answers.sources) != len(answers.rows):
            return moment.apply(state, model, answers)
        memory = Memory(_counted(state, answers.share_of), answers.version)
        updates = np.array([np.asarray(row) for row in answers.rows])
        robust = None
        if answers.combine is not None:
            combined = answers.combine(*memory.by_client(updates, answers.weights, answers.sources))
            kept = combined.weights[: len(updates)] > 0
            if not kept.any():  # the robust rule rejected every client's update
                return model + like(answers.step, combined.step), state
            robust, updates, answers = combined.step, updates[kept], _kept(answers, kept)
        fresh = np.array([source.version == answers.version for source in answers.sources])
        for update, source in zip(updates[~fresh], _some(answers.sources, ~fresh), strict=True):
            memory.remember_late(source, update)
        memory.learn(updates[fresh], _some(answers.sources, fresh))  # first: `freed` uses the b measured in this step
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
    """Return the state with the clients' current shares, without clients that left or are excluded.

    The offset of such a client would otherwise stay in the mean forever. Its age would grow without bound, and so would
    the estimated drift, until every step waited for all clients.
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
    """Return only the answers that the robust rule gave a weight; the rejected ones are not remembered."""
    total, left = float(answers.weights.sum()), answers.weights[kept]
    scaled = left * (total / float(left.sum())) if left.any() else np.full(left.size, total / left.size)
    rows = tuple(row for row, used in zip(answers.rows, kept.tolist(), strict=True) if used)
    square = float(scaled @ np.array([float(row @ row) for row in rows]))
    return replace(answers, weights=scaled, mean_square=square, rows=rows, sources=_some(answers.sources, kept))


def _some(sources: tuple[Source, ...], which: BoolArray) -> tuple[Source, ...]:
    return tuple(source for source, wanted in zip(sources, which.tolist(), strict=True) if wanted)
