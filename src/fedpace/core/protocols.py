"""Protocols that other packages implement for the core: stores for feature moments and estimators of delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedpace._base.checks import BoolArray, FloatArray, IntArray

RIDGE = 0.1
"""Default ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue. All users of the
moments share this default, so that results are computed once."""


class PrefixChoice(Protocol):
    """The best set of fastest clients, in rows of the View; result of `Moments.best_prefix`."""

    @property
    def clients(self) -> IntArray:
        """(k,) rows, fastest first."""
        ...

    @property
    def weights(self) -> FloatArray:
        """(k,) total share of the clients that each chosen client represents."""
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
        """Factor that B was multiplied by."""
        ...


class Moments(Protocol):
    """Queries that a selector can make on the clients' feature moments; `fedpace.moments.MomentBank` implements it."""

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
        """(n, r) one row per client; their inner products are (nearly) those of `gram`. NaN for unknown clients."""
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
        """Return the set that minimises max delay / (1 - 2 h^2); large banks compute it without an (n, n) matrix."""
        ...


class MomentStore(Moments, Protocol):
    """A store for feature moments, as the ledger uses it."""

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
        """Store the factor F (r x d) of client `row`, with second moment F'F; replace an older one."""
        ...

    def arrays(self) -> dict[str, FloatArray]:
        """Return all that is needed to restore the store."""
        ...

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Restore the result of `arrays`."""
        ...


class DelayEstimates(Protocol):
    """The state of a delay estimator for all clients; immutable."""

    @property
    def seen(self) -> BoolArray:
        """(n,) True for clients with an estimate."""
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
    """Estimates delays from observed seconds; `fedpace.delays.estimator.DelayEstimator` implements it."""

    def init(self, clients: int) -> DelayEstimates:
        """Return the initial state without observations."""
        ...

    def load(self, arrays: Mapping[str, Any]) -> DelayEstimates:
        """Return the state restored from the result of `DelayEstimates.arrays`."""
        ...

    def fold(self, state: Any, rows: Any, seconds: Any, finished: Any, *, step: int) -> DelayEstimates:
        """Return the state after the observations of one round.

        If a client did not finish, its seconds are how long the server waited in vain. NaN = no information.
        """
        ...

    def seconds(self, state: Any) -> FloatArray:
        """(n,) estimated mean seconds."""
        ...
