"""What the core needs of the layers above it, handed down when the package is imported.

The core imports nothing of fedpace but itself, yet a Session restored from disk must find its selector by name, keep
moments somewhere and estimate delays. The package's `__init__` fills these slots; nothing else ever should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedpace._base.errors import OrderError
from fedpace.core.protocols import DelayEstimator, MomentStore

_selector_class: Callable[[str], Callable[..., Any]] | None = None
_server_class: Callable[[str], Callable[..., Any]] | None = None
_moment_store: Callable[[], MomentStore] | None = None
_delay_estimator: Callable[[], DelayEstimator] | None = None


def provide(
    *,
    selector_class: Callable[[str], Callable[..., Any]],
    server_class: Callable[[str], Callable[..., Any]],
    moment_store: Callable[[], MomentStore],
    delay_estimator: Callable[[], DelayEstimator],
) -> None:
    """Fill the slots."""
    global _selector_class, _server_class, _moment_store, _delay_estimator
    _selector_class, _server_class = selector_class, server_class
    _moment_store, _delay_estimator = moment_store, delay_estimator


def selector_class(name: str) -> Callable[..., Any]:
    """Return the class registered as `name`."""
    if _selector_class is None:
        raise OrderError("no registry of selectors is at hand: `import fedpace` first")
    return _selector_class(name)


def server_class(name: str) -> Callable[..., Any]:
    """Return the server step registered as `name`."""
    if _server_class is None:
        raise OrderError("no registry of server steps is at hand: `import fedpace` first")
    return _server_class(name)


def moment_store() -> MomentStore:
    """Return a new, empty place for moments."""
    if _moment_store is None:
        raise OrderError("no store for moments is at hand: `import fedpace` first")
    return _moment_store()


def delay_estimator() -> DelayEstimator:
    """Return the estimator that sessions learn delays with."""
    if _delay_estimator is None:
        raise OrderError("no estimator of delays is at hand: `import fedpace` first")
    return _delay_estimator()
