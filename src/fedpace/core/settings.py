"""The options of a coordinator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedpace._base.options import Above, AtLeast, Between, Options
from fedpace._base.rng import stream
from fedpace.trust.limits import CLIP, WEIGHT_RATE

Warmup = Literal["full", "lazy"]
ShareRule = Literal["uniform", "samples"]
Aggregation = Literal["individual", "sums"]
MINIMUM = 8
"""Default number of clients that a sum needs."""


@dataclass(frozen=True)
class Settings(Options):
    """The options of a coordinator; a restarted server must use the same options.

    Args:
        seed: seed of all random streams.
        shares: weight of a client in the objective: `uniform` (1/n), or proportional to its `samples`.
        warmup: how the server measures clients if the policy knows too few facts about them. `full`: all of them
            measure before the first decision, as in the paper. `lazy`: `warmup_quota` of them measure beside each
            cohort.
        warmup_quota: see `warmup`. Clients that failed in a full warm-up are also measured in this lazy way.
        warmup_wait: fraction of the clients that a full warm-up waits for. The policy can choose the other clients
            once they have answered.
        warmup_trains: True = the first full warm-up is also the first round: the model steps with what clients
            trained. False = a warm-up does not change the model.
        learn_delays: estimate delays from observed times. False = use only the delays that the
            host gives; keep it on where clients state their delays themselves.
        deadline: longest wait for the policy's tasks, in seconds; the policy may set a shorter one.
        moments_every: ask a client for its feature moment again after this many steps; 0 = only once.
        trust: bound the influence of each client, see docs/trust.md. False = refuse only invalid answers.
        hear_late: stragglers that miss the end of a round continue, for hosts that cannot stop a client. The server
            uses their facts when they answer, and gives them no other task until then.
        clip: clip updates longer than this multiple of the fleet's reference length; 0 = never.
        weight_rate: cap on a client's weight over time, as a multiple of its share of the objective; 0 = no cap.
        aggregation: what the server sees of updates. `individual`: each one. `sums`: only sums over groups of clients,
            as under secure aggregation (`fedpace.core.sums`, docs/privacy.md).
        minimum: fewest clients in such a sum.
    """

    options_of: ClassVar[str | None] = ""

    seed: int = 0
    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: Annotated[int, AtLeast(1)] = 5
    warmup_wait: Annotated[float, Between(0, 1, "(]")] = 1.0
    learn_delays: bool = True
    deadline: Annotated[float, Above(0)] = math.inf
    moments_every: Annotated[int, AtLeast(0)] = 1
    warmup_trains: bool = False
    trust: bool = True
    hear_late: bool = False
    clip: Annotated[float, AtLeast(1, zero="clip no update")] = CLIP
    weight_rate: Annotated[float, AtLeast(1, zero="cap no weight over time")] = WEIGHT_RATE
    aggregation: Aggregation = "individual"
    minimum: Annotated[int, AtLeast(1)] = MINIMUM

    def __post_init__(self) -> None:
        """Raise InputError for invalid options."""
        stream(self.seed)  # raises for a bad seed now rather than in the first round
        super().__post_init__()
