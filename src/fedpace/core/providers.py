"""Dependency injection for the core: registries, the moment store and the delay estimator of higher layers.

The core does not import higher layers of fedpace. But a restored Session must find its selector by name, store moments
and estimate delays. Only the package's `__init__` calls `provide`, when fedpace is imported.
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
    """Set the implementations that the core uses."""
    global _selector_class, _server_class, _moment_store, _delay_estimator
    _selector_class, _server_class = selector_class, server_class
    _moment_store, _delay_estimator = moment_store, delay_estimator


def selector_class(name: str) -> Callable[..., Any]:
    """Return the selector class registered as `name`."""
    if _selector_class is None:
        raise OrderError("no registry of selectors is at hand: `import fedpace` first")
    return _selector_class(name)


def server_class(name: str) -> Callable[..., Any]:
    """Return the server-step class registered as `name`."""
    if _server_class is None:
        raise OrderError("no registry of server steps is at hand: `import fedpace` first")
    return _server_class(name)


def moment_store() -> MomentStore:
    """Return a new, empty default store for moments."""
    if _moment_store is None:
        raise OrderError("no store for moments is at hand: `import fedpace` first")
    return _moment_store()


def delay_estimator() -> DelayEstimator:
    """Return the default delay estimator."""
    if _delay_estimator is None:
        raise OrderError("no estimator of delays is at hand: `import fedpace` first")
    return _delay_estimator()
