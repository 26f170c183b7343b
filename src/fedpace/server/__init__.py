"""Server steps: one file a rule, named as it is registered."""

from __future__ import annotations

from typing import Any

from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Policy
from fedpace.core.types import Selector
from fedpace.server.average import Average


def server_step(selector: Selector[Any] | Policy[Any], asked: ServerStep[Any] | None = None) -> ServerStep[Any]:
    """Return the rule to use: the one that is asked for, else the one that the scheme asks for, else the average."""
    if asked is not None:
        return asked
    return Average() if selector.server is None else selector.server
