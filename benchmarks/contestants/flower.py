"""Flower's simulation on Ray, with the client of the plain loops.

    python flower.py WORKLOAD [--channels-last]

Its own FedAvg runs the rounds. The strategy below only names the cohort, where FedAvg would draw one, and waits for its
turn there. The test set is evaluated where Flower's guides do it, in the server app.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from client import build_model, correct, loaded, samples, train
from turns import Turns
from workload import Workload, load

# Before Flower and Ray are imported: both read these once.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

import contextlib

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class FailedError(Exception):
    """A client raised: Flower would go on without it, and the time of the round would mean nothing."""


class OverError(Exception):
    """The contest is over."""


class GivenCohorts(FedAvg):
    """FedAvg over the cohorts of a workload, every client weighing the same."""

    def __init__(self, workload: Workload, turns: Turns) -> None:
        super().__init__(fraction_evaluate=0.0, weighted_by_key="weight")
        self.workload = workload
        self.turns = turns

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the round's cohort, when it is this contestant's turn."""
        if not self.turns.begin():
            raise OverError
        cohort = self.workload.cohort(server_round - 1)
        return [
            Message(
                RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client, "round": server_round})}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for node, client in zip(grid.get_node_ids(), cohort, strict=False)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the cohort's models."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise FailedError(reply.error.reason)
        return super().aggregate_train(server_round, replies)


def client_app(folder: Path, *, channels_last: bool) -> ClientApp:
    """Return the client: a new model from the message, local epochs, and the model in a message."""
    app = ClientApp()
    place = str(folder.resolve())

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        workload = loaded(place)
        client, step = int(message.content["config"]["client"]), int(message.content["config"]["round"])
        model = build_model(workload, channels_last=channels_last)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = train(model, *samples(workload, client), workload.options, seed=step * workload.clients + client)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"loss": loss, "weight": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def server_app(workload: Workload, turns: Turns, *, channels_last: bool) -> ServerApp:
    """Return the server: FedAvg, and the test after every round."""
    app = ServerApp()
    test = samples_of_test(workload)

    @app.main()
    def _main(grid: Grid, context: Context) -> None:
        model = build_model(workload, channels_last=channels_last)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            model.load_state_dict(arrays.to_torch_state_dict())
            accuracy = correct(model, *test) / len(workload.test_targets)
            if server_round:
                turns.end(accuracy)
            return MetricRecord({"accuracy": accuracy})

        with contextlib.suppress(OverError):
            GivenCohorts(workload, turns).start(
                grid, ArrayRecord(model.state_dict()), num_rounds=1_000_000, evaluate_fn=evaluate
            )

    return app


def samples_of_test(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the test set in memory."""
    return torch.tensor(workload.test_inputs), torch.tensor(workload.test_targets)


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    turns, workload = Turns(), load(options.workload)
    backend: dict[str, Any] = {
        "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
    }
    run_simulation(
        server_app(workload, turns, channels_last=options.channels_last),
        client_app(options.workload, channels_last=options.channels_last),
        num_supernodes=workload.clients,
        backend_config=backend,
    )


if __name__ == "__main__":
    main()
