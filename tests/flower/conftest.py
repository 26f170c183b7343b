"""A federation in one process: Flower's own Grid surface, real ClientApps behind it, no network and no Ray."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from flower_fleet import NODES, mod
from flower_grid import Tools


@pytest.fixture
def flower(monkeypatch):
    """Inside a task, as Flower runs a ServerApp: messages take their sender from there."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ModuleNotFoundError:
        return Tools  # of older versions of Flower, messages have no such sender
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return Tools


@pytest.fixture
def grid(flower):
    """Ten clients with equal counts and targets of their own, which all report."""
    grid = flower.grid()
    for client in range(NODES):
        app = flower.app([mod(flower)], target=1.0 + 0.37 * client)
        grid.add(500 + client, app, **{"partition-id": client})
    return grid
