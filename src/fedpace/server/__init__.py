"""Server steps: how weighted client updates change the shared model. One file per rule, with the registered name."""

from __future__ import annotations

from typing import Any

from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Policy
from fedpace.core.types import Selector
from fedpace.server.average import Average


def server_step(selector: Selector[Any] | Policy[Any], asked: ServerStep[Any] | None = None) -> ServerStep[Any]:
    """Return the server step to use: `asked` if given, else the scheme's default, else the plain average."""
    if asked is not None:
        return asked
    return Average() if selector.server is None else selector.server
