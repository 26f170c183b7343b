"""fedpace: client selection in federated learning.

    import fedpace

    session = fedpace.Session(fedpace.make_selector("pace"), seed=0)

`import fedpace` needs only NumPy and SciPy. `fedpace.compare` and `fedpace.simulate` load the simulator at first use,
which loads torch if a run trains with it. This module exports what README shows; look for the rest in modules such as
`fedpace.numerics` and `fedpace.moments`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedpace import registry
from fedpace._base.errors import FedpaceError, MissingExtraError
from fedpace.core import providers

if TYPE_CHECKING:
    from fedpace._base.rng import stream
    from fedpace.core.cohorts import cohort_size
    from fedpace.core.coordinator import Coordinator
    from fedpace.core.protocols import DelayEstimator, MomentStore
    from fedpace.core.roster import Settings
    from fedpace.core.session import Session
    from fedpace.core.types import (
        Cohort,
        Diagnostics,
        Need,
        Outcome,
        Probe,
        Report,
        Scheme,
        Selection,
        Selector,
        Stateless,
        View,
    )
    from fedpace.hosting.shared_model import SharedModel
    from fedpace.study import compare, simulate
    from fedpace.trust.robust import make_robust

__version__ = "0.1.0"

__all__ = [
    "Cohort",
    "Coordinator",
    "Diagnostics",
    "FedpaceError",
    "Need",
    "Outcome",
    "Probe",
    "Report",
    "Scheme",
    "Selection",
    "Selector",
    "Session",
    "Settings",
    "SharedModel",
    "Stateless",
    "View",
    "cohort_size",
    "compare",
    "make_robust",
    "make_selector",
    "make_server",
    "simulate",
    "stream",
]

_TYPES = ("Cohort", "Diagnostics", "Need", "Outcome", "Probe", "Report", "Scheme", "Selection", "Selector", "Stateless")
_HOMES = {
    **dict.fromkeys((*_TYPES, "View"), "fedpace.core.types"),
    "Coordinator": "fedpace.core.coordinator",
    "Session": "fedpace.core.session",
    "Settings": "fedpace.core.roster",
    "SharedModel": "fedpace.hosting.shared_model",
    "cohort_size": "fedpace.core.cohorts",
    "compare": "fedpace.study",
    "make_robust": "fedpace.trust.robust",
    "simulate": "fedpace.study",
    "stream": "fedpace._base.rng",
}
"""Exported name -> its module, which is imported at first use, so that `fedpace --help` is fast."""
_PARTS = ("delays", "hosting", "moments", "numerics", "planning", "server", "testing")
"""Submodules that are available after `import fedpace`."""


def _moment_bank() -> MomentStore:
    from fedpace.moments.bank import MomentBank

    return MomentBank()


def _delay_estimator() -> DelayEstimator:
    from fedpace.delays.estimator import DelayEstimator as Estimator

    return Estimator()


providers.provide(
    selector_class=registry.selectors.__getitem__,
    server_class=registry.servers.__getitem__,
    moment_store=_moment_bank,
    delay_estimator=_delay_estimator,
)


def __getattr__(name: str) -> Any:
    """Import an exported name or a submodule at first use."""
    if name in _PARTS:
        return import_module(f"fedpace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedpace' has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as cause:
        if _HOMES[name] != "fedpace.study":
            raise
        raise MissingExtraError("the simulator", "sim", cause.name or "pydantic") from cause
    globals()[name] = getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    """List all exported names, also those not imported yet."""
    return sorted({*globals(), *__all__, *_PARTS})


def make_selector(name: str = "pace", **options: Any) -> Any:
    """Return the scheme registered as `name`, such as `make_selector("random", k=5)`.

    Take `pace-async`; where training goes in rounds, take `pace`. A `Session` has rounds, so `pace` is the default. Use
    `make_selector("pace-async")` with a `Coordinator`, the simulator, Flower's `PacedServer` and NVFlare.
    """
    return registry.selectors.make(name, **options)


def make_server(name: str = "average", **options: Any) -> Any:
    """Return the server step registered as `name`, such as `make_server("fedadam", lr=0.01)`."""
    return registry.servers.make(name, **options)
