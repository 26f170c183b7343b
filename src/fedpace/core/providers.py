"""What the core needs of the layers above it, handed down when the package is imported.

The core imports nothing of fedpace but itself, yet a Session restored from disk must find its selector by name and keep
moments somewhere. The package's `__init__` fills these two slots; nothing else ever should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedpace.core.errors import OrderError
from fedpace.core.types import MomentStore

_selector_class: Callable[[str], Callable[..., Any]] | None = None
_moment_store: Callable[[], MomentStore] | None = None


def provide(*, selector_class: Callable[[str], Callable[..., Any]], moment_store: Callable[[], MomentStore]) -> None:
    """Fill both slots."""
    global _selector_class, _moment_store
    _selector_class, _moment_store = selector_class, moment_store


def selector_class(name: str) -> Callable[..., Any]:
    """Return the class registered as `name`."""
    if _selector_class is None:
        raise OrderError("no registry of selectors is at hand: `import fedpace` first")
    return _selector_class(name)


def moment_store() -> MomentStore:
    """Return a new, empty place for moments."""
    if _moment_store is None:
        raise OrderError("no store for moments is at hand: `import fedpace` first")
    return _moment_store()
