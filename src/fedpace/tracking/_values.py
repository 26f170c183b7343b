"""The values of a round that trackers show, under the same names in every tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpace.core.types import ClientId
from fedpace.records.round import Round
from fedpace.records.run import RunInfo
from fedpace.tracking._base import TrackedRun


def values_of(current: Round, metric: str = "accuracy") -> dict[str, float]:
    """Return the values of a round; values that are not known are left out."""
    failed: set[ClientId] = set(current.failed)
    found: dict[str, float | None] = {
        "loss": current.loss,
        metric: current.metric,
        "train_loss": current.train_loss,
        "clock_seconds": current.clock,
        "round_seconds": current.seconds,
        "overhead_seconds": current.overhead,
        "clients": len(current.clients),
        "failed_clients": len(failed),
        "client_seconds": current.work,
        "wasted_tasks": current.wasted,
        "bytes_down": current.bytes_down,
        "bytes_up": current.bytes_up,
        "step_factor": current.step_factor,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def described(info: RunInfo) -> TrackedRun:
    """Return the description of a recorded run."""
    config = {
        "scheme": info.selector,
        "seed": info.seed,
        "target": info.target,
        "options": info.options,
        "server": info.server,
        "robust": info.robust,
        "experiment": {name: value for name, value in info.experiment.items() if name not in ("selectors", "track")},
        "versions": info.versions,
        "commit": info.commit,
    }
    return TrackedRun(f"{info.label}, seed {info.seed}", str(info.experiment.get("name", "fedpace")), flat(config))


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested options as one table with names such as `training.lr`; options that are None are left out."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif value is not None:
            found[f"{before}{name}"] = value
    return found
