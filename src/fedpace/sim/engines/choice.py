"""The choice of an engine: `EngineOptions` is the user's request, `EngineChoice` the decision for one run.

The engine decides how fast a run is, never its results, so it is not part of an experiment.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Options
from fedpace.sim.engines import EngineName
from fedpace.sim.engines.base import Engine, Inline
from fedpace.sim.trainers import Trainer


@dataclass(frozen=True)
class EngineOptions(Options):
    """The engine that the user asks for.

    Args:
        name: `inline`, `processes`, `ray`, or `auto`, which picks `inline` or `processes` for the model and the cohort.
        workers: number of parallel processes; 0 = one per core (of the cluster, for `ray`).
        ray_address: address of the Ray cluster to join, `auto` for the one that this machine belongs to; None = start
            one on this machine.
    """

    options_of: ClassVar[str] = "the engine"

    name: EngineName = "auto"
    workers: Annotated[int, AtLeast(0)] = 0
    ray_address: str | None = None

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        if self.ray_address is not None and self.name != "ray":
            raise InputError(f"a Ray address is for engine ray, but the engine is {self.name}")

    def choose(self, trainer: Trainer, cohort: int | None = None) -> EngineChoice:
        """Return the engine for this model and for cohorts of about this size; None = size not known."""
        if trainer.training.arithmetic == "numpy" and self.name in ("processes", "ray"):
            raise InputError(
                f"arithmetic numpy trains a whole cohort at once in this process, but engine {self.name} came: leave "
                "the engine out, and have several runs at a time with --jobs, or take arithmetic torch"
            )
        if self.name == "ray":
            return EngineChoice("ray", self.workers, "as asked for", self.ray_address)
        if trainer.device_kind != "cpu":
            return self._on_gpus(trainer)
        workers = self.workers or cores()
        if self.name == "inline":
            return EngineChoice("inline", 1, "as asked for")
        if self.name == "processes":
            return EngineChoice("processes", workers, "as asked for")
        if trainer.stackable:
            return EngineChoice("inline", 1, "the model is small: a whole cohort is trained at once")
        if cohort == 1:
            return EngineChoice("inline", 1, "one client a round leaves nothing to spread")
        if workers == 1:
            return EngineChoice("inline", 1, "there is one core")
        return EngineChoice("processes", workers, f"clients are trained one by one, on {workers} cores")

    def _on_gpus(self, trainer: Trainer) -> EngineChoice:
        """Return the engine for clients that are trained on GPUs: by default one process per GPU."""
        workers, device = self.workers or trainer.gpus, trainer.device_name
        if self.name == "processes":
            return EngineChoice("processes", workers, "as asked for", device=device)
        if self.name == "inline" or workers == 1:
            why = "as asked for" if self.name == "inline" else "one GPU trains one client at a time"
            return EngineChoice("inline", 1, why, device=device)
        return EngineChoice("processes", workers, f"clients are trained by {workers} processes in turn", device=device)


@dataclass(frozen=True)
class EngineChoice:
    """The engine that a run uses, and why."""

    name: Literal["inline", "processes", "ray"]
    workers: int
    why: str
    ray_address: str | None = None
    device: str = "cpu"
    """Where clients are trained, and in which precision if it is not float32."""

    def build(self, trainer: Trainer) -> Engine:
        """Return the engine; it acquires its resources at first use."""
        if self.name == "inline":
            return Inline(trainer)
        if self.name == "ray":
            from fedpace.sim.engines.ray import Ray  # the one module that needs ray

            return Ray(trainer, self.workers, address=self.ray_address)
        from fedpace.sim.engines.processes import Processes

        return Processes(trainer, self.workers)

    def facts(self) -> dict[str, Any]:
        """Return the choice as a dict for the run's record."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
