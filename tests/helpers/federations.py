"""Real federations of Flower's on loopback, and what a server left in its folder."""

import importlib.util
import json
import time
from functools import partial
from pathlib import Path

import pytest

from fedpace._base.errors import InputError
from fedpace.core.coordinator import Coordinator
from fedpace.hosting.state_folder import FolderLock
from fedpace.records.run import read_info, read_run

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1200
"""Seconds after which a federation that shows no progress is given up. Where other programs keep the cores busy, Flower
took more than ten minutes to connect three nodes."""
ENDED = 300
"""Seconds that remain when `flwr run` has ended."""
RAY_WAS_LATE, ATTEMPTS = "An exception occured!! The current node timed out during startup", 4
"""Ray gives up a node that has not begun after 30 s, which is no option of it, and Flower's simulation with it."""


def _module(path):
    """A module that is no part of a package: the example's, and the benchmarks'."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_local = _module(ROOT / "examples" / "flower_digits" / "local.py")
Federation, stop = _local.Federation, _local.stop
start_quickly = _module(ROOT / "benchmarks" / "lib" / "flower_starter.py").start_quickly


def wait_for(condition, federation, run, log="run"):
    """Wait until something has happened, not for a time.

    Where a machine is busy, `flwr run` loses the stream of the log and ends, while the server goes on: its end says
    only that there is less to wait for.
    """
    patience = PATIENCE
    while patience > 0:
        if condition():
            return
        patience = patience - 1 if run.poll() is None else min(patience - 1, ENDED)
        time.sleep(1)
    pytest.fail(f"no progress, `flwr run` ended with {run.poll()}:\n{federation.output(log)[-5000:]}")


def run_until(condition, federation, log="run", **config):
    """Start the app and wait until something has happened; start it again where only Ray was late."""
    for attempt in range(1, ATTEMPTS + 1):
        run = federation.launch(log, **config)
        late = partial(_late, federation, log, attempt)
        wait_for(lambda late=late: condition() or late(), federation, run, log)
        if condition():
            return run
        run.wait()
    return pytest.fail(f"Ray did not start in {ATTEMPTS} attempts")


def _late(federation, log, attempt):
    return federation.output(log).count(RAY_WAS_LATE) >= attempt


def finish(federation, folder, log="run", **config):
    """Run the app until its server's folder says that it is done, and return the rounds."""
    run_until(lambda: (folder / "run.json").exists() and read_info(folder).ended, federation, log, **config)
    return diary(folder)


def let_go(folder):
    """Whether no server has the folder: those that had it are dead, and write nothing more."""
    try:
        FolderLock(folder).release()
    except InputError:
        return False
    return True


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
