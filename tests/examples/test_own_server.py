"""examples/own_server.py for real: sockets, processes, a crash between step and save, a client that leaves."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "own_server.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("own_server", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder, *arguments):
    command = [sys.executable, str(SCRIPT), str(folder), "--rounds", "12", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_after_a_crash_it_ends_with_the_same_model(tmp_path):
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    crashed = run(tmp_path / "crashed", "--crash-after", "7")
    assert crashed.returncode == 1
    assert (tmp_path / "crashed" / "model-6.npy").exists()
    assert not (tmp_path / "crashed" / "model-7.npy").exists()
    resumed = run(tmp_path / "crashed")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) == json.loads(whole.stdout)
    np.testing.assert_allclose(json.loads(whole.stdout)["weights"], [1.0, -2.0, 0.5], atol=0.15)


def test_a_client_that_hangs_up_is_lost_and_the_others_go_on(example, tmp_path):
    def leaver(port):
        with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
            print("9", file=lines, flush=True)
            lines.readline()  # the first task, never answered

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients = [threading.Thread(target=example.client, args=(port, name)) for name in ("0", "1", "2")]
        clients.append(threading.Thread(target=leaver, args=(port,)))
        for each in clients:
            each.start()
        weights = example.serve(listener, 4, tmp_path, 20)
    for each in clients:
        each.join()
    np.testing.assert_allclose(weights, [1.0, -2.0, 0.5], atol=0.25)
    coordinator = example.fedpace.Coordinator.restore(tmp_path)
    by_client = dict(zip(coordinator.clients, coordinator.ledger.columns["failures"].tolist(), strict=True))
    assert by_client == {"0": 0, "1": 0, "2": 0, "9": 1}
