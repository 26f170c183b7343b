"""`Round`, the record of one round, which the simulator, Flower and NVFlare all write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpace._base.codec import gathered
from fedpace.core.coordinator import Coordinator
from fedpace.core.step_log import StepLog
from fedpace.core.types import ClientId


@dataclass(frozen=True, repr=False)
class Round:
    """The record of one round. Round 0 is the initial model, before any training."""

    number: int
    clock: float
    """Seconds at the end of the round, virtual or real."""
    seconds: float
    """Duration of the round itself."""
    overhead: float
    """Seconds before the round: for warm-ups, probes, and waiting for available clients."""
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
    """Clients that only measured before the round (warm-up)."""
    heard: tuple[ClientId, ...] = ()
    """Clients that answered late: an earlier warm-up, or a round that had already ended."""
    probed: tuple[ClientId, ...] = ()
    """Clients that were probed before the selection."""
    step_factor: float = 1.0
    """Factor by which the server step multiplied the averaged update."""
    carried: float = 0.0
    """Part of this step that the next step continues (momentum)."""
    work: float | None = None
    """Client-seconds since the last step. A client works from the start of its task until it answers, fails or is
    cancelled. None, here and below: not known, as in older records."""
    wasted: int | None = None
    """Training tasks that failed or were cancelled, and so did not count in a step."""
    bytes_down: int | None = None
    """Bytes sent to clients since the last step: one model with every task of any kind."""
    bytes_up: int | None = None
    """Bytes sent by clients: trained models, and the moments and update sketches that the scheme asked for."""
    by_speed: tuple[float, ...] | None = None
    """Metric of the shared model on the data of each tenth of the clients, fastest first; None if not evaluated."""

    def __repr__(self) -> str:
        """Return a short summary, for a loop that prints rounds."""
        metric = "" if self.metric is None else f", metric {self.metric:.4g}"
        failed = f" ({len(self.failed)} failed)" if self.failed else ""
        clients = f"{len(self.clients)} client{'' if len(self.clients) == 1 else 's'}{failed}"
        return f"<{type(self).__name__} {self.number}: clock {self.clock:,.4g} s, {clients}{metric}>"


def recorded(
    coordinator: Coordinator,
    turn: StepLog,
    *,
    since: float,
    losses: Sequence[float],
    model_bytes: int,
    protocol_bytes: int = 0,
    stepping: Mapping[str, Any],
    notes: Mapping[str, Any] | None = None,
    **more: Any,
) -> Round:
    """Return the record of the last step.

    Args:
        coordinator: the coordinator, after the step.
        turn: the coordinator's log of the step.
        since: time of the step before.
        losses: training losses of the step's clients.
        model_bytes: size of a sent model.
        protocol_bytes: bytes that secure aggregation adds to each upload.
        stepping: facts of the server step; empty if the model did not move.
        notes: what the server rule says about the step (`fedpace.core.server_rule.step_notes`).
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
        "bytes_up": turn.returned * (model_bytes + protocol_bytes) + turn.reported,
        "facts": {**turn.explained(coordinator.ledger.ids), **(notes or {})},
    }
    return gathered(Round, measured | more, stepping, vars(turn), vars(turn.why))
