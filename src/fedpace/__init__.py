"""fedpace: whom to wait for in federated learning.

    import fedpace

    session = fedpace.Session(fedpace.make_selector("pace"), seed=0)

`import fedpace` needs NumPy and SciPy only. The simulator is in `fedpace.sim`, the pure numerics in `fedpace.numerics`.
"""

from __future__ import annotations

from typing import Any

from fedpace import registry
from fedpace.core import providers
from fedpace.core.errors import FedpaceError
from fedpace.core.rng import stream
from fedpace.core.session import Session
from fedpace.core.types import Cohort, Diagnostics, Need, Outcome, Probe, Report, Selection, Selector, View
from fedpace.delays.estimator import DelayEstimator
from fedpace.hosting.shared_model import SharedModel
from fedpace.moments.bank import MomentBank

__version__ = "0.1.0"

__all__ = [
    "Cohort",
    "Diagnostics",
    "FedpaceError",
    "MomentBank",
    "Need",
    "Outcome",
    "Probe",
    "Report",
    "Selection",
    "Selector",
    "Session",
    "SharedModel",
    "View",
    "__version__",
    "make_selector",
    "make_server",
    "stream",
]

providers.provide(
    selector_class=registry.selectors.__getitem__,
    server_class=registry.servers.__getitem__,
    moment_store=MomentBank,
    delay_estimator=DelayEstimator,
)


def make_selector(name: str = "pace", **options: Any) -> Any:
    """Return the scheme registered as `name`, such as `make_selector("random", k=5)`; ours where none is named."""
    return registry.selectors.make(name, **options)


def make_server(name: str = "average", **options: Any) -> Any:
    """Return the server step registered as `name`, such as `make_server("fedadam", lr=0.01)`."""
    return registry.servers.make(name, **options)
