"""Parts of the federations in one process that the tests of the Flower strategy train."""

from __future__ import annotations

import numpy as np

from fedpace.flower import report_mod

NODES = 10


def mod(flower, seconds=lambda client: 1.0 + client):
    """Reports features, and seconds by the number of the client."""
    return report_mod(
        features=lambda message, context: flower.rows(context.node_config["partition-id"]),
        delay=lambda message, context, measured: seconds(context.node_config["partition-id"]),
    )


def start(flower):
    """The first model."""
    return flower.arrays(np.linspace(-1, 1, 7), np.full((3, 2), 0.1))


def as_numpy(record):
    """The arrays of a model by their names."""
    return {key: array.numpy() for key, array in record.items()}


def fleet(flower, count=6, *, offset=100, apps=None):
    """Nodes whose clients have targets of their own; `apps` by client, where one is another."""
    grid = flower.grid()
    for client in range(count):
        app = (apps or {}).get(client) or flower.app([mod(flower)], target=1.0 + client)
        grid.add(offset + client, app, **{"partition-id": client})
    return grid
