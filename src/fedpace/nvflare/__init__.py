"""fedpace on NVFlare: a FedAvg controller that selects and weights clients, and a `Reporter` for the client script.

    job.to_server(PacedFedAvg(num_rounds=50, state="/var/lib/my-job"))

    reporter = Reporter()                                                         # in the training script
    flare.send(FLModel(params=..., metrics={"loss": loss}, meta=reporter.meta(received, features=rows)))

Only this package imports nvflare. See docs/nvflare.md.
"""

from fedpace._base.errors import MissingExtraError

try:
    import nvflare  # noqa: F401
except ModuleNotFoundError as cause:
    raise MissingExtraError("fedpace on NVFlare", "nvflare", "nvflare") from cause

from fedpace.hosting.replies import Privacy
from fedpace.nvflare.client import Reporter
from fedpace.nvflare.controller import PacedFedAvg

__all__ = ["PacedFedAvg", "Privacy", "Reporter"]
