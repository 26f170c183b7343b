"""Bounded influence: limits on what one client can do to the model, whatever it sends and claims.

`Trust` holds one row per client. Its methods have three verbs:

- `validate` says which answers can be used at all: those that are finite.
- `bound` and `bound_...` say how much counts of what a client sends and claims.
- `observe` and `observe_...` record what a step used, for later bounds.

The bounds:

- *Updates* (`bound`) longer than `CLIP` times the reference are clipped. The reference is the upper quartile, over
  clients, of the longest update that each has sent so far. Every client has one vote, so clients that answer more often
  do not decide. The reference does not fall as training converges, so an honest minority with long updates late in
  training keeps its influence. It also grows slowly (`REFERENCE_STEPS`): otherwise attackers could push the model away,
  which makes honest updates longer, and push further each time.
- *Weights* (`bound_weights`, `observe`): each client has a leaky bucket: the weight of `WEIGHT_BURST` whole steps, plus
  `WEIGHT_RATE` times its share of the objective per step. Weight above the cap goes to the other clients of the step;
  if they are at their caps too, the step becomes shorter. There is no cap for a single step: a client with rare data
  that seldom participates may rightly have most of the weight of one step.
- *Claims* (`bound_seconds`, `bound_moments`, `bound_samples`): the server's clock and the claims of the other clients
  bound the seconds, the moment and the number of samples that a client states.
- *Rests* (`observe_verdicts`, `admitted`): only evidence from a validation set on the server gives a client a rest: it
  gets no task for a while. At most half of the clients rest at a time.

Without a validation set, the direction of an update plays no part. docs/appendix/trust.md has the proposition that
follows from these bounds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.trust.departed import Departed, Record
from fedpace.trust.limits import (
    CLIP,
    FIRST_BUFFER,
    FIRST_RMS,
    LONGEST,
    MAX_REFUSALS,
    MAX_REST,
    MIN_CLIENTS,
    MOMENT_CLIP,
    MOMENT_KEPT,
    MOMENT_LOG_LIMIT,
    MOMENT_SPREADS,
    REFERENCE_QUANTILE,
    REFERENCE_STEPS,
    REST_STEPS,
    SHARE_CAP,
    SHARE_FLEET,
    TRANSFER_PART,
    TRANSFER_SECONDS,
    WEIGHT_BURST,
    WEIGHT_RATE,
)

UPDATE, SKETCH = "update", "sketch"
"""Kinds of vectors; each kind has its own reference length. All other kinds are kinds of buffers."""
LONGEST_OF, FIRST_OF = "longest/", "first/"
"""Prefixes of the names of saved lengths."""
COLUMNS: dict[str, float] = {
    "moment_size": math.nan,  # log of the trace of the moment as reported
    "moment_scale": 1.0,  # factor that the moment was multiplied by
    "weight_used": 0.0,  # level of the leaky bucket after `weight_step`
    "weight_step": 0.0,  # the step in which the client last had weight
    "refusals": 0.0,  # updates refused by the validation set since the last accepted one
    "rest_until": 0.0,  # the client gets no task before this step
}


class Sent(NamedTuple):
    """The lengths of what the clients of a step sent; one entry per answer."""

    rows: IntArray
    """(k,) rows of the clients; -1 = a client that has left."""
    lengths: FloatArray
    """(k,) Euclidean lengths of the updates; infinity or NaN for an update that is not finite."""
    buffers: Mapping[str, FloatArray]
    """Kind of buffer -> (k,) how far the clients moved it."""
    size: int
    """Number of parameters."""


class Trust:
    """The bounds on each client and the evidence behind them; one row per client.

    Args:
        on: False = no bounds: only updates that are not finite are refused, and only `observe_verdicts` gives rests.
        clip: clip updates longer than this multiple of the reference; 0 = never.
        rate: cap on a client's weight per step over time, as a multiple of its share of the objective; 0 = no cap.
    """

    def __init__(self, *, on: bool = True, clip: float = CLIP, rate: float = WEIGHT_RATE) -> None:
        self.on, self.clip, self.rate = on, clip, rate
        self.columns: dict[str, FloatArray] = {name: np.zeros(0) for name in COLUMNS}
        self.longest: dict[str, FloatArray] = {}
        """Kind of vector -> (n,) length of the longest vector that each client has sent; 0 = none."""
        self.first: dict[str, FloatArray] = {}
        """Kind of vector -> (n,) length of the first vector that each client has sent; 0 = none."""
        self.departed = Departed()

    def __len__(self) -> int:
        """Number of clients."""
        return self.columns["refusals"].size

    def append(self, clients: Sequence[Hashable]) -> None:
        """Add rows for clients that joined, given their ids; `fedpace.trust.departed` says what they start with."""
        first, count = len(self), len(clients)
        for name, empty in COLUMNS.items():
            self.columns[name] = np.concatenate([self.columns[name], np.full(count, empty)])
        for lengths in (self.longest, self.first):
            lengths.update({kind: np.concatenate([known, np.zeros(count)]) for kind, known in lengths.items()})
        for place, record in self.departed.join(clients, self.rate / max(1, len(self))).items():
            for name, value in record._asdict().items():
                self.columns[name][first + place] = value

    def remove(self, rows: IntArray, clients: Sequence[Hashable]) -> None:
        """Drop the rows of clients that left, and remember what must outlive their departure."""
        for row, client in zip(rows.tolist(), clients, strict=True):
            self.departed.leave(client, Record(*(float(self.columns[name][row]) for name in Record._fields)))
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}
        for lengths in (self.longest, self.first):
            lengths.update({kind: np.delete(known, rows) for kind, known in lengths.items()})

    # -- the length of updates -------------------------------------------------------------------------------

    def validate(self, sent: Sent) -> BoolArray:
        """(k,) True for the answers of which the update and all buffers are finite; the server uses no others."""
        finite = np.isfinite(sent.lengths)
        for lengths in sent.buffers.values():
            finite &= np.isfinite(lengths)
        return finite

    def bound(self, sent: Sent, step: int) -> tuple[FloatArray, FloatArray]:
        """Return (k,) clip factors of the updates, and (k,) of the buffers, after `step` steps; see `clip_factors`.

        The lengths count in the reference from now on.
        """
        updates = self.clip_factors(sent.rows, sent.lengths, step=step, size=sent.size)
        buffers = np.ones(updates.size)
        for kind, lengths in sent.buffers.items():
            buffers = np.minimum(buffers, self.clip_factors(sent.rows, lengths, kind, step=step))
        return updates, buffers

    def clip_factors(
        self,
        rows: ArrayLike,
        lengths: ArrayLike,
        kind: str = UPDATE,
        *,
        step: int = 0,
        size: int = 0,
        remember: bool = True,
    ) -> FloatArray:
        """(k,) factors for the vectors: 1, less than 1 for a vector that is too long, 0 for one that is not finite.

        Args:
            rows: (k,) rows of the clients; -1 = a client that has left.
            lengths: (k,) Euclidean lengths; NaN or infinity for a vector that is not finite.
            kind: `update`, `sketch`, or the kind of a buffer. Each kind has its own reference.
            step: number of steps made, which limits the growth of the reference.
            size: number of parameters, for the bound on first updates; 0 = no such bound.
            remember: whether these lengths count in the reference from now on.
        """
        came, places = np.asarray(lengths, dtype=np.float64), np.asarray(rows, dtype=np.int64)
        finite = np.isfinite(came)
        factors = finite.astype(np.float64)
        if not self.on or not self.clip or not came.size:
            return factors
        told = finite & (places >= 0)
        heard = self.longest.get(kind, np.zeros(len(self))).copy()
        np.maximum.at(heard, places[told], np.minimum(came[told], LONGEST))
        first = np.where(self.first.get(kind, np.zeros(len(self))) > 0, self.first.get(kind, 0.0), heard)
        if remember:
            self.longest[kind], self.first[kind] = heard, first
        if len(self) < MIN_CLIENTS:
            return factors
        reference, start = reference_length(heard), reference_length(first)
        if reference is not None and start is not None:
            limit = self.clip * min(reference, (1 + step / REFERENCE_STEPS) * start)
        elif kind in (UPDATE, SKETCH):
            limit = FIRST_RMS * math.sqrt(size) if size else math.inf
        else:
            limit = FIRST_BUFFER
        long = finite & (came > limit)
        factors[long] = np.maximum(limit / came[long], math.ulp(0.0))  # not 0, which means "not finite"
        return factors

    # -- weights ---------------------------------------------------------------------------------------------

    def bound_weights(
        self, rows: IntArray, weights: FloatArray, shares: FloatArray, step: int, mode: str = "average"
    ) -> FloatArray:
        """Return weights within the caps, for the mode `average` or `delta`.

        In mode `average` the weights are scaled to sum 1, and weight above a cap goes to the other clients; the sum is
        below 1 if all clients are at their caps. In mode `delta` weight above a cap is lost.

        Args:
            rows: (k,) rows of the clients; -1 = a client that has left, which has no cap.
            weights: (k,) at least 0 in mode `average`.
            shares: (n,) shares of all clients in the objective.
            step: number of the current step.
            mode: how the server uses the weights.
        """
        total = float(weights.sum())
        if not self.on or rows.size == 0 or (mode == "average" and not total > 0):
            return weights
        room = self._room(rows, shares, step)
        if mode == "average":
            wanted = weights / total if abs(total - 1.0) > 1e-12 else weights
            return filled_up(wanted, _split(room, rows, wanted))
        room = _split(room, rows, np.abs(weights))
        over = np.abs(weights) > room
        return np.where(over, np.sign(weights) * room, weights) if over.any() else weights

    def _room(self, rows: IntArray, shares: FloatArray, step: int) -> FloatArray:
        """(k,) largest weight that each client may have in this step, given the weight that it has used."""
        if not self.rate:
            return np.full(rows.size, math.inf)
        used, last = _at(self.columns["weight_used"], rows), _at(self.columns["weight_step"], rows)
        leak = self.rate * _at(shares, rows)
        room = WEIGHT_BURST - np.maximum(0.0, used - leak * (step - last))
        return np.where(rows >= 0, np.maximum(room, 0.0), math.inf)

    def observe(self, rows: IntArray, weights: FloatArray, shares: FloatArray, step: int) -> None:
        """Add the weights of a step to the buckets of its clients."""
        if not self.on or not self.rate:
            return
        known = rows >= 0
        whose, places = np.unique(rows[known], return_inverse=True)
        had = np.zeros(whose.size)
        np.add.at(had, places, np.abs(weights[known]))
        used, last = self.columns["weight_used"], self.columns["weight_step"]
        left = np.maximum(0.0, used[whose] - self.rate * shares[whose] * (step - last[whose]))
        used[whose], last[whose] = left + had, step

    def bound_samples(self, samples: FloatArray) -> FloatArray:
        """(n,) numbers of samples, with the largest reduced to a share of `SHARE_CAP` in fleets of `SHARE_FLEET`."""
        total = float(samples.sum())
        if not self.on or samples.size < SHARE_FLEET or not total > 0:
            return samples
        largest = int(np.argmax(samples))
        rest = total - float(samples[largest])
        if rest <= 0 or float(samples[largest]) <= SHARE_CAP * total:
            return samples
        bounded = samples.copy()
        bounded[largest] = rest * SHARE_CAP / (1 - SHARE_CAP)
        return bounded

    # -- claimed seconds -------------------------------------------------------------------------------------

    def bound_seconds(self, stated: ArrayLike, measured: ArrayLike) -> FloatArray:
        """(k,) clients' seconds: as reported, but at least the measured ones minus an allowance for transfer.

        NaN = not reported, or not measured.
        """
        told, clock = np.asarray(stated, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        if not self.on:
            return told
        least = clock - np.maximum(TRANSFER_PART * clock, np.minimum(TRANSFER_SECONDS, clock / 2))
        return np.where(np.isnan(least), told, np.maximum(told, least))

    # -- claimed moments -------------------------------------------------------------------------------------

    def bound_moments(self, moments: Mapping[int, FloatArray]) -> dict[int, float]:
        """Record the sizes of new moments, by row, and return row -> factor (at most 1) to apply to the moment.

        The result has all new moments, and stored moments with a changed factor. Factors refer to moments as reported.
        """
        if not self.on:
            return dict.fromkeys(moments, 1.0)
        size, scale = self.columns["moment_size"], self.columns["moment_scale"]
        for row, factor in moments.items():
            trace = float(np.sum(factor * factor))
            size[row] = math.log(trace) if trace > 0 else math.nan
        known = np.isfinite(size)
        wanted = np.ones(size.size)
        if int(known.sum()) >= MIN_CLIENTS:
            middle, spread = robust_scale(size[known])
            limit = middle + max(math.log(MOMENT_CLIP), MOMENT_SPREADS * spread)
            above = np.maximum(np.where(known, size, limit) - limit, 0.0)
            target = np.exp(-np.minimum(above, MOMENT_LOG_LIMIT))
            near = (scale != 1.0) & (np.abs(np.log(target / scale)) < MOMENT_KEPT)
            wanted = np.where(above > 0, np.where(near, scale, target), 1.0)
        changed = np.flatnonzero(wanted != scale).tolist()
        self.columns["moment_scale"] = wanted
        return {row: float(wanted[row]) for row in {*changed, *moments}}

    def forget_moments(self) -> None:
        """Forget the sizes of all moments, because clients will report them again."""
        self.columns["moment_size"][:] = math.nan
        self.columns["moment_scale"][:] = 1.0

    # -- evidence from a validation set ----------------------------------------------------------------------

    def observe_verdicts(self, rows: IntArray, accepted: BoolArray, step: int) -> None:
        """Record which updates a rule with a validation set accepted; a client that it refuses repeatedly rests.

        A rest ends by itself. It changes no weight and no share of the objective: the client merely gets no task.

        Args:
            rows: (k,) rows of the clients; -1 = a client that has left.
            accepted: (k,) whether the rule used the update.
            step: number of steps made.
        """
        refusals, until = self.columns["refusals"], self.columns["rest_until"]
        enough = 1 if 2 * int(accepted.sum()) < accepted.size else MAX_REFUSALS
        for row, good in zip(rows.tolist(), accepted.tolist(), strict=True):
            if row >= 0:
                refusals[row] = 0.0 if good else min(refusals[row] + 1, MAX_REST)
                if (more := refusals[row] - enough) >= 0:
                    until[row] = step + 1 + min(REST_STEPS * 2.0 ** min(more, 30.0), MAX_REST)

    def admitted(self, among: BoolArray, step: int) -> BoolArray:
        """(n,) True for clients in the mask `among` that may get tasks: all but those that rest.

        At most half of the clients rest; if more would, those stay whose rests end first.
        """
        until = self.columns["rest_until"]
        resting = np.flatnonzero(among & (until > step))
        if resting.size == 0:
            return among
        most = int(among.sum()) // 2
        resting = resting[np.argsort(-until[resting], kind="stable")][:most]
        found = among.copy()
        found[resting] = False
        return found

    def readmit(self, rows: IntArray) -> None:
        """End the rest of clients, and forget the evidence against them and the weight that they have used."""
        for name in ("refusals", "rest_until", "weight_used"):
            self.columns[name][rows] = 0.0

    # -- saving ----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays to save, by name."""
        longest = {LONGEST_OF + kind: known for kind, known in self.longest.items()}
        return {**self.columns, **longest, **{FIRST_OF + kind: known for kind, known in self.first.items()}}

    def load(self, saved: Mapping[str, NDArray[Any]], clients: int) -> None:
        """Restore the result of `arrays`; raise InputError if it is damaged."""
        if missing := set(COLUMNS) - set(saved):
            raise InputError(f"the saved ledger lacks {sorted(missing)} of its trust: start anew")
        for name, array in saved.items():
            if array.dtype.kind not in "fiub" or array.shape != (clients,):
                raise InputError(
                    f"the saved ledger should hold {clients} numbers in 'trust/{name}', but {array.dtype} of shape "
                    f"{array.shape} came: start anew, or restore another copy"
                )
            numbers = np.asarray(array, dtype=np.float64)
            lowest = -math.inf if name == "moment_size" else 0.0
            if not (np.isfinite(numbers) & (numbers >= lowest) | (name == "moment_size") & np.isnan(numbers)).all():
                raise InputError(f"'trust/{name}' of the saved ledger is damaged: start anew, or restore another copy")
        self.columns = {name: np.array(saved[name], dtype=np.float64) for name in COLUMNS}
        self.longest, self.first = _below(saved, LONGEST_OF), _below(saved, FIRST_OF)


def _below(saved: Mapping[str, NDArray[Any]], start: str) -> dict[str, FloatArray]:
    """Return the arrays with the prefix `start`, by their names without it."""
    found = {name.removeprefix(start): array for name, array in saved.items() if name.startswith(start)}
    return {name: np.array(array, dtype=np.float64) for name, array in found.items()}


def _at(column: FloatArray, rows: IntArray) -> FloatArray:
    """Return the entries of `rows`; 0 for row -1, a client that has left."""
    return np.where(rows >= 0, column[np.maximum(rows, 0)], 0.0) if column.size else np.zeros(rows.size)


def _split(room: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
    """(k,) largest weight of each answer; answers of the same client share its room in proportion to their weights."""
    _, places, times = np.unique(rows, return_inverse=True, return_counts=True)
    if (times == 1).all():
        return room
    together = np.bincount(places, weights)[places]
    alone = (times[places] == 1) | (rows < 0) | (together <= 0)
    return np.where(alone, room, room * np.divide(weights, together, out=np.ones(rows.size), where=together > 0))


def reference_length(longest: FloatArray) -> float | None:
    """Return the reference of the (n,) lengths that clients sent (0 = none); None if fewer than `MIN_CLIENTS` did."""
    heard = longest[longest > 0]
    if heard.size < MIN_CLIENTS:
        return None
    return float(np.quantile(heard, REFERENCE_QUANTILE, method="lower"))


def filled_up(weights: FloatArray, limits: FloatArray) -> FloatArray:
    """Return the weights (sum 1) with none above its limit; the excess goes to the other weights in proportion.

    The sum is below 1 if all clients with weight are at their limits.
    """
    capped = weights > limits
    if not capped.any():
        return weights
    result = np.where(capped, limits, weights)
    while True:
        free = ~capped & (weights > 0)
        missing, room = 1.0 - float(result.sum()), float(result[free].sum())
        if missing <= 1e-12 or room <= 0:
            return np.asarray(result)
        result = np.where(free, result * (1 + missing / room), result)
        over = free & (result > limits)
        if not over.any():
            return np.asarray(result)
        result, capped = np.where(over, limits, result), capped | over


def robust_scale(values: FloatArray) -> tuple[float, float]:
    """Return the median and the robust standard deviation (1.4826 times the median absolute deviation)."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))
