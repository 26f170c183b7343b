"""How a federation is given its defence, and what the defence did: the one place that knows fedpace's options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fedpace.records.run import Round
from fedpace.sim.rounds import Fleet
from fedpace.trust.robust import make_robust

OFF, DEFAULT = "off", "default"
RULES = ("median", "trimmed-mean", "geometric-median", "centered-clipping", "multi-krum", "krum", "bulyan")
"""Byzantine-robust rules, which a server is asked for."""
VALIDATED = ("fltrust", "zeno")
"""Rules that need a validation set on the server."""
SAMPLES = 100
"""Of the validation set."""
DEFENCES = (OFF, DEFAULT, *RULES, *VALIDATED)


def defended(defence: str, fleet: Fleet | None = None) -> dict[str, Any]:
    """Return the arguments that give a federation its defence.

    Those of a `Simulation` where its `fleet` is given, and else those of a `PacedStrategy` or `PacedServer`.
    """
    trust = defence != OFF
    if fleet is None:
        return {} if trust else {"trust": False}
    found: dict[str, Any] = {"fleet": replace(fleet, trust=trust)}
    if defence in (OFF, DEFAULT):
        return found
    found["robust"] = make_robust(defence)
    if defence in VALIDATED:
        found["validation"] = SAMPLES
    return found


def seen(rounds: Iterable[Round]) -> dict[str, int]:
    """Return what a defence did to clients: how many were ever excluded, and how many answers it refused or changed.

    `capped` counts the answers whose weight was cut.
    """
    excluded: set[str] = set()
    counts = dict.fromkeys(("refused", "clipped", "capped"), 0)
    for current in rounds:
        excluded |= set(map(str, current.facts.get("excluded") or ()))
        counts["refused"] += len(current.facts.get("failures") or ())
        counts["clipped"] += len(current.facts.get("clipped") or ())
        counts["capped"] += len(current.facts.get("capped") or ())
    return {"excluded": len(excluded), **counts}
