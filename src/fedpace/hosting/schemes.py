"""Functions that make schemes and server steps from a name or pass ready objects through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedpace._base.checks import check_options, current_options
from fedpace._base.errors import InputError
from fedpace.core.providers import selector_class, server_class
from fedpace.core.stepping import ServerStep


def make_server(server: str | ServerStep[Any] | None) -> ServerStep[Any] | None:
    """Return the server step with this name, or the given object; None stays None (the default of the scheme)."""
    return server_class(server)() if isinstance(server, str) else server


def make_selector(selector: Any, options: Mapping[str, Any], arguments: Iterable[str] = ()) -> Any:
    """Return the scheme with this name and these options, or the given object.

    Args:
        selector: a name, a Selector or a Policy.
        options: options of the scheme; only with a name.
        arguments: the caller's own argument names, which the hint for a misspelt option may suggest too.
    """
    if not isinstance(selector, str):
        if options:
            raise InputError(f"{sorted(options)} came beside a ready selector: give options with a scheme's name only")
        return selector
    kind: Any = selector_class(selector)
    options = current_options(kind, options)
    check_options(kind, options, selector, others=list(arguments))
    return kind(**options)
