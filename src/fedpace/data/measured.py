"""`MeasuredData`: a data set whose runs are judged by a user's metric in place of accuracy or loss."""

from __future__ import annotations

from typing import Literal

from fedpace.data.federated import DataConfig, FederatedData

Better = Literal["higher", "lower"]


class MeasuredData:
    """A data set whose runs are judged by a user's metric.

    Args:
        config: the data set.
        metric: name of the metric.
        better: whether `higher` or `lower` is better.
    """

    def __init__(self, config: DataConfig, metric: str, better: Better) -> None:
        self.config, self.metric = config, metric
        self.direction: Literal["up", "down"] = "up" if better == "higher" else "down"

    @property
    def name(self) -> str:
        """Registered name of the data set."""
        return self.config.name

    def build(self, *, seed: int) -> FederatedData:
        """Return the data of `seed`."""
        return self.config.build(seed=seed)
