"""`synthetic`: the DelayHet paper's synthetic delays, section 6.1.

    tau_i = MS / c_i + tau_comp,i      c_i ~ U(200 KB/s, 5 MB/s)      tau_comp,i ~ U(15, 100) s

MS is the size of the model. Table 3 varies the upper end of the link speed: 1, 5 and 10 MB/s, such as `link_speed =
[200e3, 1e6]`. As in the paper, both parts are drawn once and kept for all rounds, and the model counts once, not down
and up. `jitter` (ours) optionally adds a log-normal factor per round. KB and MB are powers of ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpace._base.options import AtLeast, Options
from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import (
    MeanWithJitter,
    NonNegative,
    Positive,
    Sigma,
    check_clients,
    check_model_bytes,
    checked_range,
)


@dataclass(frozen=True)
class SyntheticDelays(Options):
    """Uniform link speeds and compute times, the same in every round."""

    name: ClassVar[str] = "synthetic"

    link_speed: tuple[float, float] = (200e3, 5e6)
    """Range of link speeds in bytes per second."""
    compute: tuple[float, float] = (15.0, 100.0)
    """Range of compute times in seconds."""
    model_bytes: Annotated[int, AtLeast(0)] = 0
    """Bytes to send, if not the size of the trained model, for example to reproduce a table; 0 = the trained model."""
    jitter: Sigma = 0.0
    """Sigma of the log-normal factor per round, which has mean 1; 0 = constant, as in the paper."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        super().__post_init__()
        object.__setattr__(self, "link_speed", checked_range(self.link_speed, Positive, "link_speed of synthetic"))
        object.__setattr__(self, "compute", checked_range(self.compute, NonNegative, "compute of synthetic"))

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients that exchange a model of `model_bytes`."""
        clients = check_clients(clients)
        own = check_model_bytes(model_bytes)
        size = self.model_bytes or own
        speed = stream(seed, "delay", self.name, "link").uniform(*self.link_speed, clients)
        compute = stream(seed, "delay", self.name, "compute").uniform(*self.compute, clients)
        return MeanWithJitter(size / speed + compute, compute, sigma=self.jitter, seed=seed, what="synthetic")
