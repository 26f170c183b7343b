"""The interface of stores for feature moments: `MomentBank`, and `SketchedBank` for large fleets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fedpace._base.checks import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from fedpace.moments.bank import RescaledPrefix

RIDGE = 0.1
"""Default ridge: added to the mean moment before it is inverted, in units of its mean eigenvalue. All users of the
moments share this default, so that results are computed once."""


class Moments(Protocol):
    """Queries that a selector can make on the clients' feature moments."""

    @property
    def known(self) -> BoolArray:
        """(n,) True where the client has reported a moment."""

    def heterogeneity(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, n) B_ij = ||(A_i - A_j)(A + ridge tr(A)/d I)^-1||_2; NaN in rows and columns of unknown clients."""

    def gram(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, n) G_ij = <M_i, M_j>_F / d, M_i = (A_i - A)(A + ridge tr(A)/d I)^-1; NaN for unknown clients."""

    def directions(self, *, ridge: float, shares: FloatArray | None = None) -> FloatArray:
        """(n, r) one row per client; their inner products are (nearly) those of `gram`. NaN for unknown clients."""

    def best_prefix(
        self,
        delay: FloatArray,
        *,
        ridge: float,
        shares: FloatArray | None = None,
        candidates: BoolArray | None = None,
        target: float = 0.0,
        max_clients: int | None = None,
    ) -> RescaledPrefix:
        """Return the set that minimises max delay / (1 - 2 h^2); large banks compute it without an (n, n) matrix."""


class MomentStore(Moments, Protocol):
    """A store for feature moments, as the ledger uses it."""

    @property
    def width(self) -> int | None:
        """Number of features in every stored factor; None while nothing is stored."""

    def append(self, count: int) -> None:
        """Add rows for clients that joined."""

    def remove(self, rows: IntArray) -> None:
        """Drop the rows of clients that left; later rows move up."""

    def put(self, row: int, factor: FloatArray) -> None:
        """Store the factor F (r x d) of client `row`, with second moment F'F; replace an older one."""

    def arrays(self) -> dict[str, FloatArray]:
        """Return all that is needed to restore the store."""

    def load(self, arrays: Mapping[str, FloatArray]) -> None:
        """Restore the result of `arrays`."""
