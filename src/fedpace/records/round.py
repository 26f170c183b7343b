"""One round, as every host records it: the simulator, Flower, NVFlare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpace.core.types import ClientId


@dataclass(frozen=True)
class Round:
    """What happened in one round. Number 0 is the initial model, before anybody trained."""

    number: int
    clock: float
    """Seconds at the end of the round, virtual or real."""
    seconds: float
    """How long the round itself took."""
    overhead: float
    """What was charged before it: warm-ups, probes, and waiting for anybody to be there."""
    metric: float | None
    """Accuracy or loss of the shared model on the test data, after the round; None = not evaluated."""
    loss: float | None
    clients: tuple[ClientId, ...] = ()
    weights: tuple[float, ...] = ()
    mode: str = "average"
    failed: tuple[ClientId, ...] = ()
    """Clients that crashed or were late."""
    train_loss: float | None = None
    objective: float | None = None
    predicted_seconds: float | None = None
    status: str = "ok"
    facts: Mapping[str, Any] = field(default_factory=dict)
    warmed: tuple[ClientId, ...] = ()
    """Clients that only measured, before the round."""
    heard: tuple[ClientId, ...] = ()
    """Clients that answered an earlier warm-up only now."""
    probed: tuple[ClientId, ...] = ()
    """Clients that were asked before the choice."""
    stretch: float = 1.0
    """What the averaged step was multiplied by."""
    carried: float = 0.0
    """The part of this move that the next one carries on."""
