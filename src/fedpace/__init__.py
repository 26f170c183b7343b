"""fedpace: client selection in federated learning.

    import fedpace

    session = fedpace.Session(fedpace.make_selector("pace"), seed=0)

This module exports everything that a user, a scheme author or a host author needs. `dir(fedpace)` lists it. Use
`Session` for synchronous rounds, and `Coordinator` with `Aggregator` or `SharedModel` for everything else. Modules that
are not documented are internal, and may change in any release.

`import fedpace` needs only NumPy and SciPy. `fedpace.compare` and `fedpace.simulate` load the simulator at first use,
which loads torch if a run trains with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpace._base import registry
from fedpace._base.errors import FedpaceError, MissingExtraError

if TYPE_CHECKING:
    from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
    from fedpace._base.rng import stream
    from fedpace.core.aggregation import Aggregator, Trained
    from fedpace.core.coordinator import Coordinator
    from fedpace.core.privacy import TrainingPrivacy
    from fedpace.core.rounds import cohort_size
    from fedpace.core.server_rule import Answers, ServerRule, Stack
    from fedpace.core.session import Session
    from fedpace.core.settings import Settings
    from fedpace.core.step_log import Phase, StepLog
    from fedpace.core.sums import Group, GroupSum, Opener, SumAggregator
    from fedpace.core.tasks import Actions, Apply, Move, Policy, Step, Task, Wait
    from fedpace.core.types import (
        Accumulator,
        Cohort,
        Diagnostics,
        InFlight,
        Need,
        Outcome,
        Probe,
        Report,
        Scheme,
        Selection,
        Selector,
        Settled,
        Stateless,
        View,
    )
    from fedpace.hosting.aggregator import AggregatorProcess, PrivateClient, TrustedAggregator
    from fedpace.hosting.shared_model import SharedModel
    from fedpace.sim.clock import Clock
    from fedpace.sim.fleet import Fleet
    from fedpace.sim.training import Training
    from fedpace.study import compare, simulate
    from fedpace.tracking import Tracker, Tracking
    from fedpace.trust.robust import make_robust

__version__ = "1.0.0rc1"

__all__ = [
    "FINITE",
    "Above",
    "Accumulator",
    "Actions",
    "Aggregator",
    "AggregatorProcess",
    "Answers",
    "Apply",
    "AtLeast",
    "Between",
    "Clock",
    "Cohort",
    "Coordinator",
    "Diagnostics",
    "FedpaceError",
    "Fleet",
    "Group",
    "GroupSum",
    "InFlight",
    "Move",
    "Need",
    "Opener",
    "Options",
    "Outcome",
    "Phase",
    "Policy",
    "PrivateClient",
    "Probe",
    "Report",
    "Scheme",
    "Selection",
    "Selector",
    "ServerRule",
    "Session",
    "Settings",
    "Settled",
    "SharedModel",
    "Stack",
    "Stateless",
    "Step",
    "StepLog",
    "SumAggregator",
    "Task",
    "Tracker",
    "Tracking",
    "Trained",
    "Training",
    "TrainingPrivacy",
    "TrustedAggregator",
    "View",
    "Wait",
    "cohort_size",
    "compare",
    "make_robust",
    "make_selector",
    "make_server",
    "registry",
    "simulate",
    "stream",
]

_EXPORTS = {
    "fedpace._base.rng": ("stream",),
    "fedpace._base.options": (
        "FINITE",
        "Above",
        "AtLeast",
        "Between",
        "Options",
    ),
    "fedpace.core.aggregation": (
        "Aggregator",
        "Trained",
    ),
    "fedpace.core.coordinator": ("Coordinator",),
    "fedpace.core.rounds": ("cohort_size",),
    "fedpace.core.server_rule": (
        "Answers",
        "ServerRule",
        "Stack",
    ),
    "fedpace.core.session": ("Session",),
    "fedpace.core.privacy": ("TrainingPrivacy",),
    "fedpace.core.settings": ("Settings",),
    "fedpace.core.sums": (
        "Group",
        "GroupSum",
        "Opener",
        "SumAggregator",
    ),
    "fedpace.core.step_log": (
        "Phase",
        "StepLog",
    ),
    "fedpace.core.tasks": (
        "Actions",
        "Apply",
        "Move",
        "Policy",
        "Step",
        "Task",
        "Wait",
    ),
    "fedpace.core.types": (
        "Accumulator",
        "Cohort",
        "Diagnostics",
        "InFlight",
        "Need",
        "Outcome",
        "Probe",
        "Report",
        "Scheme",
        "Selection",
        "Selector",
        "Settled",
        "Stateless",
        "View",
    ),
    "fedpace.hosting.aggregator": (
        "AggregatorProcess",
        "PrivateClient",
        "TrustedAggregator",
    ),
    "fedpace.hosting.shared_model": ("SharedModel",),
    "fedpace.sim.clock": ("Clock",),
    "fedpace.sim.fleet": ("Fleet",),
    "fedpace.sim.training": ("Training",),
    "fedpace.study": (
        "compare",
        "simulate",
    ),
    "fedpace.tracking": (
        "Tracker",
        "Tracking",
    ),
    "fedpace.trust.robust": ("make_robust",),
}
"""Module -> the names that it exports here. It is imported at first use, so that `fedpace --help` is fast."""
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}
_NEED_EXTRA = ("fedpace.study", "fedpace.sim.clock", "fedpace.sim.fleet", "fedpace.sim.training")
_PARTS = ("delays", "hosting", "moments", "numerics", "planning", "server", "testing")
"""Submodules that are available after `import fedpace`."""


def __getattr__(name: str) -> Any:
    """Import an exported name or a submodule at first use."""
    if name in _PARTS:
        return import_module(f"fedpace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedpace' has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as cause:
        if _HOMES[name] not in _NEED_EXTRA:
            raise
        raise MissingExtraError("the simulator", "sim", cause.name or "pydantic") from cause
    globals()[name] = getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    """List the exported names, also those not imported yet, and no others."""
    return sorted(__all__)


def make_selector(name: str = "pace", **options: Any) -> Any:
    """Return the scheme registered as `name`, such as `make_selector("random", k=5)`.

    Use `pace-async`. For synchronous rounds, use `pace`. A `Session` has rounds, so `pace` is the default here;
    `pace-async` runs with a `Coordinator`, in the simulator, on Flower's `PacedServer` and on NVFlare.
    """
    return registry.selectors.make(name, **options)


def make_server(name: str = "average", **options: Any) -> Any:
    """Return the server rule registered as `name`, such as `make_server("fedadam", lr=0.01)`."""
    return registry.servers.make(name, **options)
