"""Options of the simulated clients (`Fleet`), and `virtual_time`, which builds the clock of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.options import Between, Options
from fedpace.core.settings import ShareRule, Warmup
from fedpace.core.types import DelayConfig, DelayModel
from fedpace.data.federated import FederatedData
from fedpace.delays.availability import Availability, AvailabilityModel
from fedpace.delays.base import DelaysBySamples
from fedpace.delays.correlation import correlated, outlying, rarity
from fedpace.sim.clock import Clock, VirtualTime
from fedpace.sim.training import Training

DelayKnowledge = Literal["expected", "observed"]


@dataclass(frozen=True)
class Fleet(Options):
    """How clients are weighted, warmed up and timed.

    Args:
        shares: weight of a client in the objective: `uniform` (the paper) or proportional to its `samples`.
        warmup: `full` (the paper) or `lazy`; see `fedpace.core.settings.Settings`.
        warmup_quota: number of unseen clients measured beside each cohort when warm-up is lazy.
        warmup_wait: share of the clients that a full warm-up waits for, if warm-up is charged. The other clients can be
            selected once they have answered. Other warm-ups wait for all their clients.
        warmup_trains: whether the updates of a full warm-up that is charged move the model, as its first round. The
            updates of a free warm-up never do.
        delays: what selectors see: the `expected` delays (the paper), or estimates from `observed` delays.
        slow_rare: in [0, 1]: how strongly slowness goes with rare data; 0 = independent.
        rare: what makes data rare: `classes` that few samples belong to, or `features` unlike those of most clients.
            For data without classes it is always the features.
        slow_large: in [-1, 1]: how strongly slowness goes with many samples; below 0, with few.
            To make slow clients absent more often, use `slow_away` of [availability].
        trust: whether to bound the influence of each client (`fedpace.trust`), as real servers do. Off by default,
            because simulated clients are honest and baselines must work as in their papers.
    """

    options_of: ClassVar[str] = "fleet"

    shares: ShareRule = "uniform"
    warmup: Warmup = "full"
    warmup_quota: int = 5
    warmup_wait: Annotated[float, Between(0, 1, "(]")] = 0.25
    warmup_trains: bool = True
    delays: DelayKnowledge = "expected"
    slow_rare: Annotated[float, Between(0, 1)] = 0.0
    rare: Literal["classes", "features"] = "classes"
    slow_large: Annotated[float, Between(-1, 1)] = 0.0
    trust: bool = False

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.slow_rare and self.slow_large:
            raise InputError("slow_rare and slow_large of fleet both say who is slow: leave one of them out")

    def waits_for(self, clock: Clock) -> float:
        """Return the share of the clients that a warm-up waits for under this clock."""
        return self.warmup_wait if self.warmup == "full" and clock.charge_warmup else 1.0


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
    """Return the clock of a run before its first round.

    Delays depend on the data if `slow_rare` or `slow_large` is set. They depend on the data and on `training` if the
    delay model uses the amount of work of each client.
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
    if not isinstance(delays, DelaysBySamples):
        return delays.build(data.clients, model_bytes=model_bytes, seed=seed)
    samples = [training.epochs * len(client) for client in data.train]
    return delays.build_for(samples, model_bytes=model_bytes, seed=seed)


def _recorded(delays: DelayModel, config: Availability | None) -> AvailabilityModel | None:
    """Return the availability that a trace recorded with its delays; None if there is none or one is configured."""
    untouched = config is None or config == Availability()
    return delays if isinstance(delays, AvailabilityModel) and untouched else None
