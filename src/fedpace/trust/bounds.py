"""Bounded influence: limits on what one client can do to the model, whatever it sends and claims.

`Trust` holds one row per client and answers four questions.

- *How much of this update counts?* (`clip_factors`) Updates longer than `CLIP` times the reference are clipped. The
  reference is the upper quartile, over clients, of the longest update that each has sent so far. Every client has one
  vote, so clients that answer more often do not decide. The reference does not fall as training converges, so an honest
  minority with long updates late in training keeps its influence. It also grows slowly (`REFERENCE_STEPS`): otherwise
  attackers could push the model away, which makes honest updates longer, and push further each time.
- *How much weight may this client have?* (`cap_weights`) Each client has a leaky bucket: the weight of `WEIGHT_BURST`
  whole steps, plus `WEIGHT_RATE` times its share of the objective per step. Weight above the cap goes to the other
  clients of the step; if they are at their caps too, the step becomes shorter. There is no cap for a single step: a
  client with rare data that seldom participates may rightly have most of the weight of one step.
- *How slow is this client, how large is its moment, how many samples does it have?* The server's own clock and the
  claims of the other clients bound these claims.
- *Is this client excluded?* Only evidence from a validation set on the server excludes clients (`judge`). If more than
  half of the clients would be excluded, none is.

Without a validation set, the direction of an update plays no part. docs/trust.md has the proposition that follows from
these bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace.trust.limits import (
    CLIP,
    FIRST_BUFFER,
    FIRST_RMS,
    LATE,
    LEAST_SPREAD,
    LONGEST,
    MIN_CLIENTS,
    MIN_JUDGED,
    MOMENT_CLIP,
    MOMENT_KEPT,
    MOMENT_LOG_LIMIT,
    MOMENT_SPREADS,
    OPPOSED,
    REFERENCE_QUANTILE,
    REFERENCE_STEPS,
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
    "answers_timed": 0.0,  # number of answers compared with the claimed delay
    "log_lateness": 0.0,  # sum over these answers of log(seconds taken / seconds claimed)
    "moment_size": math.nan,  # log of the trace of the moment as reported
    "moment_scale": 1.0,  # factor that the moment was multiplied by
    "weight_used": 0.0,  # level of the leaky bucket after `weight_step`
    "weight_step": 0.0,  # the step in which the client last had weight
    "judged": 0.0,  # number of updates compared with the server's own update
    "agreement": 0.0,  # sum of their cosines with it
    "excluded": 0.0,  # 1 = the client gets no tasks
}


class Trust:
    """The bounds on each client and the evidence behind them; one row per client.

    Args:
        on: False = no bounds: only updates that are not finite are refused, and only `judge` excludes clients.
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

    def __len__(self) -> int:
        """Number of clients."""
        return self.columns["excluded"].size

    def append(self, clients: int) -> None:
        """Add rows for clients that joined."""
        for name, empty in COLUMNS.items():
            self.columns[name] = np.concatenate([self.columns[name], np.full(clients, empty)])
        for lengths in (self.longest, self.first):
            lengths.update({kind: np.concatenate([known, np.zeros(clients)]) for kind, known in lengths.items()})

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left."""
        self.columns = {name: np.delete(column, rows) for name, column in self.columns.items()}
        for lengths in (self.longest, self.first):
            lengths.update({kind: np.delete(known, rows) for kind, known in lengths.items()})

    # -- the length of updates -------------------------------------------------------------------------------

    def clip_factors(
        self,
        rows: Sequence[int],
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

    def cap_weights(self, rows: IntArray, weights: FloatArray, shares: FloatArray, step: int) -> FloatArray:
        """Return weights within the caps, for mode `average`; their sum is 1, or less if all clients are at their caps.

        Args:
            rows: (k,) rows of the clients; -1 = a client that has left, which has no cap.
            weights: (k,) >= 0.
            shares: (n,) shares of all clients in the objective.
            step: number of the current step.
        """
        total = float(weights.sum())
        if not self.on or not total > 0 or rows.size == 0:
            return weights
        room = self._room(rows, shares, step)
        wanted = weights / total if abs(total - 1.0) > 1e-12 else weights
        return filled_up(wanted, _split(room, rows, wanted))

    def cap_deltas(self, rows: IntArray, weights: FloatArray, shares: FloatArray, step: int) -> FloatArray:
        """Return weights within the caps, for mode `delta`; weight above a cap is lost, not given to other clients."""
        if not self.on or rows.size == 0:
            return weights
        room = _split(self._room(rows, shares, step), rows, np.abs(weights))
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

    def use_weights(self, rows: IntArray, weights: FloatArray, shares: FloatArray, step: int) -> None:
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

    def plausible_samples(self, samples: FloatArray) -> FloatArray:
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

    # -- claimed delays --------------------------------------------------------------------------------------

    def seconds(self, stated: float, measured: float) -> float:
        """Return a client's seconds: as reported, but at least the measured seconds minus an allowance for transfer."""
        stated, measured = float(stated), float(measured)  # NumPy's half floats end at 65,504
        if not self.on or math.isnan(measured) or math.isnan(stated):
            return stated
        return max(stated, measured - max(TRANSFER_PART * measured, min(TRANSFER_SECONDS, measured / 2)))

    def compare_delays(self, rows: IntArray, claimed: FloatArray, seconds: FloatArray, finished: BoolArray) -> None:
        """Compare the seconds of answers with delays that were claimed beforehand.

        A task that was given up counts only if it was later than the client's mean lateness by then.
        """
        if not self.on:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            late = np.log(seconds) - np.log(claimed)
        counted = np.isfinite(late) & (finished | (late > self._lateness()[rows]))
        np.add.at(self.columns["answers_timed"], rows[counted], 1.0)
        np.add.at(self.columns["log_lateness"], rows[counted], late[counted])

    def slowdown(self) -> FloatArray:
        """(n,) factors for claimed delays: 1, unless a client is significantly later than the fleet."""
        timed = self.columns["answers_timed"]
        seen = timed > 0
        if not self.on or int(seen.sum()) < MIN_CLIENTS:
            return np.ones(timed.size)
        # One vote per client, not per answer: clients that claim to be fast are chosen more often.
        mean = self._lateness() - trimmed(self._lateness()[seen], LEAST_SPREAD)[0]
        surprise = mean * np.sqrt(timed)
        spread = max(trimmed(surprise[seen], LEAST_SPREAD)[1], LEAST_SPREAD)
        return np.where(seen & (surprise > LATE * spread), np.exp(mean), 1.0)

    def _lateness(self) -> FloatArray:
        """(n,) mean of log(seconds taken / seconds claimed); 0 for clients without such answers."""
        timed = self.columns["answers_timed"]
        return np.asarray(np.divide(self.columns["log_lateness"], timed, out=np.zeros(timed.size), where=timed > 0))

    # -- claimed moments -------------------------------------------------------------------------------------

    def scale_moments(self, moments: Mapping[int, FloatArray]) -> dict[int, float]:
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

    def judge(self, rows: Sequence[int], cosines: ArrayLike) -> None:
        """Record how updates agree with the server's own update, and exclude clients with a low mean cosine.

        Args:
            rows: (k,) rows of the clients; -1 = a client that has left.
            cosines: (k,) cosine of each update with the server's update on its validation set; NaN = unknown.
        """
        places, found = np.asarray(rows, dtype=np.int64), np.asarray(cosines, dtype=np.float64)
        known = (places >= 0) & np.isfinite(found)
        np.add.at(self.columns["judged"], places[known], 1.0)
        np.add.at(self.columns["agreement"], places[known], found[known])
        told = np.unique(places[known])
        judged, agreement = self.columns["judged"][told], self.columns["agreement"][told]
        self.columns["excluded"][told[(judged >= MIN_JUDGED) & (agreement < OPPOSED * judged)]] = 1.0

    def admitted(self, among: BoolArray) -> BoolArray:
        """(n,) True for clients in the mask `among` that are not excluded; if more than half of them are, all stay."""
        excluded = self.columns["excluded"] > 0
        if not excluded.any() or 2 * int((excluded & among).sum()) > int(among.sum()):
            return among
        return among & ~excluded

    def readmit(self, rows: IntArray) -> None:
        """Reset the exclusion of clients, the evidence against them, and the weight that they have used."""
        for name in ("excluded", "judged", "agreement", "weight_used"):
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
            lowest = -math.inf if name in ("agreement", "log_lateness", "moment_size") else 0.0
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


def trimmed(values: FloatArray, least: float) -> tuple[float, float]:
    """Return `robust_scale` of the values within three robust standard deviations of the median.

    Outliers then do not increase the spread. Values within three times `least` of the median are never outliers.
    """
    middle, spread = robust_scale(values)
    return robust_scale(values[np.abs(values - middle) <= 3 * max(spread, least)])
