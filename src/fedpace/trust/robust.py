"""Robust aggregation: rules that bound the effect of Byzantine clients on a step of the shared model.

| name | paper | tolerated fraction of Byzantine clients | needs a validation set |
|---|---|---|---|
| `median` | Yin et al., ICML 2018 | below 1/2 | no |
| `trimmed-mean` | Yin et al., ICML 2018 | `fraction` | no |
| `krum`, `multi-krum` | Blanchard et al., NeurIPS 2017 | `fraction`, with k >= 2f + 3 | no |
| `bulyan` | El Mhamdi et al., ICML 2018 | `fraction`, with k >= 4f + 3 | no |
| `geometric-median` | Pillutla et al., IEEE TSP 2022 | below 1/2 | no |
| `centered-clipping` | Karimireddy et al., ICML 2021 and ICLR 2022 | below 1/2, less in the proof | no |
| `fltrust` | Cao et al., NDSS 2021 | any | yes |
| `zeno` | Xie et al., ICML 2020 | any | yes |

All rules have in common:

- The papers give all clients equal weights. Here update i has the weight w_i, and W is the sum of the weights. A rule
  works with the shares a_i = w_i / W, and its result is multiplied by W. Equal weights give the rule of the paper.
- Updates of weight 0 are removed before the rule runs: they are not neighbours of other updates, and k does not count
  them.
- An update with an entry above `CAP` is scaled down to `CAP` without a change of direction, because an update of 1e300
  would make squared distances overflow. No honest update is that large.
- Only bucketing draws random numbers, and no rule depends on the order of the clients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedpace._base import checks
from fedpace._base.checks import FloatArray, IntArray
from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast, Between, Options
from fedpace.trust.limits import BLOCK, CAP, SLACK


@dataclass(frozen=True, eq=False)
class Combined:
    """The result of a rule for the updates of one step."""

    step: FloatArray
    """(d,) the aggregated update, multiplied by W."""

    weights: FloatArray
    """(k,) effective weight of each update, at least 0; 0 = the rule left it out."""

    note: Mapping[str, float]
    """Numbers to record. `left_out` is always present: how many updates of positive weight the rule left out. Most
    rules add others, such as `byzantine`, the number of Byzantine clients that Krum assumes."""


class RobustRule(Protocol):
    """A robust rule, as the server uses it."""

    name: ClassVar[str]
    validates: ClassVar[bool]
    """Whether the rule needs the server's own update on a validation set."""

    def combine(
        self,
        updates: FloatArray,
        weights: FloatArray,
        *,
        center: FloatArray,
        trusted: FloatArray | None,
        rng: np.random.Generator,
    ) -> Combined:
        """Return the aggregated update and the effective weights.

        Args:
            updates: (k, d).
            weights: (k,) at least 0.
            center: (d,) the aggregate of the previous step, divided by the sum of its weights.
            trusted: (d,) the server's own update from the current model; None = there is none.
            rng: random generator for rules that shuffle clients.
        """
        ...


class _Case(NamedTuple):
    """The input of a rule: updates with positive shares that sum to 1, and the other arguments of `combine`."""

    updates: FloatArray
    shares: FloatArray
    center: FloatArray
    trusted: FloatArray
    rng: np.random.Generator


Found = tuple[FloatArray, FloatArray, dict[str, float]]
"""The result of a rule before it is multiplied by W: the step, the effective shares, and the note."""


class _Rule(Options, ABC):
    """Base class: checks the input, removes weights of 0 and multiplies by W; subclasses define `_unit` for W = 1."""

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
        """Return the aggregated update, the effective weights, and numbers to record."""
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

    Definition 1 of Yin, Chen, Ramchandran and Bartlett. Use it if fewer than half of the clients are Byzantine and the
    clients' data are similar. On heterogeneous data the median of a coordinate differs from its mean even without an
    attack.

    Weighted form: the weighted median; if two values split the weight in half, their mean. The effective weight of a
    client is the fraction of coordinates in which its value is the median.
    """

    name: ClassVar[str] = "median"

    def _unit(self, case: _Case) -> Found:
        step, counted = _median(case.updates, case.shares)
        return step, counted, {}


@dataclass(frozen=True)
class _Bounded(_Rule):
    """Base class of rules that assume a largest fraction of Byzantine clients."""

    fraction: Annotated[float, Between(0, 0.5, "[)")] = 0.2
    """Largest fraction of Byzantine clients; at least 0 and below 0.5."""


@dataclass(frozen=True)
class TrimmedMean(_Bounded):
    """Coordinate-wise trimmed mean (Yin et al. 2018).

    Definition 2 of the paper. In each coordinate it leaves out the floor(fraction * k) largest and as many smallest
    values, and averages the rest. Use it if a bound on the fraction of Byzantine clients is known: it wastes fewer
    honest values than the median. If fraction * k is below 1, it is the plain mean, which tolerates no Byzantine
    client.

    Weighted form: it cuts the weight W * floor(fraction * k) / k from each end, and the last value in part. It
    tolerates Byzantine clients up to that weight. The effective weight of a client is its remaining weight, averaged
    over the coordinates.
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
            left[left < SLACK] = 0.0  # a rounding error times a huge value is still huge
            left /= left.sum(axis=1, keepdims=True)
            step[block] = np.einsum("ij,ij->i", left, values)
            counted += np.bincount(order.ravel(), left.ravel(), shares.size)
        return step, counted / step.size, {"trimmed": float(cut)}


@dataclass(frozen=True)
class Krum(_Bounded):
    """Krum (Blanchard et al. 2017): the update nearest to others.

    By Blanchard, El Mhamdi, Guerraoui and Stainer: score(i) is the sum of |u_i - u_j|^2 over the k - f - 2 updates j
    nearest to i, and the step is the update with the lowest score. f = floor(fraction * k), at most (k - 3) // 2,
    because the proof requires k >= 2f + 3. Use it if one honest update is a good step, that is, if the clients' data
    are similar.

    Departures: one or two updates have too few neighbours, and the step is their mean. Among equal scores the paper
    takes the smallest identifier. Here it is the update with the smallest sum over all others, so that the order of the
    clients does not matter (with one neighbour, as for k = 3, two scores are always equal). The scores ignore weights,
    because f counts clients.
    """

    name: ClassVar[str] = "krum"

    def _unit(self, case: _Case) -> Found:
        return _best(case.updates, case.shares, self.fraction, 1)


@dataclass(frozen=True)
class MultiKrum(_Bounded):
    """Multi-Krum (Blanchard et al. 2017): the mean of several.

    The step is the mean of the `keep` updates with the lowest Krum scores; `keep=0` means k - f - 2, the number of
    neighbours in a score. Use it instead of Krum if the mean of several honest updates is a better step than one.

    Weighted form: the scores are those of Krum; the mean of the kept updates is weighted. Departures: those of Krum.
    """

    name: ClassVar[str] = "multi-krum"

    keep: Annotated[int, AtLeast(0)] = 0
    """Number of updates to average; 0 = k - f - 2."""

    def _unit(self, case: _Case) -> Found:
        return _best(case.updates, case.shares, self.fraction, self.keep)


@dataclass(frozen=True)
class Bulyan(_Bounded):
    """Bulyan over Krum (El Mhamdi, Guerraoui, Rouault 2018).

    Krum chooses theta = k - 2f updates, one after the other from the remaining ones. In each coordinate the step is the
    mean of the theta - 2f chosen values nearest to their median. f = floor(fraction * k), at most (k - 3) // 4, because
    the proof requires k >= 4f + 3. Use it against attacks that hide a large error in few coordinates.

    Weighted form: Krum's scores ignore weights; median and mean are weighted. Departures: a score always has at least
    one neighbour, even if few updates remain. With fewer than 7 updates f is 0; the step is then the coordinate-wise
    median if fraction * k is at least 1, and the weighted mean otherwise.
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

    By Pillutla, Kakade and Harchaoui: the step is the point v that minimises sum a_i |u_i - v|. The smoothed Weiszfeld
    algorithm finds it: v <- sum b_i u_i / sum b_i with b_i = a_i / max(nu, |u_i - v|). The paper already uses weights.
    Use it as the first choice if nothing is known about the attack: it tolerates Byzantine clients with up to half of
    the weight, and it does not depend on the choice of coordinates.

    Departures: nu is `smoothing` times the clients' median distance, so that the rule does not depend on the scale (the
    paper: 1e-6). The algorithm runs on the Gram matrix until v moves by less than 1e-10 of that distance, at most
    `iterations` times (the paper: 3 times from the mean). A mean may be arbitrarily far away, so the start is a mean
    with weights a_i / r_i, where half of the weight lies within distance r_i of client i. If the other updates pull at
    an update by no more than its own weight, that update is a minimum. Such updates are found directly, because
    Weiszfeld converges slowly to them. If there are several, as for two updates of equal weight, the step is their
    mean.
    """

    name: ClassVar[str] = "geometric-median"

    iterations: Annotated[int, AtLeast(1)] = 500
    """Largest number of steps of Weiszfeld's algorithm."""
    smoothing: Annotated[float, Between(0, 1, "(]")] = 1e-6
    """Smaller distances to the median count as this one, as a fraction of the clients' median distance."""

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
    `iterations` times, from v = the previous aggregate. Use it together with momentum at the clients, or against
    attacks that build up over many steps, because it starts from the previous aggregate.

    `radius` is tau. With `radius=0`, tau in each iteration is the distance from v within which half of the weight lies,
    so that Byzantine clients with less than half of the weight cannot increase it. In the paper's proof tau shrinks
    with that distance; its experiments use a fixed tau. With a fixed radius, one step cannot reach equal updates
    further than `iterations * tau` from the center, as in the paper.

    `bucket` is s: the clients are shuffled, and each group of s clients is replaced by its weighted mean. Use s = 2 if
    the clients' data are heterogeneous and less than a quarter of the clients are Byzantine. A smaller last bucket
    counts with its weight (the paper: as much as the others).

    The effective weight of a client is its weight times the unclipped fraction of its last difference (with bucketing,
    of its bucket's difference).
    """

    name: ClassVar[str] = "centered-clipping"

    radius: Annotated[float, AtLeast(0), FINITE] = 0.0
    """Longer differences from the center are clipped to this; 0 = the distance within which half of the weight lies."""
    iterations: Annotated[int, AtLeast(1)] = 3
    """How often the center moves per step."""
    bucket: Annotated[int, AtLeast(1)] = 1
    """Number of clients per bucket; 1 = no bucketing."""

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

    step = sum c_i (|t| / |u_i|) u_i / sum c_i with c_i = max(0, cos(u_i, t)) and t the server's own update. Use it if
    the server has a small clean data set similar to the clients' data (the paper: 100 samples) and any number of
    clients may be Byzantine. The step is never longer than t.

    Weighted form: c_i is multiplied by w_i. The effective weight of a client is its fraction of the sum of c_i.

    Departure: t itself votes with c = 1 and the weight of `server_vote` average clients. Without this vote (0, the
    paper), Byzantine clients alone can make a step as long as one of honest clients, although all their cosines are
    tiny. If no update points along t, the step is then 0 (undefined in the paper).
    """

    name: ClassVar[str] = "fltrust"
    validates: ClassVar[bool] = True

    server_vote: Annotated[float, AtLeast(0), FINITE] = 1.0
    """Weight of the server's own update, in units of an average client; 0 = the paper's rule."""

    def _unit(self, case: _Case) -> Found:
        cosines, rescale = _compared(case.updates, case.trusted)
        return _with_vote(case, case.shares * np.maximum(cosines, 0.0), rescale, self.server_vote / case.shares.size)


@dataclass(frozen=True)
class Zeno(_Rule):
    """Zeno++ (Xie et al. 2020): updates that should descend.

    By Xie, Koyejo and Gupta: the server uses updates that it expects to decrease the validation loss. The paper
    rescales a candidate gradient g to the length of the validation gradient v. It accepts g if the first-order descent
    score gamma <v, g> - rho |g|^2 is at least -gamma epsilon, where gamma is the learning rate. The rule tolerates any
    number of Byzantine clients. Use it like FLTrust, if clients should count fully or not at all.

    Departures: an update stands for -gamma g, and the server's own update t for -gamma v. So `rho` here is the paper's
    rho / gamma, `epsilon` is its epsilon / |v|^2, and an update is accepted if its cosine with t is at least
    rho - epsilon. The default is that of the authors' script (0.001 at gamma = 0.1, epsilon = 0); their code computes
    |g|^2 before g is rescaled. t belongs to the current model; the paper reuses one t for several steps. The paper
    applies one accepted gradient at a time; the step here is the weighted mean of the accepted ones, which is the same
    for one update. An update of length 0 has no direction and is left out.

    Two departures keep the rule useful once t fits the validation set and becomes short (`rescale=True` undoes both).
    Accepted updates are not rescaled to the length of t, but clipped to that length or to their median length,
    whichever is larger. And t votes too (`server_vote`), but its vote is at most that of all accepted updates: the
    server does not train on its own data alone, even if it refuses all updates of a step.
    """

    name: ClassVar[str] = "zeno"
    validates: ClassVar[bool] = True

    rho: Annotated[float, Between(0, 1)] = 0.01
    """An update is accepted if its cosine with the server's own update is at least rho - epsilon."""
    epsilon: Annotated[float, AtLeast(0), FINITE] = 0.0
    """Slack of that bound."""
    server_vote: Annotated[float, AtLeast(0), FINITE] = 1.0
    """Weight of the server's own update, in units of an average client, as in FLTrust; 0 = the paper's rule."""
    rescale: bool = False
    """Give all accepted updates the length of the server's own, as the paper does."""

    def _unit(self, case: _Case) -> Found:
        cosines, rescale = _compared(case.updates, case.trusted)
        accepted = (cosines >= self.rho - self.epsilon) & (rescale > 0)
        trust = np.where(accepted, case.shares, 0.0)
        vote = self.server_vote / case.shares.size
        if self.rescale:
            return _with_vote(case, trust, rescale, vote)
        middle = float(np.median(1 / rescale[accepted])) if accepted.any() else 1.0
        factors = np.minimum(1.0, max(1.0, middle) * rescale)
        return _with_vote(case, trust, factors, min(vote, float(trust.sum())))


ROBUST: dict[str, type] = {
    rule.name: rule
    for rule in (Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian, CenteredClipping, Fltrust, Zeno)
}
"""Name -> rule class."""


def make_robust(name: str, **options: Any) -> RobustRule:
    """Return the rule `name` with these options; an unknown name or option raises InputError with a hint."""
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
    """Return the updates; those with an entry above CAP are scaled down to CAP."""
    if max(updates.max(), -updates.min()) <= CAP:
        return updates
    largest = np.abs(updates).max(axis=1, keepdims=True)
    return np.where(largest > CAP, updates / largest * CAP, updates)


def _whole_part(fraction: float, count: int) -> int:
    """Return floor(fraction * count), with a tolerance for rounding errors of the product."""
    return math.floor(fraction * count + SLACK)


def _sorted_blocks(
    updates: FloatArray, shares: FloatArray
) -> Iterator[tuple[slice, FloatArray, IntArray, FloatArray, FloatArray]]:
    """Yield blocks of coordinates: slice, sorted values, their clients, their weights, and running sums of the weights.

    Each row is one coordinate. The largest weight is scaled to 1, so that sums of equal weights are exact integers.
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
    """Return the columns of the lower and the upper weighted median of each row, given running sums of the weights."""
    half = sums[:, -1:] / 2
    low = (sums < half * (1 - SLACK)).sum(axis=1, keepdims=True)
    high = (sums <= half * (1 + SLACK)).sum(axis=1, keepdims=True)
    return low, high


def _median(updates: FloatArray, shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weighted median of each coordinate, and the fraction of coordinates that each update decides."""
    step, counted = np.empty(updates.shape[1]), np.zeros(shares.size)
    for block, values, order, _, sums in _sorted_blocks(updates, shares):
        step[block] = 0.0
        for column in _middle(sums):
            step[block] += np.take_along_axis(values, column, 1)[:, 0] / 2
            counted += np.bincount(np.take_along_axis(order, column, 1)[:, 0], minlength=shares.size)
    return step, counted / (2 * step.size)


def _lower_median(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the lower weighted median of each row."""
    order = np.argsort(values, axis=1)
    low, _ = _middle(np.cumsum((shares / shares.max())[order], axis=1))
    lowest: FloatArray = np.take_along_axis(np.take_along_axis(values, order, 1), low, 1)[:, 0]
    return lowest


def _squared_distances(updates: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (k, k) squared distances to about 11 digits, (k, k) inner products, and the updates minus one of them.

    The reference is an update of median length. Relative to 0, a part common to all updates would cancel digits;
    relative to the mean, a single Byzantine update would. Pairs that still cancel digits are computed one by one.
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
    """Return the updates in order of Krum score, lowest first; ties are ordered by the sum of all distances."""
    count = len(distances)
    near = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)[:, : count - 1]
    scores = near[:, : max(1, count - byzantine - 2)].sum(axis=1)
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.cumsum(np.diff(scores[order], prepend=scores[order[0]]) > SLACK * scores[order])
    return np.lexsort((distances.sum(axis=1), ranks))


def _best(updates: FloatArray, shares: FloatArray, fraction: float, keep: int) -> Found:
    """Return the weighted mean of the `keep` updates with the lowest Krum scores; 0 = k - f - 2."""
    count = shares.size
    if count < 3:
        return shares @ updates, shares, {"byzantine": 0.0}
    byzantine = min(_whole_part(fraction, count), (count - 3) // 2)
    best = _krum_order(_squared_distances(updates)[0], byzantine)[: keep or count - byzantine - 2]
    counted = np.zeros(count)
    counted[best] = shares[best] / shares[best].sum()
    return counted[best] @ updates[best], counted, {"byzantine": float(byzantine)}


def _compared(updates: FloatArray, trusted: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cosines of the updates with the trusted update, and the factors that scale them to its length.

    Both are 0 if the update or the trusted update has length 0.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", updates, updates))
    own = float(np.linalg.norm(trusted))
    moving = (lengths > 1 / CAP) & (own > 1 / CAP)  # shorter vectors lose digits when squared
    rescale = np.divide(own, lengths, out=np.zeros(lengths.size), where=moving)
    cosines = np.divide(updates @ trusted, lengths * own, out=np.zeros(lengths.size), where=moving)
    return cosines, rescale


def _with_vote(case: _Case, trust: FloatArray, factors: FloatArray, vote: float) -> Found:
    """Return the mean of the updates times `factors`, weighted by `trust`, and of the server's update with a vote."""
    total = float(trust.sum()) + vote
    counted = trust / total if total > 0 else trust
    step = (counted * factors) @ case.updates
    if vote:
        step = step + vote / total * case.trusted
    return step, counted, {"accepted": float(np.count_nonzero(counted))}
