"""fedpace on NVFlare: the FedAvg controller with chosen clients and exact weights, and a note in each client's answer.

    job.to_server(PacedFedAvg(num_rounds=50, state="/var/lib/my-job"))

    reporter = Reporter()                                                         # in the training script
    flare.send(FLModel(params=..., metrics={"loss": loss}, meta=reporter.meta(received, features=rows)))

The only place of fedpace that imports nvflare. docs/nvflare.md has the whole story.
"""

from fedpace._base.errors import MissingExtraError

try:
    import nvflare  # noqa: F401
except ModuleNotFoundError as cause:
    raise MissingExtraError("fedpace on NVFlare", "nvflare", "nvflare") from cause

from fedpace.hosting.release import Privacy
from fedpace.nvflare.client import Reporter
from fedpace.nvflare.controller import PacedFedAvg

__all__ = ["PacedFedAvg", "Privacy", "Reporter"]
