"""fedpace on Flower: wrap your strategy on the server, and add one mod to the clients.

    from fedpace.flower import PacedServer, PacedStrategy, report_mod

    strategy = PacedStrategy(FedAvg(), state="state")                              # a server with rounds
    strategy = PacedServer("pace-async", state="state")                            # an asynchronous server
    app = ClientApp(mods=[report_mod(module="classifier")])                        # the clients

Only this package imports flwr. See docs/flower.md.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedpace._base.errors import MissingExtraError

try:
    import flwr.serverapp.strategy  # noqa: F401  (the Message API, since Flower 1.21)
except ImportError as cause:
    found = " (an older version is here)" if find_spec("flwr") else ""
    raise MissingExtraError(f"fedpace on Flower{found}", "flower", "flwr>=1.21") from cause

from fedpace.flower.mods import report_mod, sealed_mod
from fedpace.flower.paced_server import PacedServer
from fedpace.flower.strategy import PacedStrategy
from fedpace.flower.wire import local_steps, reported_seconds
from fedpace.hosting.replies import Privacy

if TYPE_CHECKING:
    from fedpace.flower.secure import SecureRounds, secure_mod

__all__ = [
    "PacedServer",
    "PacedStrategy",
    "Privacy",
    "SecureRounds",
    "local_steps",
    "report_mod",
    "reported_seconds",
    "sealed_mod",
    "secure_mod",
]


def __getattr__(name: str) -> Any:
    """Import what uses SecAgg+ at first use: it needs parts of Flower that the rest does not."""
    if name not in ("SecureRounds", "secure_mod"):
        raise AttributeError(f"module 'fedpace.flower' has no attribute {name!r}")
    from fedpace.flower import secure

    return getattr(secure, name)
