"""One round, as every host records it: the simulator, Flower, NVFlare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpace.core.progress import Turn
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


def recorded(
    turn: Turn,
    *,
    number: int,
    clock: float,
    since: float,
    losses: Sequence[float],
    stepping: Mapping[str, Any],
    metric: float | None = None,
    loss: float | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Round:
    """Return the record of what a coordinator did from one step to the next.

    Args:
        turn: what `Coordinator.stepped` returned.
        number: of the step.
        clock: seconds at its end.
        since: seconds at the end of the one before.
        losses: that the clients told.
        stepping: scalars of the server step's state, where the model moved.
        metric: see `Round`.
        loss: see `Round`.
        facts: what is noted beside the scheme's own.
    """
    told = [value for value in losses if not math.isnan(value)]
    why = turn.why
    return Round(
        number=number,
        clock=clock,
        seconds=turn.seconds,
        overhead=max(0.0, turn.began - since),
        metric=metric,
        loss=loss,
        clients=tuple(turn.clients),
        weights=tuple(turn.weights),
        mode=turn.mode,
        failed=tuple(turn.failed),
        warmed=tuple(turn.warmed),
        heard=tuple(turn.heard),
        probed=tuple(turn.probed),
        stretch=stepping.get("stretch", 1.0),
        carried=stepping.get("carried", 0.0),
        train_loss=float(np.mean(told)) if told else None,
        objective=why.objective,
        predicted_seconds=why.predicted_seconds,
        status=why.status,
        facts={**why.facts, **(facts or {})},
    )
