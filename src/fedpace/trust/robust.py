"""Robust aggregation: rules that bound what Byzantine clients can do to the step of the shared model.

| name | paper | fraction of Byzantine clients it bears | needs a validation set |
|---|---|---|---|
| `median` | Yin et al., ICML 2018 | below 1/2 | no |
| `trimmed-mean` | Yin et al., ICML 2018 | `fraction` | no |
| `krum`, `multi-krum` | Blanchard et al., NeurIPS 2017 | `fraction`, with k >= 2f + 3 | no |
| `bulyan` | El Mhamdi et al., ICML 2018 | `fraction`, with k >= 4f + 3 | no |
| `geometric-median` | Pillutla et al., IEEE TSP 2022 | below 1/2 | no |
| `centered-clipping` | Karimireddy et al., ICML 2021 and ICLR 2022 | below 1/2, less in the proof | no |
| `fltrust` | Cao et al., NDSS 2021 | any | yes |
| `zeno` | Xie et al., ICML 2020 | any | yes |

What all rules share:

- The papers weigh clients equally. Here update i has the weight w_i, with the sum W. A rule works with the shares
  a_i = w_i / W, and its step is W times what it finds per unit of weight. Equal weights give the paper's rule.
- An update of weight 0 is left out before the rule sees it: it is no neighbour of anybody, and k does not count it.
- An update with an entry beyond `CAP` is scaled down to it, its direction kept: a Byzantine client that sends 1e300
  must not make a squared distance overflow. No honest update is that large.
- No rule but bucketing draws random numbers, and no rule depends on the order of the clients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedpace._base import checks
from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError

CAP = 1e60
"""Largest size of an entry of an update that a rule works with."""

SLACK = 1e-9
"""Relative size below which a difference of weights or of scores is rounding."""

BLOCK = 1 << 17
"""Numbers that one block of coordinates holds, so that sorting stays in the cache."""


@dataclass(frozen=True, eq=False)
class Combined:
    """What a rule made of the updates of one step."""

    step: FloatArray
    """(d,): the aggregated update, W included."""

    weights: FloatArray
    """(k,), at least 0: what each update counted for; 0 where the rule left it out."""

    note: Mapping[str, float]
    """Numbers worth recording. `left_out` is always there: of the updates with a weight, how many counted for nothing.
    Most rules add others, such as `byzantine`, the number of Byzantine clients that Krum reckons with."""


class RobustRule(Protocol):
    """What the server needs of a rule."""

    name: ClassVar[str]
    validates: ClassVar[bool]
    """Whether it needs the server's own update, made from a validation set."""

    def combine(
        self,
        updates: FloatArray,
        weights: FloatArray,
        *,
        center: FloatArray,
        trusted: FloatArray | None,
        rng: np.random.Generator,
    ) -> Combined:
        """Return the aggregated update.

        `updates` is (k, d), `weights` (k,) and at least 0, `center` the aggregate of the previous step per unit of
        weight, `trusted` the server's own update from the same model.
        """
        ...


class _Case(NamedTuple):
    """What a rule sees: updates of positive shares that sum to 1, and what `combine` was given."""

    updates: FloatArray
    shares: FloatArray
    center: FloatArray
    trusted: FloatArray
    rng: np.random.Generator


Found = tuple[FloatArray, FloatArray, dict[str, float]]
"""Of a rule, per unit of weight: the step, what each update counted for, and the note."""


class _Rule(ABC):
    """Checks the input, leaves out weights of 0, and scales by W; a rule says what happens per unit of weight."""

    name: ClassVar[str]
    validates: ClassVar[bool] = False

    @abstractmethod
    def _unit(self, case: _Case) -> Found: ...

    def combine(
        self,
        updates: FloatArray,
        weights: FloatArray,
        *,
        center: FloatArray,
        trusted: FloatArray | None,
        rng: np.random.Generator,
    ) -> Combined:
        """Return the aggregated update, what each update counted for, and numbers worth recording."""
        updates = checks.float_array(updates, "updates", ndim=2)
        count, width = updates.shape
        if not updates.size:
            raise InputError(f"expected at least one update of at least one entry, but shape {updates.shape} came")
        weights = checks.float_array(weights, "weights")
        if weights.size != count:
            raise InputError(f"expected {count} weights, one per update, but {weights.size} came")
        if (weights < 0).any():
            row = int(np.argmin(weights))
            raise InputError(
                f"the weights must be at least 0, but that of update {row} is {weights[row]:g}: importance weights "
                "below 0 cannot be combined robustly; use a selector whose weights are at least 0, or no robust rule"
            )
        with np.errstate(over="ignore"):
            total = float(weights.sum())
        if not 0 < total < math.inf:
            raise InputError(f"the weights must have a positive, finite sum, but it is {total}")
        base = _vector(center, width, "the center")
        if self.validates and trusted is None:
            raise InputError(
                f"{self.name} compares each update with the server's own, but none came: "
                "give the server a validation set, or choose a rule that needs none, such as 'geometric-median'"
            )
        own = np.zeros(width) if trusted is None else _vector(trusted, width, "the trusted update")
        shares = weights / total
        counts = np.flatnonzero(shares > 0)
        if counts.size < count:
            updates, shares = updates[counts], shares[counts]
        step, counted, note = self._unit(_Case(_capped(updates), shares, base, own, rng))
        heard = np.zeros(count)
        heard[counts] = counted * total
        note["left_out"] = float(np.count_nonzero(counted == 0))
        return Combined(step * total, heard, note)


@dataclass(frozen=True)
class Median(_Rule):
    """Coordinate-wise median (Yin et al. 2018).

    Definition 1 of Yin, Chen, Ramchandran and Bartlett. Use it where any client but not half of them may be Byzantine,
    and the clients' data are alike: on unlike data the median of a coordinate is not its mean even without an attack.

    Weighted form: the values up to which, and from which on, half of the weight lies; where they differ, their mean.
    A client counts for the part of the coordinates in which its value is the median.
    """

    name: ClassVar[str] = "median"

    def _unit(self, case: _Case) -> Found:
        step, counted = _median(case.updates, case.shares)
        return step, counted, {}


@dataclass(frozen=True)
class _Bounded(_Rule):
    """A rule that reckons with a fraction of Byzantine clients."""

    fraction: float = 0.2
    """Of the clients that may be Byzantine; at least 0 and below 0.5."""

    def __post_init__(self) -> None:
        """Check the options."""
        if not (checks.is_number(self.fraction) and 0 <= self.fraction < 0.5):
            raise InputError(f"fraction must be at least 0 and below 0.5, but {checks.shortened(self.fraction)} came")


@dataclass(frozen=True)
class TrimmedMean(_Bounded):
    """Coordinate-wise trimmed mean (Yin et al. 2018).

    Definition 2 of the paper. In each coordinate it leaves out the floor(fraction * k) largest and as many smallest
    values, and averages the rest. Use it where a bound on the fraction of Byzantine clients is known: it wastes fewer
    honest values than the median. While fraction * k is below 1 it is the plain mean, which bears no Byzantine client
    at all.

    Weighted form: it cuts the weight W * floor(fraction * k) / k from each end, the last value in part. It bears
    Byzantine clients up to that weight. A client counts for its weight that was left, averaged over the coordinates.
    """

    name: ClassVar[str] = "trimmed-mean"

    def _unit(self, case: _Case) -> Found:
        updates, shares = case.updates, case.shares
        cut = _whole_part(self.fraction, shares.size)
        step, counted = np.empty(updates.shape[1]), np.zeros(shares.size)
        for block, values, order, masses, sums in _sorted_blocks(updates, shares):
            total = sums[:, -1:]
            ends = cut * total / shares.size
            left = np.minimum(sums, total - ends) - np.maximum(sums - masses, ends)
            left[left < SLACK] = 0.0  # rounding times an arbitrarily large value is arbitrarily large
            left /= left.sum(axis=1, keepdims=True)
            step[block] = np.einsum("ij,ij->i", left, values)
            counted += np.bincount(order.ravel(), left.ravel(), shares.size)
        return step, counted / step.size, {"trimmed": float(cut)}


@dataclass(frozen=True)
class Krum(_Bounded):
    """Krum (Blanchard et al. 2017): the update nearest to others.

    By Blanchard, El Mhamdi, Guerraoui and Stainer: score(i) = sum of |u_i - u_j|^2 over the k - f - 2 updates j nearest
    to i, and the step is the update of least score; f = floor(fraction * k), at most (k - 3) // 2 since the proof asks
    for k >= 2f + 3. Use it where one honest update is a good step, that is where the clients' data are alike.

    Departures: with one or two updates there are no neighbours, and the step is their mean. Among equal scores the
    paper takes the smallest identifier; here it is the update with the least sum over all others, so that the order
    of the clients does not matter (with one neighbour, as at k = 3, two scores are always equal). The scores know no
    weights, since f counts clients.
    """

    name: ClassVar[str] = "krum"

    def _unit(self, case: _Case) -> Found:
        return _best(case.updates, case.shares, self.fraction, 1)


@dataclass(frozen=True)
class MultiKrum(_Bounded):
    """Multi-Krum (Blanchard et al. 2017): the mean of several.

    The mean of the `keep` updates of least Krum score; `keep=0` means k - f - 2, as many as a score has neighbours. Use
    it in place of Krum where the mean of several honest updates is a better step than one of them.

    Weighted form: the scores are those of Krum; the mean of the kept updates is weighted. Departures: those of Krum.
    """

    name: ClassVar[str] = "multi-krum"

    keep: int = 0
    """Updates that are averaged; 0 = k - f - 2."""

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        checks.whole(self.keep, 0, "keep")

    def _unit(self, case: _Case) -> Found:
        return _best(case.updates, case.shares, self.fraction, self.keep)


@dataclass(frozen=True)
class Bulyan(_Bounded):
    """Bulyan over Krum (El Mhamdi, Guerraoui, Rouault 2018).

    Krum chooses theta = k - 2f updates, one after the other among those that are left. In each coordinate the step is
    the mean of the theta - 2f chosen values nearest to their median; f = floor(fraction * k), at most (k - 3) // 4
    since the proof asks for k >= 4f + 3. Use it against attacks that hide a large error in few coordinates.

    Weighted form: Krum's scores know no weights; median and mean are weighted. Departures: where fewer updates are
    left than Krum's k - f - 2 neighbours need, one neighbour is enough; with fewer than 7 updates the bound leaves no
    f, and if fraction * k is at least 1 the step is the coordinate-wise median.
    """

    name: ClassVar[str] = "bulyan"

    def _unit(self, case: _Case) -> Found:
        updates, shares, count = case.updates, case.shares, case.shares.size
        asked = _whole_part(self.fraction, count)
        byzantine = min(asked, max(0, (count - 3) // 4))
        note = {"byzantine": float(byzantine)}
        if byzantine == 0:
            return (*(_median(updates, shares) if asked else (shares @ updates, shares)), note)
        distances = _squared_distances(updates)[0]
        left = np.arange(count)
        while left.size > 2 * byzantine:
            left = np.delete(left, _krum_order(distances[np.ix_(left, left)], byzantine)[0])
        rows = np.setdiff1d(np.arange(count), left)
        near = rows.size - 2 * byzantine
        step, counted = np.empty(updates.shape[1]), np.zeros(count)
        for block, values, order, masses, sums in _sorted_blocks(updates[rows], shares[rows]):
            low, high = _middle(sums)
            middle = (np.take_along_axis(values, low, 1) + np.take_along_axis(values, high, 1)) / 2
            nearest = np.argsort(np.abs(values - middle), axis=1, kind="stable")[:, :near]
            masses = np.take_along_axis(masses, nearest, 1)
            masses /= masses.sum(axis=1, keepdims=True)
            step[block] = np.einsum("ij,ij->i", masses, np.take_along_axis(values, nearest, 1))
            clients = rows[np.take_along_axis(order, nearest, 1)]
            counted += np.bincount(clients.ravel(), masses.ravel(), count)
        return step, counted / step.size, note


@dataclass(frozen=True)
class GeometricMedian(_Rule):
    """Geometric median, as RFA (Pillutla et al. 2022).

    By Pillutla, Kakade and Harchaoui: the step is the point v of least sum a_i |u_i - v|, found by the smoothed
    Weiszfeld algorithm, v <- sum b_i u_i / sum b_i with b_i = a_i / max(nu, |u_i - v|). It is weighted in the paper
    already. Use it as the first choice where nothing is known about the attack: it bears Byzantine clients of up to
    half of the weight, and does not care about the axes.

    Departures: nu is `smoothing` times the clients' median distance, so that the rule knows no unit (the paper: 1e-6).
    It runs until v moves by less than 1e-10 of that distance, and `iterations` times at most (the paper: 3 times from
    the mean), on the Gram matrix. It starts at the mean weighted by a_i over the distance within which half of the
    weight is near client i, since a mean may be arbitrarily far away. An update that is a minimum itself, since the
    others pull at it by no more than its own weight, is found beforehand: Weiszfeld creeps towards it. If there are
    several, as with two updates of equal weight, the step is their mean.
    """

    name: ClassVar[str] = "geometric-median"

    iterations: int = 500
    """Steps of Weiszfeld's algorithm, at most."""
    smoothing: float = 1e-6
    """Least distance to the median that counts, in parts of the clients' median distance."""

    def __post_init__(self) -> None:
        """Check the options."""
        checks.whole(self.iterations, 1, "iterations")
        checks.above(self.smoothing, 0.0, "smoothing")
        checks.between(self.smoothing, 0.0, 1.0, "smoothing")

    def _unit(self, case: _Case) -> Found:
        updates, shares = case.updates, case.shares
        distances, gram, seen = _squared_distances(updates)
        away = np.sqrt(distances)
        reach = _lower_median(away, shares)
        typical = float(_lower_median(reach[None, :], shares)[0])
        here = away <= SLACK * typical
        pulls = np.divide(shares, away, out=np.zeros(away.shape), where=~here)
        pull = np.linalg.norm(pulls @ seen - pulls.sum(axis=1, keepdims=True) * seen, axis=1)
        least = pull <= here @ shares + 10 * SLACK
        if least.any():
            mixture = np.where(least, shares, 0.0) / shares[least].sum()
            return mixture @ updates, mixture, {"iterations": 0.0}
        squares = np.diagonal(gram)
        mixture = shares / reach
        mixture /= mixture.sum()
        moved, done = mixture, 0
        while done < self.iterations and (not done or moved @ gram @ moved > (1e-10 * typical) ** 2):
            products = gram @ mixture
            away = np.sqrt(np.maximum(mixture @ products - 2 * products + squares, 0.0))
            new = shares / np.maximum(away, self.smoothing * typical)
            new /= new.sum()
            moved, mixture, done = new - mixture, new, done + 1
        return mixture @ updates, mixture, {"iterations": float(done)}


@dataclass(frozen=True)
class CenteredClipping(_Rule):
    """Centered clipping (Karimireddy et al. 2021), with bucketing.

    By Karimireddy, He and Jaggi, who added bucketing in 2022: v <- v + sum a_i min(1, tau / |u_i - v|) (u_i - v),
    `iterations` times, from v = the previous aggregate. Use it together with momentum at the clients, or where attacks
    build up over many steps: it remembers.

    `radius` is tau. `radius=0` takes in each iteration the distance from v within which half of the weight lies, so
    that Byzantine clients of less than half of the weight cannot stretch it; the paper's proof lets tau shrink along
    with that distance, and its experiments fix it. With a fixed radius, equal updates further than `iterations * tau`
    from the center are not reached in one step, as in the paper.

    `bucket` is s: the clients are shuffled, each s of them are replaced by their weighted mean, and the rule sees the
    means. Use s = 2 where the clients' data are unlike, and less than a quarter of them Byzantine. A last bucket of
    fewer clients counts for its weight (the paper: as much as the others).

    A client counts for its weight times how much of its last difference (its bucket's) was not clipped.
    """

    name: ClassVar[str] = "centered-clipping"

    radius: float = 0.0
    """Longer differences from the center are clipped; 0 = to the distance within which half of the weight lies."""
    iterations: int = 3
    """How often the center moves in a step."""
    bucket: int = 1
    """Clients whose mean the rule sees as one update; 1 = no bucketing."""

    def __post_init__(self) -> None:
        """Check the options."""
        checks.at_least(self.radius, 0.0, "radius")
        checks.finite(self.radius, "radius")
        checks.whole(self.iterations, 1, "iterations")
        checks.whole(self.bucket, 1, "bucket")

    def _unit(self, case: _Case) -> Found:
        updates, shares = case.updates, case.shares
        place = np.arange(shares.size)
        weights = shares
        if self.bucket > 1:
            place[case.rng.permutation(shares.size)] = np.arange(shares.size) // self.bucket
            weights = np.bincount(place, shares).astype(np.float64)
            mixing = np.zeros((weights.size, shares.size))
            mixing[place, np.arange(shares.size)] = shares / weights[place]
            updates = mixing @ updates
        point, radius = case.center, self.radius
        for _ in range(self.iterations):
            differences = updates - point
            away = np.sqrt(np.einsum("ij,ij->i", differences, differences))
            if self.radius == 0:
                radius = float(_lower_median(away[None, :], weights)[0])
            kept = np.minimum(1.0, np.divide(radius, away, out=np.ones(away.size), where=away > 0))
            point = point + (weights * kept) @ differences
        note = {"radius": radius, "clipped": float(np.count_nonzero(kept[place] < 1))}
        return point, shares * kept[place], note


@dataclass(frozen=True)
class Fltrust(_Rule):
    """FLTrust (Cao, Fang, Liu, Gong 2021).

    step = sum c_i (|t| / |u_i|) u_i / sum c_i with c_i = max(0, cos(u_i, t)) and t the server's own update. Use it
    where the server has a small clean data set like the clients' (the paper: 100 samples), and any number of clients
    may be Byzantine. The step is never longer than t.

    Weighted form: c_i is multiplied by w_i. A client counts for its part of the sum of c_i.

    Departure: t itself votes with c = 1 and the weight of `server_vote` average clients. Without it (0, the paper) a
    step of Byzantine clients alone, whose cosines are all tiny, is as long as one of honest clients, and the step is 0
    where no update points along t (undefined in the paper).
    """

    name: ClassVar[str] = "fltrust"
    validates: ClassVar[bool] = True

    server_vote: float = 1.0
    """What the server's own update weighs, in average clients; 0 = the paper's rule."""

    def __post_init__(self) -> None:
        """Check the options."""
        checks.at_least(self.server_vote, 0.0, "server_vote")
        checks.finite(self.server_vote, "server_vote")

    def _unit(self, case: _Case) -> Found:
        cosines, rescale = _compared(case.updates, case.trusted)
        return _rescaled(case, case.shares * np.maximum(cosines, 0.0), rescale, self.server_vote)


@dataclass(frozen=True)
class Zeno(_Rule):
    """Zeno++ (Xie et al. 2020): updates that should descend.

    By Xie, Koyejo and Gupta: the server uses updates that it expects to descend. The paper rescales a candidate
    gradient g to the length of the validation gradient v, and accepts it where the first-order descent score gamma <v,
    g> - rho |g|^2 is at least -gamma epsilon, gamma being the learning rate. It bears any number of Byzantine clients.
    Use it as FLTrust, where clients should count fully or not at all.

    Departures: the updates stand for -gamma g, and the server's own update t for -gamma v, so that this `rho` is the
    paper's rho / gamma and this `epsilon` its epsilon / |v|^2: an update is accepted where its cosine with t is at
    least rho - epsilon. The default is that of the authors' script (0.001 at gamma = 0.1, epsilon = 0); their
    code takes |g|^2 before g is rescaled. t belongs to the model of now; the paper reuses one for several steps. The
    paper applies one accepted gradient at a time; the step here is the weighted mean of the accepted ones, which is
    the same for one update. The server's own update votes too (`server_vote`). An update of length 0 has no direction,
    and is left out.
    """

    name: ClassVar[str] = "zeno"
    validates: ClassVar[bool] = True

    rho: float = 0.01
    """Least cosine with the server's own update, less `epsilon`, of an update that is accepted."""
    epsilon: float = 0.0
    """Slack of that bound."""
    server_vote: float = 1.0
    """What the server's own update weighs, in average clients, as in FLTrust; 0 = the paper's rule."""

    def __post_init__(self) -> None:
        """Check the options."""
        checks.between(self.rho, 0.0, 1.0, "rho")
        checks.at_least(self.epsilon, 0.0, "epsilon")
        checks.finite(self.epsilon, "epsilon")
        checks.at_least(self.server_vote, 0.0, "server_vote")
        checks.finite(self.server_vote, "server_vote")

    def _unit(self, case: _Case) -> Found:
        cosines, rescale = _compared(case.updates, case.trusted)
        accepted = (cosines >= self.rho - self.epsilon) & (rescale > 0)
        return _rescaled(case, np.where(accepted, case.shares, 0.0), rescale, self.server_vote)


ROBUST: dict[str, type] = {
    rule.name: rule
    for rule in (Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian, CenteredClipping, Fltrust, Zeno)
}
"""The rules by name."""


def make_robust(name: str, **options: Any) -> RobustRule:
    """Return the rule called `name` with these options; an unknown name or option is an InputError with a hint."""
    known = list(ROBUST)
    if not isinstance(name, str) or name not in ROBUST:
        hint = checks.did_you_mean(name, known) if isinstance(name, str) else ""
        raise InputError(f"there is no robust rule {checks.shortened(name)}.{hint} Known: {', '.join(known)}")
    checks.check_options(ROBUST[name], options, f"robust rule {name!r}")
    rule: RobustRule = ROBUST[name](**options)
    return rule


def _vector(values: FloatArray, width: int, what: str) -> FloatArray:
    array = checks.float_array(values, what)
    if array.size != width:
        raise InputError(f"expected {width} entries of {what}, one per entry of an update, but {array.size} came")
    return _capped(array[None, :]).ravel()


def _capped(updates: FloatArray) -> FloatArray:
    """Return the updates, those with an entry beyond CAP scaled down to it."""
    if max(updates.max(), -updates.min()) <= CAP:
        return updates
    largest = np.abs(updates).max(axis=1, keepdims=True)
    return np.where(largest > CAP, updates / largest * CAP, updates)


def _whole_part(fraction: float, count: int) -> int:
    """Return floor(fraction * count), as if fraction * count were not rounded."""
    return math.floor(fraction * count + SLACK)


def _sorted_blocks(
    updates: FloatArray, shares: FloatArray
) -> Iterator[tuple[slice, FloatArray, IntArray, FloatArray, FloatArray]]:
    """Go through blocks of coordinates: values by size, whose they are, their weights, and the running sums of these.

    A coordinate is a row. The largest weight is 1, so that the sums of equal weights are whole numbers, free of
    rounding.
    """
    weights = shares / shares.max()
    width = max(1, BLOCK // shares.size)
    for start in range(0, updates.shape[1], width):
        block = slice(start, min(start + width, updates.shape[1]))
        values = np.ascontiguousarray(updates[:, block].T)
        order = np.argsort(values, axis=1)
        masses = weights[order]
        yield block, np.take_along_axis(values, order, 1), order, masses, np.cumsum(masses, axis=1)


def _middle(sums: FloatArray) -> tuple[IntArray, IntArray]:
    """Return, as two columns, up to which and from which on half of the weight lies; `sums` run along the rows."""
    half = sums[:, -1:] / 2
    low = (sums < half * (1 - SLACK)).sum(axis=1, keepdims=True)
    high = (sums <= half * (1 + SLACK)).sum(axis=1, keepdims=True)
    return low, high


def _median(updates: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weighted median of each coordinate, and the part of the coordinates that each update decides."""
    step, counted = np.empty(updates.shape[1]), np.zeros(shares.size)
    for block, values, order, _, sums in _sorted_blocks(updates, shares):
        step[block] = 0.0
        for column in _middle(sums):
            step[block] += np.take_along_axis(values, column, 1)[:, 0] / 2
            counted += np.bincount(np.take_along_axis(order, column, 1)[:, 0], minlength=shares.size)
    return step, counted / (2 * step.size)


def _lower_median(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Return of each row the least value up to which half of the weight lies."""
    order = np.argsort(values, axis=1)
    low, _ = _middle(np.cumsum((shares / shares.max())[order], axis=1))
    lowest: FloatArray = np.take_along_axis(np.take_along_axis(values, order, 1), low, 1)[:, 0]
    return lowest


def _squared_distances(updates: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (k, k) squared distances to about 11 digits, (k, k) inner products and the updates, seen from one of them.

    That one is of median length: seen from 0, a part that all updates share would cancel digits; seen from the mean,
    one that a single Byzantine client sends. Pairs whose inner products cancel all the same are done one by one.
    """
    lengths = np.einsum("ij,ij->i", updates, updates)
    seen = updates - updates[np.argsort(lengths)[(lengths.size - 1) // 2]]
    gram = seen @ seen.T
    squares = np.diagonal(gram)
    sums = squares[:, None] + squares
    distances = sums - 2 * gram
    cancelled = np.triu(distances < 1e-4 * sums, 1)
    for row in np.flatnonzero(cancelled.any(axis=1)):
        others = np.flatnonzero(cancelled[row])
        differences = seen[others] - seen[row]
        distances[row, others] = np.einsum("ij,ij->i", differences, differences)
    distances = np.triu(distances, 1)
    return distances + distances.T, gram, seen


def _krum_order(distances: FloatArray, byzantine: int) -> IntArray:
    """Return the updates by Krum score, the least first; equal scores by the sum over all others."""
    count = len(distances)
    near = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)[:, : count - 1]
    scores = near[:, : max(1, count - byzantine - 2)].sum(axis=1)
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.cumsum(np.diff(scores[order], prepend=scores[order[0]]) > SLACK * scores[order])
    return np.lexsort((distances.sum(axis=1), ranks))


def _best(updates: FloatArray, shares: FloatArray, fraction: float, keep: int) -> Found:
    """Return the weighted mean of the `keep` updates of least Krum score; 0 means k - f - 2."""
    count = shares.size
    if count < 3:
        return shares @ updates, shares, {"byzantine": 0.0}
    byzantine = min(_whole_part(fraction, count), (count - 3) // 2)
    best = _krum_order(_squared_distances(updates)[0], byzantine)[: keep or count - byzantine - 2]
    counted = np.zeros(count)
    counted[best] = shares[best] / shares[best].sum()
    return counted[best] @ updates[best], counted, {"byzantine": float(byzantine)}


def _compared(updates: FloatArray, trusted: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cosines of the updates with the trusted one, and what scales them to its length; 0 without length."""
    lengths = np.sqrt(np.einsum("ij,ij->i", updates, updates))
    own = float(np.linalg.norm(trusted))
    moving = (lengths > 1 / CAP) & (own > 1 / CAP)  # below, squares lose digits
    rescale = np.divide(own, lengths, out=np.zeros(lengths.size), where=moving)
    cosines = np.divide(updates @ trusted, lengths * own, out=np.zeros(lengths.size), where=moving)
    return cosines, rescale


def _rescaled(case: _Case, trust: FloatArray, rescale: FloatArray, server_vote: float) -> Found:
    """Return the mean of the rescaled updates, weighted by `trust`, and of the server's own, which votes too."""
    own = server_vote / trust.size
    total = float(trust.sum()) + own
    counted = trust / total if total > 0 else trust
    step = (counted * rescale) @ case.updates
    if own:
        step = step + own / total * case.trusted
    return step, counted, {"accepted": float(np.count_nonzero(counted))}
