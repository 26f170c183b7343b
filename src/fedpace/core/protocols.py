"""What the core asks of the layers above it: where moments are kept, and how delays are estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedpace._base.checks import BoolArray, FloatArray, IntArray

RIDGE = 0.1
"""What is added to the mean moment before it is inverted, in units of its mean eigenvalue, unless a scheme is told
otherwise. Whoever else looks at the same moments uses the same, so that what follows from them is worked out once."""


class PrefixChoice(Protocol):
    """The best set of the fastest clients, as `Moments.best_prefix` finds it, in rows of the View."""

    @property
    def clients(self) -> IntArray:
        """(k,) rows, fastest first."""
        ...

    @property
    def weights(self) -> FloatArray:
        """(k,) share of the clients that each stands for."""
        ...

    @property
    def heterogeneity(self) -> float:
        """h(S), after scaling."""
        ...

    @property
    def bound(self) -> float:
        """B_S = 2 h(S)^2."""
        ...

    @property
    def objective(self) -> float:
        """delay / (1 - bound)."""
        ...

    @property
    def delay(self) -> float:
        """The largest delay in the set."""
        ...

    @property
    def largest_mean(self) -> float:
        """max_i sum_j share_j B_ij before scaling."""
        ...

    @property
    def scale(self) -> float:
        """What B was multiplied by."""
        ...


class Moments(Protocol):
    """What a selector may ask of the clients' feature moments. `fedpace.moments.MomentBank` fulfils it."""

    @property
    def known(self) -> BoolArray:
        """(n,) True where the client has reported a moment."""
        ...

    def heterogeneity(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, n) B_ij = ||(A_i - A_j)(A + ridge tr(A)/d I)^-1||_2; NaN in rows and columns of unknown clients."""
        ...

    def gram(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, n) G_ij = <M_i, M_j>_F / d, M_i = (A_i - A)(A + ridge tr(A)/d I)^-1; NaN for unknown clients."""
        ...

    def directions(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, r) one row per client, whose inner products are those of `gram`, or nearly; NaN for unknown clients."""
        ...

    def best_prefix(
        self,
        delay: FloatArray,
        *,
        ridge: float,
        shares: FloatArray | None = None,
        candidates: BoolArray | None = None,
        target: float = 0.0,
        max_clients: int | None = None,
    ) -> PrefixChoice:
        """Minimise max delay / (1 - 2 h^2) over the candidates; a bank of a million clients needs no matrix for it."""
        ...


class MomentStore(Moments, Protocol):
    """What the ledger asks of the place where moments are kept."""

    @property
    def width(self) -> int | None:
        """Number of features in every stored factor; None while nothing is stored."""
        ...

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""
        ...

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left; later rows move up."""
        ...

    def put(self, row: int, factor: FloatArray) -> None:
        """Store client `row`'s factor F (r x d) with second moment F'F, replacing the one before."""
        ...

    def arrays(self) -> dict[str, FloatArray]:
        """Return all that is needed to restore the store."""
        ...

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over what `arrays` gave."""
        ...


class DelayEstimates(Protocol):
    """What an estimator has learnt of each client so far; immutable."""

    @property
    def seen(self) -> BoolArray:
        """(n,) True where anything was learnt."""
        ...

    def append(self, count: int) -> DelayEstimates:
        """Return the state with rows for clients that joined."""
        ...

    def remove(self, rows: IntArray) -> DelayEstimates:
        """Return the state without the rows of clients that left."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Return all that is needed to restore the state."""
        ...


class DelayEstimator(Protocol):
    """How observed seconds become an estimate. `fedpace.delays.estimator.DelayEstimator` fulfils it."""

    def init(self, clients: int) -> DelayEstimates:
        """Return the state in which nothing is known."""
        ...

    def load(self, arrays: Mapping[str, Any]) -> DelayEstimates:
        """Return the state that `arrays` gave."""
        ...

    def fold(self, state: Any, rows: Any, seconds: Any, finished: Any, *, step: int) -> DelayEstimates:
        """Take in one round; not finished with seconds = waited that long in vain, NaN = nothing learnt."""
        ...

    def seconds(self, state: Any) -> FloatArray:
        """(n,) estimated mean seconds."""
        ...
