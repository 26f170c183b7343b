"""One round, as every host records it: the simulator, Flower, NVFlare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpace.core.codec import gathered
from fedpace.core.coordinator import Coordinator
from fedpace.core.progress import Turn
from fedpace.core.types import ClientId


@dataclass(frozen=True, repr=False)
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
    """Clients that answered an earlier warm-up, or a round that had ended, only now."""
    probed: tuple[ClientId, ...] = ()
    """Clients that were asked before the choice."""
    step_factor: float = 1.0
    """What the averaged step was multiplied by."""
    carried: float = 0.0
    """The part of this move that the next one carries on."""
    work: float | None = None
    """Client-seconds since the step before: a client that was asked works until it answers, fails or is given up. None,
    here and below: not known, as in older records."""
    wasted: int | None = None
    """Tasks to train that ended without a part in a step: they failed or were given up."""
    bytes_down: int | None = None
    """Sent to clients since the step before: a model with every task, of whatever kind."""
    bytes_up: int | None = None
    """Sent by clients: trained models, and the moments and update sketches that the scheme asked for."""
    by_speed: tuple[float, ...] | None = None
    """Metric of the shared model on the data of each tenth of the clients, fastest first; where it was evaluated."""

    def __repr__(self) -> str:
        """Return what one wants to read in a loop over rounds; the fields hold the rest."""
        metric = "" if self.metric is None else f", metric {self.metric:.4g}"
        failed = f" ({len(self.failed)} failed)" if self.failed else ""
        clients = f"{len(self.clients)} client{'' if len(self.clients) == 1 else 's'}{failed}"
        return f"<{type(self).__name__} {self.number}: clock {self.clock:,.4g} s, {clients}{metric}>"


def recorded(
    coordinator: Coordinator,
    turn: Turn,
    *,
    since: float,
    losses: Sequence[float],
    model_bytes: int,
    stepping: Mapping[str, Any],
    **more: Any,
) -> Round:
    """Return the record of the step that was just made.

    Args:
        coordinator: that made it.
        turn: what it says of the step.
        since: when the step before was made.
        losses: that its clients told.
        model_bytes: of a model on the wire.
        stepping: what the server step says of itself; nothing where the model stayed as it was.
        more: fields that only the host knows.
    """
    measured = {
        "number": coordinator.step,
        "clock": coordinator.now,
        "overhead": max(0.0, turn.began - since),
        "metric": None,
        "loss": None,
        "train_loss": float(np.mean(losses)) if losses else None,
        "bytes_down": turn.sent * model_bytes,
        "bytes_up": turn.returned * model_bytes + turn.reported,
        "facts": turn.explained(coordinator.ledger.ids),
    }
    return gathered(Round, measured | more, stepping, vars(turn), vars(turn.why))
