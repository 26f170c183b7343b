"""Other schemes with the server's step of `pace`: what steps bring, told apart from what the choice of clients does.

`pace` may take as many clients as it wants, so controls may too: 10, 20, 30 or all of them, each with the other options
that its scheme is tuned over.
"""

from __future__ import annotations

from typing import Any

from fedpace.selectors.pace import Pace
from grid.options import OPTIONS

SCHEMES = ("random", "fed-cs", "oort", "tifl", "flanp")
ALL = "all"
"""Stands for the number of clients."""
SUFFIX = "+steps"
"""Ends the labels of controls."""
SIZES: tuple[Any, ...] = (10, 20, 30, ALL)


class WithSteps:
    """Another scheme's cohorts, with the server's step that `pace` asks for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.server = Pace().server

    def __getattr__(self, name: str) -> Any:
        """Be the other scheme in everything else."""
        return getattr(self._inner, name)


def options(name: str) -> list[dict[str, Any]]:
    """Return what a control is tuned over."""
    rest: list[dict[str, Any]] = []
    for setting in OPTIONS[name]:
        others = {key: value for key, value in setting.items() if key not in ("k", "overcommit")}
        if others not in rest:
            rest.append(others)
    if name == "random":
        rest = [{}]
    return [{"k": size, **others} for size in SIZES for others in rest[:3]]
