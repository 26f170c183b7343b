"""fedpace on Flower: wrap your strategy on the server, and add one mod to the clients.

    from fedpace.flower import PacedServer, PacedStrategy, report_mod

    strategy = PacedStrategy(FedAvg(), state="state")                              # a server with rounds
    strategy = PacedServer("pace-async", state="state")                            # an asynchronous server
    app = ClientApp(mods=[report_mod(module="classifier")])                        # the clients

Only this package imports flwr. See docs/flower.md.
"""

from fedpace._base.errors import MissingExtraError

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as cause:
    raise MissingExtraError("fedpace on Flower", "flower", "flwr") from cause

from fedpace.flower import versions  # noqa: F401  (first: it says so where Flower is too old for what follows)
from fedpace.flower.client import report_mod
from fedpace.flower.server import PacedServer
from fedpace.flower.strategy import PacedStrategy
from fedpace.flower.wire import reported_seconds
from fedpace.hosting.release import Privacy

__all__ = ["PacedServer", "PacedStrategy", "Privacy", "report_mod", "reported_seconds"]
