"""The clients of a run: how they are met, and what time is to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedpace._base import checks
from fedpace._base.errors import InputError
from fedpace.core.roster import ShareRule, Warmup
from fedpace.core.types import DelayConfig, DelayModel
from fedpace.data.federated import FederatedData
from fedpace.delays.availability import Availability, AvailabilityModel
from fedpace.delays.base import DelaysOfWork
from fedpace.delays.correlation import correlated, outlying, rarity
from fedpace.sim.clock import Clock, VirtualTime
from fedpace.sim.training import Training

DelayKnowledge = Literal["expected", "observed"]


@dataclass(frozen=True)
class Fleet:
    """How the session meets the clients.

    Args:
        shares: what a client weighs in the objective: `uniform` (the paper) or its `samples`.
        warmup: `full` (the paper) or `lazy`; see `fedpace.core.roster.Settings`.
        warmup_quota: never-seen clients that measure beside each cohort when lazy.
        warmup_wait: share of the clients that a full warm-up waits for, where it is charged; the others are known, and
            may be chosen, from when they answer.
        warmup_trains: what clients train in a full warm-up that is charged moves the model: it is the first round. A
            warm-up that costs nothing never does.
        delays: what selectors see: the `expected` delays (the paper), or estimates from those `observed`.
        slow_rare: in [0, 1]: how strictly the slow clients are those that hold the rare data; 0 = independent.
        rare: what makes data rare: `classes` that few samples belong to, or `features` unlike those of most clients.
            Data without classes are always judged by their features.
        slow_large: in [-1, 1]: how strictly the slow clients are those that hold the most samples; below 0, the fewest.
            `slow_away` of [availability] ties the third of the three, who is there, to speed.
        trust: bound the influence of each client (`fedpace.trust`), as servers do. Simulated clients are honest, and
            baselines are to do what their papers say, so it is off.
    """

    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
    warmup_wait: float = 1.0
    warmup_trains: bool = True
    delays: DelayKnowledge = "expected"
    slow_rare: float = 0.0
    rare: Literal["classes", "features"] = "classes"
    slow_large: float = 0.0
    trust: bool = False

    def __post_init__(self) -> None:
        """Refuse options that make no sense; the session checks the others."""
        checks.one_of(self.delays, ("expected", "observed"), "delays of fleet")
        checks.one_of(self.rare, ("classes", "features"), "rare of fleet")
        checks.between(self.slow_rare, 0, 1, "slow_rare of fleet")
        checks.between(self.slow_large, -1, 1, "slow_large of fleet")
        if self.slow_rare and self.slow_large:
            raise InputError("slow_rare and slow_large of fleet both say who is slow: leave one of them out")


def virtual_time(
    data: FederatedData,
    delays: DelayConfig,
    *,
    fleet: Fleet | None = None,
    availability: Availability | None = None,
    clock: Clock | None = None,
    training: Training | None = None,
    model_bytes: int,
    seed: int,
) -> VirtualTime:
    """Return the time of a run before its first round.

    It depends on the data where `slow_rare` ties the two, and on the data and `training` where the delay model asks how
    much each client has to do.
    """
    fleet = fleet or Fleet()
    drawn = _delays(delays, data, training or Training(), model_bytes=model_bytes, seed=seed)
    recorded = _recorded(drawn, availability)
    if fleet.slow_rare:
        histograms = data.label_histograms()
        if histograms is None or fleet.rare == "features":
            scores = outlying([client.inputs for client in data.train])
        else:
            scores = rarity(histograms)
        drawn = correlated(drawn, scores, strength=fleet.slow_rare)
    elif fleet.slow_large:
        sizes = np.copysign([len(client) for client in data.train], fleet.slow_large)
        drawn = correlated(drawn, sizes, strength=abs(fleet.slow_large))
    config = availability or Availability()
    present = recorded or config.build(data.clients, seed=seed, delays=drawn.expected())
    return VirtualTime(drawn, present, clock or Clock(), clients=data.clients)


def _delays(delays: DelayConfig, data: FederatedData, training: Training, *, model_bytes: int, seed: int) -> DelayModel:
    if not isinstance(delays, DelaysOfWork):
        return delays.build(data.clients, model_bytes=model_bytes, seed=seed)
    samples = [training.epochs * len(client) for client in data.train]
    return delays.build_for(samples, model_bytes=model_bytes, seed=seed)


def _recorded(delays: DelayModel, config: Availability | None) -> AvailabilityModel | None:
    """Return who was there, where a trace recorded it along with the delays and nothing else is configured."""
    untouched = config is None or config == Availability()
    return delays if isinstance(delays, AvailabilityModel) and untouched else None
