"""Schemes and server steps, by name or ready made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedpace._base.checks import check_options, current_options
from fedpace._base.errors import InputError
from fedpace.core.providers import selector_class, server_class
from fedpace.core.stepping import ServerStep


def make_server(server: str | ServerStep[Any] | None) -> ServerStep[Any] | None:
    """Return the server step that was named or given; None = what the scheme asks for."""
    return server_class(server)() if isinstance(server, str) else server


def make_selector(selector: Any, options: Mapping[str, Any], arguments: Iterable[str] = ()) -> Any:
    """Return the scheme that was named or given.

    Args:
        selector: its name, or a Selector or Policy.
        options: of the scheme.
        arguments: of who takes options along with its own arguments: a typo may be meant for either.
    """
    if not isinstance(selector, str):
        if options:
            raise InputError(f"{sorted(options)} came beside a ready selector: give options with a scheme's name only")
        return selector
    kind: Any = selector_class(selector)
    options = current_options(kind, options)
    check_options(kind, options, selector, others=list(arguments))
    return kind(**options)
