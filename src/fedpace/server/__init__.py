"""Server steps: how weighted client updates change the shared model. One file per rule, with the registered name."""

from __future__ import annotations

from typing import Any

from fedpace._base.checks import shortened
from fedpace._base.errors import InputError
from fedpace.core.server_rule import ServerRule
from fedpace.core.tasks import Policy
from fedpace.core.types import Selector
from fedpace.server.average import Average


def server_step(selector: Selector[Any] | Policy[Any], asked: ServerRule[Any] | None = None) -> ServerRule[Any]:
    """Return the server step to use: `asked` if given, else the scheme's default, else the plain average.

    Raise InputError if the scheme is defined by its own server step and another one is asked for.
    """
    if asked is not None and not hasattr(asked, "name"):
        raise InputError(f"expected a server rule, but {shortened(asked)} came: fedpace.make_server makes one")
    own = selector.server
    instead = getattr(selector, "own_server", "")
    if asked is not None and instead and (own is None or asked.name != own.name):
        raise InputError(
            f"{selector.name} works with its own server step only, but the server step {asked.name!r} came: leave it "
            f"out, or use {instead} with {asked.name!r}"
        )
    if asked is not None:
        return asked
    return Average() if own is None else own
