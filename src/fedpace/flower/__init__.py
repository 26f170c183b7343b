"""fedpace on Flower: wrap the strategy that you have, and add one mod to the clients.

    from fedpace.flower import PacedServer, PacedStrategy, report_mod

    strategy = PacedStrategy(FedAvg(), state="state")                              # the server, in rounds
    strategy = PacedServer("pace-async", state="state")                            # or without
    app = ClientApp(mods=[report_mod(module="classifier")])                        # the clients

The only place of fedpace that imports flwr. docs/flower.md has the whole story.
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
