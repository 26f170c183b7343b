"""The algorithms that the baseline compares, on one virtual clock."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

import fedpace
from fedpace.flower import PacedServer, reported_seconds


class TimedFedAvg(FedAvg):
    """Flower's FedAvg with a clock: a round lasts as long as its slowest node."""

    now = 0.0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the reported seconds of the slowest node, and aggregate as ever."""
        replies = list(replies)
        self.now += max((reported_seconds(reply) for reply in replies if not reply.has_error()), default=0.0)
        return super().aggregate_train(server_round, replies)


def make_strategy(config: Any, nodes: int) -> TimedFedAvg | PacedServer:
    """Return the algorithm that the configuration names."""
    name, seed, cohort = str(config["algorithm"]), int(config["seed"]), int(config["cohort"])
    if name == "fedavg":
        random.seed(seed)  # Flower samples nodes with the global generator
        return TimedFedAvg(fraction_train=cohort / nodes, min_train_nodes=1, fraction_evaluate=0.0)
    options = {"buffer": cohort} if name == "fedbuff" else {}
    return PacedServer(fedpace.make_selector(name, **options), seed=seed, clock="reported")


def now(strategy: TimedFedAvg | PacedServer) -> float:
    """Return the virtual seconds since the start."""
    return strategy.now if isinstance(strategy, TimedFedAvg) else strategy.coordinator.now
