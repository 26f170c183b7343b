"""The server step `memory-corrected`: Nesterov momentum on updates with a control variate per client.

A client's update differs from the average update in much the same way in every step, because its data do not change.
The server remembers this difference as the client's *offset* h_j. In each step, clients that answered the current model
(*fresh* answers, the set F) speak for themselves. All other clients are predicted from their offsets:

    u = sum_{i in F} w_i u_i  +  sum_{j not in F} w_j (r + b h_j),        r = sum_{i in F} a_i (u_i - b h_i),

with w_j the clients' shares of the objective and a_i the weights of the step. So a few fast clients can represent the
whole population, provided that every client has answered at least once, and u is exact when all clients answered. Late
answers stay useful: an answer to an old model still shows how the client differs from the others. Plain control
variates (SAGA, MIFA, CA2FL) remember the updates themselves, which are out of date as soon as the model has moved.

An offset is the client's update minus the *reference* of the model version that it trained from. The reference of a
version is sum_i a_i (u_i - h_i) over its fresh answers. It contains neither the mean of the memory nor the step itself.
Otherwise an error in the reference would return through the memory, later and larger. Each reference contains an
unknown constant; it cancels in u.

Clients that train many more local steps have longer updates, and change them more when the model moves. So the
reference, which follows the clients that answer, moves the prediction of client j by its *response* s_j: u_j is
predicted as s_j^b r + b h_j, with r = sum a_i (u_i - b h_i) / s_i^b and h_j = u_j - s_j r. s_j is the length of the
client's first update, relative to the others', and lies between 1 and the ratio of local steps. It is 1 if numbers of
steps are similar or unknown, and then the formulas are those above.

The step measures:

- how much offsets shrink per step as training converges;
- b, how well old offsets predict new ones;
- the part of the clients' squared disagreement that the memory does not explain;
- drift: how fast remembered offsets become wrong as the model moves. The reference follows only the clients that
  answer, and the others may respond to the move differently. Late answers reveal the drift.

`pace-async` uses the last two to decide how many answers are enough. Drift counts at least what clients with a larger
response may do unseen. A limit holds before any late answer: since the
clients' last answers, the model may move on average at most `reach` times as far as the clients' own updates were long
(docs/theory.md, "How far the memory carries").
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np

from fedpace._base.checks import BoolArray, shortened
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.server_rule import (
    Answers,
    Part,
    ShareOf,
    Stack,
    Update,
    Vector,
    WeightedSum,
    like,
    same,
)
from fedpace.numerics.parts import LARGE
from fedpace.server._counting import still_counting
from fedpace.server._memory import Memory, MemoryState, Updates, squared_length
from fedpace.server._row_store import Precision, RowStore
from fedpace.server.nesterov import Nesterov

T = TypeVar("T")

log = logging.getLogger(__name__)

MISSING = 1e-9
"""Share of the objective that may be missing in the memory if it must hold every client; allows for rounding."""


@dataclass(frozen=True)
class MemoryCorrected(Options):
    """Momentum on updates corrected by control variates.

    Args:
        power: exponent of FedExP's factor, with momentum counted as part of the factor; 0 = do not lengthen steps.
        memory_gib: memory for the clients' offsets, and the same again for references. When it is full, the server
            forgets the clients that it heard from longest ago.
        memory: how offsets are stored: `float32`, 4 bytes per client and parameter; `16bit`, `8bit` or `4bit`, about
            2, 1 and 0.53 bytes (`fedpace.numerics.quantised`); `auto`, the most bits in which all clients have room.
        memory_folder: folder for the offsets and references, as mapped files without names; empty = in memory.
        reach: how far the model may move since the clients' last answers, on average over their shares, in units of the
            mean length of the clients' updates. Steps are shortened to half their length if necessary. If that is not
            enough, the server forgets the clients that it heard from longest ago. 0 = no limit.
        everyone: correct a step only if the memory holds every client of the objective. A scheme that chooses clients
            needs it: corrected steps lead to the optimum of the remembered clients, and a scheme that asks only these
            would never hear of the others, such as clients that join later. Schemes in which every client trains all
            the time do not need it.
    """

    name: ClassVar[str] = "memory-corrected"
    takes: ClassVar[frozenset[Part]] = frozenset({"squares", "rows", "slices", "corrected"})

    power: Annotated[float, Between(0, 1)] = 1.0
    memory_gib: Annotated[float, Above(0), FINITE] = 1.0
    reach: Annotated[float, AtLeast(0)] = 0.0
    everyone: bool = False
    memory: Precision = "auto"
    memory_folder: str = ""

    def init(self, zero: Vector) -> MemoryState:
        """Return the state before the first step, without any offsets."""
        lead = vars(Nesterov().init(zero))
        return MemoryState(**lead, offsets=Stack.none(zero), references=Stack.none(zero), offset_sum=zero[:0])

    def apply(self, state: MemoryState, model: Vector, answers: Answers) -> tuple[Vector, MemoryState]:
        """Return the next model to send, and the state. Without `answers.sources`, the step is that of `nesterov`."""
        if len(answers.sources) != len(answers.rows):
            if isinstance(answers.step, WeightedSum):
                total, square = answers.step.measured(np.empty(answers.step.shape, np.float32))
                answers = replace(answers, step=same(model, total), mean_square=square)
            return Nesterov(self.power).limited(state, model, answers, reuse=True)
        counted, store = _counted(state, answers.share_of), self._store(state, answers)
        memory = Memory(counted, answers.version, self.reach, store, owned=True, awaited=answers.awaited)
        try:
            return self._corrected(state, model, answers, memory, store.room)
        except BaseException:
            _drop(state, *memory.overwritten)
            raise

    def _corrected(
        self, state: MemoryState, model: Vector, answers: Answers, memory: Memory, room: int
    ) -> tuple[Vector, MemoryState]:
        """Return the result of `apply` for answers whose clients are known."""
        momentum, large = Nesterov(self.power), answers.step.shape[0] > LARGE
        updates: Updates = answers.rows if large else [np.asarray(row) for row in answers.rows]
        robust = None
        if answers.combine is not None:
            rows = np.array([np.asarray(row) for row in updates])
            combined = answers.combine(*memory.by_client(rows, answers.weights, answers.sources))
            kept = combined.weights[: len(rows)] > 0
            if not kept.any():  # the robust rule rejected every client's update
                return model + (same(model, combined.step) if large else like(answers.step, combined.step)), state
            robust, updates, answers = combined.step, _some(updates, kept), _kept(answers, kept)
        fresh = np.array([source.version == answers.version for source in answers.sources])
        for update, source in zip(_some(updates, ~fresh), _some(answers.sources, ~fresh), strict=True):
            memory.remember_late(source, update)
        memory.learn(_some(updates, fresh), _some(answers.sources, fresh))  # first: `step` uses the b of this step
        step, reference, mean_square = memory.step(updates, answers.weights, fresh, answers.sources)
        if robust is not None:
            step = robust
        elif self.everyone and memory.covered < 1 - MISSING:
            step = _plain(answers.step, step) if large else answers.weights @ np.array(updates)
        if robust is not None or not large:
            mean_square = answers.mean_square
        square, spread = squared_length(step), float(answers.weights[fresh] @ answers.weights[fresh])
        update = same(model, step) if large else like(answers.step, step)
        whole = Answers(update, answers.weights, None, mean_square)
        limit = memory.within if self.reach else None
        model, after = momentum.limited(state, model, whole, limit, reuse=True)
        after = memory.state(after, reference, square, spread, answers.awaited, room)
        if after.told:
            log.info("fedpace: the server remembers clients %s", after.told)
        if after.forgotten_clients:
            level = logging.INFO if state.forgotten_clients else logging.WARNING  # once, while it goes on
            why = "memory_gib has no room for them, or they were silent for too long"
            log.log(level, "fedpace: the server forgot the clients %s: %s", shortened(after.notes["forgotten"]), why)
        return model, after

    def _store(self, state: MemoryState, answers: Answers) -> RowStore:
        """Return the store of the offsets and references."""
        clients = max(
            answers.clients or 0, len({*state.remembered_clients, *(each.client for each in answers.sources)})
        )
        return RowStore.choose(
            self.memory,
            answers.step.shape[0],
            clients,
            gib=self.memory_gib,
            folder=self.memory_folder,
            before=state.memory_bits,
            single=answers.step.shape[0] > LARGE,
        )


def _counted(state: MemoryState, share_of: ShareOf | None) -> MemoryState:
    """Return the state with the clients' current shares, without clients that left or are excluded.

    The offset of such a client would otherwise stay in the mean forever. Its age would grow without bound, and so would
    the estimated drift, until every step waited for all clients.
    """
    kept, shares = still_counting(state.remembered_clients, state.remembered_shares, share_of)
    if shares == state.remembered_shares:
        return state

    return replace(state, **(_only(state, kept) | {"remembered_shares": shares}))


def _only(state: MemoryState, kept: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a state that remembers only the clients at these places; their sum is not known."""

    def still(values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(values[place] for place in kept)

    names = [name for name in vars(state) if name.startswith("remembered_")]
    return {
        **{name: still(getattr(state, name)) for name in names},
        "offsets": state.offsets.of(still(state.offsets.rows)),
        "offset_sum": state.offset_sum[:0],
    }


def _drop(state: MemoryState, clients: set[object], versions: set[int]) -> None:
    """Let the state forget clients and references over which a failed step has written."""
    fields: dict[str, Any] = {}
    if clients:
        fields = _only(state, [place for place, each in enumerate(state.remembered_clients) if each not in clients])
    if versions:
        left = [place for place, version in enumerate(state.reference_versions) if version not in versions]
        names = [name for name in vars(state) if name.startswith("reference_")]
        fields |= {name: tuple(getattr(state, name)[place] for place in left) for name in names}
        fields["references"] = state.references.of(state.references.rows[place] for place in left)
    for name, value in fields.items():
        object.__setattr__(state, name, value)


def _kept(answers: Answers, kept: BoolArray) -> Answers:
    """Return only the answers that the robust rule gave a weight; the rejected ones are not remembered."""
    total, left = float(answers.weights.sum()), answers.weights[kept]
    scaled = left * (total / float(left.sum())) if left.any() else np.full(left.size, total / left.size)
    rows = tuple(row for row, used in zip(answers.rows, kept.tolist(), strict=True) if used)
    square = float(scaled @ np.array([float(row @ row) for row in map(_whole, rows)]))
    return replace(answers, weights=scaled, mean_square=square, rows=rows, sources=_some(answers.sources, kept))


def _plain(step: Vector, into: Vector) -> Vector:
    """Return the plain weighted sum of the answers to a large model, written over `into` if it is not computed yet."""
    return step.measured(into)[0] if isinstance(step, WeightedSum) else np.asarray(step)


def _whole(row: Vector) -> Vector:
    return np.asarray(row) if isinstance(row, Update) else row


def _some(values: Sequence[T], which: BoolArray) -> tuple[T, ...]:
    return tuple(value for value, wanted in zip(values, which.tolist(), strict=True) if wanted)
