"""MomentBank: stores the clients' second moments, one row per client, and computes distances between them.

Rows are the clients of the Session's roster. A row without a moment is unknown: it neither enters the mean moment A nor
has a heterogeneity. With `reference="refresh"`, A is always the mean of the current moments, so that every change
recomputes every pair. With `reference="frozen"`, the first A stays until `refresh()`, so that a change recomputes only
that client's pairs (docs/errata.md, C4, leaves the choice open).

In a large fleet, many clients have joined but few have answered. Matrices over pairs of clients therefore cover the
known clients only; `heterogeneity` and `gram` expand them to all rows on request. Limits, as numbers of known clients:

- up to `MAX_EXACT_CLIENTS`, everything is exact, except `directions` (`MAX_ROOT_CLIENTS`);
- above it, distances come from sketches of the moments (`fedpace.moments.sketched`), at the cost of one matrix product;
- above `MAX_MATRIX_CLIENTS`, asking for a matrix raises an error; `best_prefix` and `directions` need none.

`MomentBank.sketched` stores sketches instead of factors from the start, for up to millions of clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedpace._base.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    at_least,
    float_array,
    frozen,
    of_ordinary_size,
    one_of,
    shares_among,
)
from fedpace._base.checks import shares as checked_shares
from fedpace._base.errors import InputError
from fedpace.moments.store import RIDGE, Moments
from fedpace.numerics.heterogeneity import (
    mean_moment,
    regularised_inverse,
    sketched_products,
    square_root,
    whiten,
    whitened_gram,
)
from fedpace.numerics.prefix import PrefixSolution, best_prefix, candidate_rows
from fedpace.numerics.whitened import Whitened

if TYPE_CHECKING:
    from fedpace.moments.sketched import SketchedBank

MAX_MEAN_B = 1 / math.sqrt(2)


@dataclass(frozen=True, eq=False)
class RescaledPrefix(PrefixSolution):
    """The result of a bank's `best_prefix`: a PrefixSolution with clients as rows of the bank.

    The paper requires max_i sum_j w_j B_ij < 1/sqrt(2), which its own data violate, and does not say how it rescales
    (docs/errata.md, A9). We scale B down, never up, to a given target, and report the factor.
    """

    largest_mean: float
    """max_i sum_j share_j B_ij before scaling, the quantity that the paper's Assumption 3 bounds."""
    scale: float
    """Factor applied to B; 1 = not scaled."""

    @classmethod
    def of(cls, found: PrefixSolution, rows: IntArray, *, largest_mean: float, scale: float) -> RescaledPrefix:
        """Return a solution among `rows` translated to rows of the bank."""
        weights: FloatArray = found.weights
        return cls(
            clients=frozen(rows[found.clients], found.clients.dtype),
            weights=weights,
            heterogeneity=found.heterogeneity,
            bound=found.bound,
            objective=found.objective,
            delay=found.delay,
            largest_mean=largest_mean,
            scale=scale,
        )


def rescale_factor(largest_mean: float, target: float) -> float:
    """Return the factor that brings the largest mean down to `target`; 1 if `target` is 0 or already met."""
    if not 0 <= target < MAX_MEAN_B:
        raise InputError(
            f"target must be at least 0 and below 1/sqrt(2) = {MAX_MEAN_B:.4f} (Assumption 3), but {target!r} came; "
            "0 leaves B as it is"
        )
    return 1.0 if target == 0 or largest_mean <= target else target / largest_mean


def checked_moment(factor: ArrayLike, row: int, width: int | None) -> FloatArray:
    """Return client `row`'s factor as a finite matrix; raise InputError if its width differs from the others'."""
    matrix = float_array(factor, f"the moment of client {row}", ndim=2)
    if matrix.shape[1] == 0:
        raise InputError(f"the moment of client {row} must have at least one column, but shape {matrix.shape} came")
    if width is not None and matrix.shape[1] != width:
        raise InputError(
            f"the moment of client {row} must have {width} columns, as those of the other clients, "
            f"but it has {matrix.shape[1]}"
        )
    of_ordinary_size(matrix, f"the moment of client {row}")
    return matrix


MAX_EXACT_CLIENTS = 5000
"""Largest number of known clients with exact pairwise distances; beyond, 12 million norms would take minutes."""
MAX_MATRIX_CLIENTS = 20_000
"""Largest number of rows of a pairwise matrix: 3.2 GB."""


def check_matrix(count: int, what: str) -> None:
    """Raise InputError if a pairwise matrix of this many clients is too large."""
    if count > MAX_MATRIX_CLIENTS:
        raise InputError(
            f"the {what} of {count:,} clients is a matrix of {8e-9 * count**2:,.1f} GB, and the limit is "
            f"{MAX_MATRIX_CLIENTS:,} clients: ask `known_heterogeneity` or `known_gram`, which leave out clients "
            "without a moment, or `best_prefix` or `directions`, which need no matrix"
        )


def expand_to_all(among: FloatArray, rows: IntArray, count: int, what: str) -> FloatArray:
    """Return a matrix over `rows` expanded to all `count` rows, read-only, with NaN elsewhere."""
    if rows.size == count:
        return among
    check_matrix(count, what)
    result = np.full((count, count), np.nan)
    result[np.ix_(rows, rows)] = among
    result.setflags(write=False)
    return result


def known_heterogeneity(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return B among the known clients, in row order; also works for custom stores that lack this method."""
    return _known(moments, "heterogeneity", ridge, shares)


def known_gram(moments: Moments, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
    """Return the whitened Gram matrix among the known clients, in row order; also works for custom stores."""
    return _known(moments, "gram", ridge, shares)


def _known(moments: Moments, what: str, ridge: float, shares: FloatArray | None) -> FloatArray:
    method = getattr(moments, f"known_{what}", None)
    if method is not None:
        return np.asarray(method(ridge=ridge, shares=shares))
    rows = np.flatnonzero(moments.known)
    return np.asarray(getattr(moments, what)(ridge=ridge, shares=shares)[np.ix_(rows, rows)])


class Distances:
    """B between the rows that have a factor, under a given A, updated pair by pair.

    Rows without a factor take no space in the matrix. If A changes with every new moment, every B_ij changes too. The
    paper updates "B_ij for participating clients" only, which is correct if A is frozen (docs/errata.md, C4). With a
    frozen A, s new moments among m require only s (m - s) + s (s - 1) / 2 pairs.
    """

    def __init__(
        self, factors: Sequence[FloatArray | None], reference: FloatArray, *, ridge: float, tol: float
    ) -> None:
        self.reference, self.ridge = reference, ridge
        self._tol = tol
        self._nothing = np.zeros((0, len(reference)))
        self._known = [factor is not None for factor in factors]
        self._whitened = Whitened(
            [self._nothing if factor is None else factor for factor in factors],
            regularised_inverse(reference, ridge=ridge),
        )
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # bank row of each matrix row
        self._matrix: FloatArray = np.zeros((0, 0))
        self._stale = {row for row, known in enumerate(self._known) if known}
        self.pairs_computed = 0

    def append(self, count: int) -> None:
        """Add rows without a factor."""
        self._known.extend([False] * count)
        self._whitened.factors.extend([self._nothing] * count)

    def keep(self, rows: IntArray) -> None:
        """Drop all rows except `rows`."""
        stay = np.isin(self._rows, rows)
        self._rows = np.searchsorted(rows, self._rows[stay])
        self._matrix = self._matrix[np.ix_(stay, stay)]
        self._stale = {place for place, row in enumerate(rows.tolist()) if row in self._stale}
        self._known = [self._known[row] for row in rows]
        self._whitened.keep(rows)

    def put(self, row: int, factor: FloatArray) -> None:
        """Replace a row's factor."""
        self._known[row] = True
        self._whitened.replace(row, factor)
        self._stale.add(row)

    def matrix(self) -> FloatArray:
        """Return B between the rows with a factor, read-only, after recomputing the pairs of changed rows."""
        if self._stale:
            stale = np.array(sorted(self._stale))
            known = np.flatnonzero(self._known)
            old = np.setdiff1d(known, stale)
            left, right = np.triu_indices(len(stale), 1)
            first = np.concatenate([np.repeat(stale, len(old)), stale[left]])
            second = np.concatenate([np.tile(old, len(stale)), stale[right]])
            matrix = np.zeros((len(known), len(known)))
            before = np.searchsorted(known, self._rows)
            matrix[np.ix_(before, before)] = self._matrix
            one, other = np.searchsorted(known, first), np.searchsorted(known, second)
            matrix[one, other] = matrix[other, one] = self._whitened.norms(first, second, tol=self._tol)
            changed = np.searchsorted(known, stale)
            matrix[changed, changed] = 0.0
            self.pairs_computed += len(first)
            self._rows, self._matrix, self._stale = known, matrix, set()
        self._matrix.setflags(write=False)
        return self._matrix


Reference = Literal["refresh", "frozen"]
GramKey = tuple[int, float, bytes, bool]

MAX_ROOT_CLIENTS = 2000
"""Largest number of known clients for which `directions` takes the root of the Gram matrix; beyond, it is too slow."""
MAX_ROOT_ENTRIES = 50_000_000
"""Largest number of rows times known clients for which `directions` takes the root. The root can have that many entries
(400 MB); sketches have 512 per client."""


class MomentBank:
    """Factors of the clients' second moments, and the heterogeneity between clients, computed once per version.

    Args:
        count: initial number of rows.
        reference: how A is chosen: `refresh` or `frozen`, see the module docstring.
        tol: relative error allowed in the heterogeneity.
    """

    def __init__(self, count: int = 0, *, reference: Reference = "refresh", tol: float = 1e-3) -> None:
        one_of(reference, ("refresh", "frozen"), "reference")
        if not 0 < tol < 1:
            raise InputError(f"tol must lie between 0 and 1, but {tol!r} came")
        self._factors: list[FloatArray | None] = []
        self._width: int | None = None
        self._version = 0
        self._reference = reference
        self._tol = tol
        self._frozen: FloatArray | None = None
        self._distances: Distances | None = None
        self._spread: dict[str, tuple[FloatArray, FloatArray]] = {}
        self._fleet: tuple[tuple[int, float], SketchedBank] | None = None
        self._key: tuple[int, bytes] | None = None
        self._gram: tuple[GramKey, FloatArray] | None = None
        self._directions: tuple[GramKey, FloatArray] | None = None
        self.append(count)

    @staticmethod
    def sketched(
        count: int = 0,
        *,
        ridge: float = RIDGE,
        dimension: int = 64,
        prototypes: int = 2000,
        pilot: int = 256,
        seed: int = 0,
    ) -> SketchedBank:
        """Return a bank that stores `dimension` numbers per client, for up to millions of clients (`SketchedBank`)."""
        from fedpace.moments.sketched import SketchedBank

        return SketchedBank(count, ridge=ridge, dimension=dimension, prototypes=prototypes, pilot=pilot, seed=seed)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._factors)

    @property
    def version(self) -> int:
        """A counter that grows with every change of a moment or of the roster."""
        return self._version

    @property
    def width(self) -> int | None:
        """Number of columns of every factor; None before the first moment."""
        return self._width

    @property
    def known(self) -> BoolArray:
        """(n,) True for clients with a moment."""
        return frozen([factor is not None for factor in self._factors], np.bool_)

    def factor(self, row: int) -> FloatArray | None:
        """Return client `row`'s factor; None if it is unknown."""
        return self._factors[self._row(row)]

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""
        at_least(count, 0, "the number of rows to add")
        if count:
            self._factors.extend([None] * count)
            if self._distances is not None:
                self._distances.append(count)
            self._version += 1

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left; later rows move up."""
        gone = {self._row(int(row)) for row in np.asarray(rows).ravel()}
        if gone:
            stay = np.array([row for row in range(len(self)) if row not in gone], dtype=np.int64)
            self._factors = [self._factors[row] for row in stay]
            if self._distances is not None:
                self._distances.keep(stay)
            self._version += 1

    def put(self, row: int, factor: ArrayLike) -> None:
        """Store client `row`'s factor F (r x d), with second moment F'F; replaces the previous factor."""
        row = self._row(row)
        matrix = checked_moment(factor, row, self._width)
        before = self._factors[row]
        if before is not None and np.array_equal(before, matrix):
            return
        self._width = matrix.shape[1]
        kept = frozen(matrix)
        self._factors[row] = kept
        if self._distances is not None:
            self._distances.put(row, kept)
        self._version += 1

    def refresh(self) -> None:
        """Drop a frozen reference and all cached results; the next B uses the current moments for every pair."""
        self._frozen = self._distances = self._key = self._gram = self._directions = self._fleet = None
        self._spread = {}

    def heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) B_ij = ||(A_i - A_j)(A + ridge tr(A)/d I)^-1||_2; NaN in rows and columns of unknown clients.

        A is the mean moment of the known clients, weighted by their `shares` scaled to sum to 1. A frozen A keeps its
        original shares. The array is read-only and cached until something changes. If few of many clients are known,
        use `known_heterogeneity`, which is smaller.
        """
        return self._over_all("heterogeneity", self.known_heterogeneity(ridge=ridge, shares=shares))

    def known_heterogeneity(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(m, m) B among the m known clients, in row order; from sketches if m exceeds `MAX_EXACT_CLIENTS`.

        The array is read-only and cached until something changes.
        """
        rows = np.flatnonzero(self.known)
        if not rows.size:
            return frozen(np.zeros((0, 0)))
        if rows.size > MAX_EXACT_CLIENTS:
            return self._sketched(ridge).known_heterogeneity(ridge=ridge)
        weights = checked_shares(shares, len(self))
        key = (self._version, weights.tobytes())
        stale = self._frozen is None if self._reference == "frozen" else key != self._key
        if stale:
            factors = [factor for factor in self._factors if factor is not None]
            self._frozen = mean_moment(factors, shares_among(weights, rows))
            self._key = key
        if self._frozen is not None and (stale or self._distances is None or self._distances.ridge != ridge):
            self._distances = Distances(self._factors, self._frozen, ridge=float(ridge), tol=self._tol)
        assert self._distances is not None
        return self._distances.matrix()

    def gram(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, n) whitened Gram matrix G (`whitened_gram`); NaN for unknown clients.

        The array is read-only and cached until something changes. If few of many clients are known, use `known_gram`,
        which is smaller.
        """
        return self._over_all("Gram matrix", self.known_gram(ridge=ridge, shares=shares))

    def known_gram(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(m, m) whitened Gram matrix among the m known clients; from sketches if m exceeds `MAX_EXACT_CLIENTS`.

        The array is read-only and cached until something changes.
        """
        key = self._gram_key(ridge, shares)
        if self._gram is not None and self._gram[0] == key:
            return self._gram[1]
        result = np.zeros((0, 0))
        rows = np.flatnonzero(self.known)
        if rows.size > MAX_EXACT_CLIENTS:
            check_matrix(rows.size, "Gram matrix")
            points = self._sketches(rows, ridge, shares)
            result = points @ points.T
        elif rows.size:
            weights = shares_among(checked_shares(shares, len(self)), rows)
            reference = self._frozen if self._reference == "frozen" else None
            factors = [factor for factor in self._factors if factor is not None]
            result = whitened_gram(factors, shares=weights, reference=reference, ridge=ridge)
        result.setflags(write=False)
        self._gram = (key, result)
        return result

    def _over_all(self, what: str, among: FloatArray) -> FloatArray:
        before = self._spread.get(what)
        if before is None or before[0] is not among or len(before[1]) != len(self):
            self._spread[what] = before = (among, expand_to_all(among, np.flatnonzero(self.known), len(self), what))
        return before[1]

    def _sketched(self, ridge: float) -> SketchedBank:
        """Return a sketched bank built from the known factors; a restored bank therefore gives the same result."""
        key = (self._version, float(ridge))
        if self._fleet is None or self._fleet[0] != key:
            bank = self.sketched(len(self), ridge=float(ridge))
            for row, factor in enumerate(self._factors):
                if factor is not None:
                    bank.put(row, factor)
            self._fleet = (key, bank)
        return self._fleet[1]

    def directions(self, *, ridge: float, shares: ArrayLike | None = None) -> FloatArray:
        """(n, r) rows with the inner products of `gram`: exact for up to `MAX_ROOT_CLIENTS`, else sketches.

        With very many rows, sketches start at fewer known clients (`MAX_ROOT_ENTRIES`). The array is read-only and
        cached until something changes.
        """
        key = self._gram_key(ridge, shares)
        if self._directions is None or self._directions[0] != key:
            rows = np.flatnonzero(self.known)
            if not rows.size:
                found = np.zeros((0, 0))
            elif rows.size <= MAX_ROOT_CLIENTS and rows.size * len(self) <= MAX_ROOT_ENTRIES:
                found = square_root(self.known_gram(ridge=ridge, shares=shares))
            else:
                found = self._sketches(rows, ridge, shares)
            result = np.full((len(self), found.shape[1]), np.nan)
            result[rows] = found
            result.setflags(write=False)
            self._directions = (key, result)
        return self._directions[1]

    def _sketches(self, rows: IntArray, ridge: float, shares: ArrayLike | None) -> FloatArray:
        factors = [factor for factor in self._factors if factor is not None]
        weights = shares_among(checked_shares(shares, len(self)), rows)
        reference = self._frozen if self._reference == "frozen" else None
        inverse = whiten(factors, weights, reference=reference, ridge=ridge).inverse
        sketches = sketched_products(factors, inverse, dimension=512)
        return np.asarray((sketches - weights @ sketches) / np.sqrt(len(inverse)))

    def _gram_key(self, ridge: float, shares: ArrayLike | None) -> GramKey:
        given = b"" if shares is None else np.asarray(shares).tobytes()
        return (self._version, float(ridge), given, self._reference == "frozen" and self._frozen is not None)

    def best_prefix(
        self,
        delay: ArrayLike,
        *,
        ridge: float,
        shares: ArrayLike | None = None,
        candidates: ArrayLike | None = None,
        target: float = 0.0,
        max_clients: int | None = None,
    ) -> RescaledPrefix:
        """Return the best prefix among the known clients (`fedpace.numerics.best_prefix`), after rescaling B.

        With more than `MAX_EXACT_CLIENTS` known clients, the result is approximate (`SketchedBank.best_prefix`).

        Args:
            delay: (n,) seconds; NaN is allowed for clients that are not candidates.
            ridge: as in `heterogeneity`.
            shares: the clients' weights in the objective; unknown clients do not count.
            candidates: rows or mask of the clients that may be chosen; unknown clients are left out.
            target: B is scaled down until max_i sum_j share_j B_ij equals this; 0 = not scaled (docs/errata.md, A9).
            max_clients: longest prefix to consider.
        """
        tau = float_array(delay, "delays", finite=False)
        if tau.size != len(self):
            raise InputError(f"expected {len(self)} delays, one per client, but {tau.size} came")
        rows = np.flatnonzero(self.known)
        if rows.size > MAX_EXACT_CLIENTS:
            return self._sketched(ridge).best_prefix(
                tau, ridge=ridge, shares=shares, candidates=candidates, target=target, max_clients=max_clients
            )
        allowed = np.zeros(len(self), dtype=np.bool_)
        allowed[candidate_rows(candidates, len(self))] = True
        matrix = self.known_heterogeneity(ridge=ridge, shares=shares)
        within = shares_among(checked_shares(shares, len(self)), rows)
        largest = float((matrix @ within).max(initial=0.0))
        scale = rescale_factor(largest, target)
        found = best_prefix(
            matrix * scale,
            tau[rows],
            shares=within,
            candidates=allowed[rows],
            max_clients=max_clients,
        )
        return RescaledPrefix.of(found, rows, largest_mean=largest, scale=scale)

    def arrays(self) -> dict[str, FloatArray]:
        """Return the state of the bank as plain arrays, for an npz file; `load` restores it."""
        known = [factor for factor in self._factors if factor is not None]
        stacked = np.vstack(known) if known else np.zeros((0, self._width or 0))
        ranks = [-1 if factor is None else len(factor) for factor in self._factors]
        saved = {"ranks": np.array(ranks, dtype=np.float64), "factors": stacked}
        if self._reference == "frozen" and self._frozen is not None:
            saved["reference"] = self._frozen
        return saved

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Restore the state that `arrays` returned."""
        missing = {"ranks", "factors"} - set(arrays)
        if missing:
            raise InputError(f"a saved moment bank holds 'ranks' and 'factors', but {sorted(missing)} is missing")
        ranks = float_array(arrays["ranks"], "saved ranks").astype(np.int64)
        stacked = float_array(arrays["factors"], "saved factors", ndim=2)
        ends = np.cumsum(ranks.clip(min=0))
        total = int(ends[-1]) if ends.size else 0
        if total != len(stacked):
            raise InputError(f"saved ranks add up to {total}, but {len(stacked)} rows of factors came")
        self._factors = [
            None if rank < 0 else frozen(stacked[end - rank : end]) for rank, end in zip(ranks, ends, strict=True)
        ]
        self._width = stacked.shape[1] or None
        self._version += 1
        self.refresh()
        if self._reference == "frozen" and "reference" in arrays:
            self._frozen = float_array(arrays["reference"], "the saved reference", ndim=2)

    def _row(self, row: int) -> int:
        if isinstance(row, bool) or not isinstance(row, int | np.integer) or not 0 <= row < len(self._factors):
            raise InputError(f"expected a row from 0 to {len(self._factors) - 1}, but {row!r} came")
        return int(row)
