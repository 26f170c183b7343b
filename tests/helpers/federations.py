"""Real federations of Flower's on loopback, and what a server left in its folder."""

import importlib.util
import json
import time
from pathlib import Path

import pytest

from fedpace.core.coordinator import Coordinator
from fedpace.records.run import read_run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower_digits"
PATIENCE = 1200
"""Seconds after which a federation that shows no progress is given up. Where other programs keep the cores busy, Flower
took more than ten minutes to connect three nodes."""


def _local():
    """The example's module that starts and stops federations."""
    spec = importlib.util.spec_from_file_location("flower_digits_local", EXAMPLE / "local.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


local = _local()
Federation, stop = local.Federation, local.stop


def wait_for(condition, federation, run, log="run"):
    """Wait until something has happened, not for a time; a server that has ended makes nothing happen any more."""
    for _ in range(PATIENCE):
        ended = run.poll() is not None
        if condition():
            return
        if ended:
            pytest.fail(f"it ended too soon:\n{federation.output(log)[-5000:]}")
        time.sleep(1)
    pytest.fail(f"no progress in {PATIENCE} s:\n{federation.output(log)[-5000:]}")


def diary(folder):
    """The rounds that were recorded, without the initial model."""
    return read_run(folder).rounds[1:] if (folder / "run.json").exists() else ()


def saved(folder):
    """The coordinator that a server left: the current one, whatever a kill left beside it."""
    return Coordinator.restore(folder / json.loads((folder / "paced.json").read_text())["session"])


def column(folder, name):
    """What the saved coordinator knows of each client."""
    coordinator = saved(folder)
    return dict(zip(coordinator.clients, coordinator.ledger.columns[name].tolist(), strict=True))
