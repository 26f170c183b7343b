"""examples/own_server.py for real: sockets, processes, a crash between step and save, clients that leave or lie."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import queue
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


def test_too_few_clients_end_with_a_sentence(tmp_path):
    ended = run(tmp_path, "--clients", "2")
    assert ended.returncode == 1
    assert ended.stderr.strip().startswith("error: random is asked for k = 3 clients")
    assert "Traceback" not in ended.stderr


def served(example, folder, others, rounds=20):
    """Serve three honest clients and others, each a function of (socket, lines): the model, and failures by name."""

    def other(port, name, behave):
        connect = socket.create_connection
        with contextlib.suppress(OSError), connect(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
            print(name, file=lines, flush=True)
            behave(lines)

    found = {}

    def serve(listener):
        found["weights"] = example.serve(listener, 3 + len(others), folder, rounds)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threads = [threading.Thread(target=example.client, args=(port, name), daemon=True) for name in ("0", "1", "2")]
        threads += [threading.Thread(target=other, args=(port, *each), daemon=True) for each in others.items()]
        threads.append(threading.Thread(target=serve, args=(listener,), daemon=True))
        for each in threads:
            each.start()
        for each in reversed(threads):
            each.join(timeout=120)
    assert "weights" in found, "the server ended early, or hangs"
    coordinator = example.fedpace.Coordinator.restore(folder)
    failures = dict(zip(coordinator.clients, coordinator.ledger.columns["failures"].tolist(), strict=True))
    return found["weights"], failures, coordinator


def saying(make):
    """Return a client that answers each task with the line that `make` returns."""

    def behave(lines):
        for line in lines:
            print(make(json.loads(line)), file=lines, flush=True)

    return behave


def answered(weights, **also):
    return saying(lambda task: json.dumps({"task": task["id"], "weights": weights, "loss": 1.0, **also}))


def test_a_client_that_hangs_up_is_lost_and_the_others_go_on(example, tmp_path):
    weights, failures, _ = served(example, tmp_path, {"9": lambda lines: lines.readline()})  # a task, never answered
    np.testing.assert_allclose(weights, [1.0, -2.0, 0.5], atol=0.25)
    assert failures == {"0": 0, "1": 0, "2": 0, "9": 1}


def test_who_sends_what_is_no_number_does_not_keep_the_model_from_arriving(example, tmp_path):
    others = {"nan": answered([math.nan] * 3), "brace": saying(lambda task: "{")}
    weights, failures, coordinator = served(example, tmp_path, others)
    np.testing.assert_allclose(weights, [1.0, -2.0, 0.5], atol=0.25)
    assert [failures[name] for name in ("0", "1", "2")] == [0, 0, 0]
    assert failures["brace"] == 1, "it was hung up on"
    assert failures["nan"] >= 1
    assert not coordinator.excluded


def test_who_sends_a_model_far_away_is_clipped_and_has_not_failed(example, tmp_path):
    """What it sends is a number. Of so few clients one may pull the model, but not to where it likes."""
    weights, failures, coordinator = served(example, tmp_path, {"far": answered([1e30] * 3)}, rounds=4)
    assert np.abs(weights).max() < 1e5
    assert failures == {"0": 0, "1": 0, "2": 0, "far": 0}
    assert not coordinator.excluded


NONSENSE = {
    "shape": answered([1.0, 2.0]),
    "words": answered(["one", "two", "three"]),
    "ragged": answered([1.0, [2.0], 3.0]),
    "huge": answered([10**400, 0, 0]),
    "loss": answered([0.0] * 3, loss=math.inf),
    "no loss": answered([0.0] * 3, loss=None),
    "unknown task": saying(lambda task: json.dumps({"task": 999, "weights": [0.0] * 3, "loss": 1.0})),
    "no task": saying(lambda task: json.dumps({"task": [], "weights": [0.0] * 3, "loss": 1.0})),
    "another's task": saying(lambda task: json.dumps({"task": max(0, task["id"] - 1), "weights": [0.0] * 3})),
    "list": saying(lambda task: "[]"),
    "null": saying(lambda task: "null"),
    "deep": saying(lambda task: "[" * 100_000),
}


def test_whoever_sends_nonsense_has_failed_and_nobody_else(example, tmp_path):
    weights, failures, _ = served(example, tmp_path, NONSENSE, rounds=60)
    assert [failures[name] for name in ("0", "1", "2")] == [0, 0, 0]
    assert all(failures[name] >= 1 for name in NONSENSE)
    np.testing.assert_allclose(weights, [1.0, -2.0, 0.5], atol=0.25)


def test_a_client_that_does_not_read_is_lost(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "SENDING", 5.0)  # long enough for the other clients on a busy machine
    dumps = json.dumps

    def long(order):  # far more than what sockets hold, as a real model is
        return dumps(order | {"padding": "x" * 20_000_000}) if "id" in order else dumps(order)

    class Json:
        dumps, loads = staticmethod(long), staticmethod(json.loads)

    monkeypatch.setattr(example, "json", Json)
    ended, serve = threading.Event(), example.serve

    def until_the_end(*arguments):
        try:
            return serve(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(example, "serve", until_the_end)
    _, failures, _ = served(example, tmp_path, {"9": lambda lines: ended.wait(60)}, rounds=3)
    assert failures == {"0": 0, "1": 0, "2": 0, "9": 1}


def test_who_says_no_name_or_anothers_is_let_go(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example, "GREETING", 0.5)
    inbox = queue.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        links = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        for link, said in zip(links, [b"a\n", b"", b"a\n", b"\xff\n"], strict=True):
            link.sendall(said)
        admitted = example.admit(listener, 4, inbox)
    assert list(admitted) == ["a"]
    for link in [*links, *admitted.values()]:
        link.close()
