"""Settings of a run, and checks that its scheme fits its data and model; they do not build the run."""

from __future__ import annotations

from typing import Any

from fedpace._base.errors import InputError
from fedpace.core.cohorts import check_k
from fedpace.core.roster import Settings
from fedpace.core.tasks import Policy
from fedpace.core.types import Need, Selector
from fedpace.data.federated import FederatedData
from fedpace.sim.clock import VirtualTime
from fedpace.sim.engines.choice import EngineChoice, EngineOptions
from fedpace.sim.fleet import Fleet
from fedpace.sim.trainers import AnyTrainer


def offers(data: FederatedData) -> frozenset[Need]:
    """Return the facts that simulated clients can report: all, but labels only if the data have classes."""
    return frozenset(Need) if data.classes is not None else frozenset(Need) - {Need.LABELS}


def check_scheme(
    selector: Selector[Any] | Policy[Any], trainer: AnyTrainer, engine: EngineOptions | None = None
) -> EngineChoice:
    """Raise if the scheme cannot work with this data and model; return the engine that trains its clients."""
    k = selector.fixed_k
    if k is not None:
        check_k(k, trainer.data.clients, selector.name)  # fail now rather than after minutes of other runs
    if missing := selector.needs - offers(trainer.data):
        raise InputError(f"{selector.name} needs {', '.join(sorted(missing))}, which these data do not have")
    return (engine or EngineOptions()).choose(trainer, k)


def settings(
    selector: Selector[Any] | Policy[Any], trainer: AnyTrainer, time: VirtualTime, fleet: Fleet, *, seed: int
) -> Settings:
    """Return the coordinator's settings for a simulated run."""
    return Settings(
        seed,
        fleet.shares,
        fleet.warmup,
        fleet.warmup_quota,
        fleet.warmup_wait,
        learn_delays=fleet.delays == "observed",
        deadline=time.clock.deadline,
        moments_every=int(trainer.moving_features and not selector.first_moments),
        warmup_trains=fleet.warmup_trains and time.clock.charge_warmup,
        trust=fleet.trust,
    )
