"""fedpace: whom to wait for in federated learning.

    import fedpace

    session = fedpace.Session(fedpace.make_selector("pace"), seed=0)

`import fedpace` needs NumPy and SciPy only; `fedpace.compare` and `fedpace.simulate` load torch when they are first
named. What is exported here is what README shows; the rest has modules of its own, such as `fedpace.numerics` and
`fedpace.moments`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpace import registry
from fedpace.core import providers
from fedpace.core.cohorts import cohort_size
from fedpace.core.coordinator import Coordinator
from fedpace.core.errors import FedpaceError, MissingExtraError
from fedpace.core.rng import stream
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
from fedpace.delays.estimator import DelayEstimator
from fedpace.hosting.shared_model import SharedModel
from fedpace.moments.bank import MomentBank

if TYPE_CHECKING:
    from fedpace.study import compare, simulate

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
    "make_selector",
    "make_server",
    "simulate",
    "stream",
]

providers.provide(
    selector_class=registry.selectors.__getitem__,
    server_class=registry.servers.__getitem__,
    moment_store=MomentBank,
    delay_estimator=DelayEstimator,
)


def __getattr__(name: str) -> Any:
    """Load the simulator when it is first named: it needs torch."""
    if name not in ("compare", "simulate"):
        raise AttributeError(f"module 'fedpace' has no attribute {name!r}")
    try:
        from fedpace import study
    except ModuleNotFoundError as cause:
        raise MissingExtraError("the simulator", "sim", cause.name or "torch") from cause
    globals()[name] = getattr(study, name)
    return globals()[name]


def __dir__() -> list[str]:
    """Show the simulator although it is not loaded yet."""
    return sorted({*globals(), *__all__})


def make_selector(name: str = "pace", **options: Any) -> Any:
    """Return the scheme registered as `name`, such as `make_selector("random", k=5)`.

    Take `pace-async`; where training goes in rounds, take `pace`. A `Session` goes in rounds, so `pace` is what is
    returned where none is named; `make_selector("pace-async")` is for a `Coordinator`, the simulator, Flower's
    `PacedServer` and NVFlare.
    """
    return registry.selectors.make(name, **options)


def make_server(name: str = "average", **options: Any) -> Any:
    """Return the server step registered as `name`, such as `make_server("fedadam", lr=0.01)`."""
    return registry.servers.make(name, **options)
