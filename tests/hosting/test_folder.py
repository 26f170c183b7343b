"""A server's folder that is deleted, full or edited, and a server that is told to end."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedpace import Settings, make_selector
from fedpace._base.errors import InputError, StorageError
from fedpace.core.types import Need
from fedpace.hosting.live_server import Host, Server
from fedpace.hosting.replies import Note, Raw
from fedpace.records.run import read_run

CLIENTS = list("abcd")


class Wire:
    """Everybody answers at once, with a model that is closer to 1."""

    def __init__(self, server):
        self.server, self.out = server, []

    def send(self, tasks):
        self.out += [(task, self.server.shared.arrays) for task in tasks]

    def collect(self):
        out, self.out = self.out, []
        for task, sent in out:
            trained = {name: array + 0.1 * (1 - array) for name, array in sent.items()}
            yield task.id, partial(lambda told: told, Raw({"seconds": 1.0}, {"loss": 1.0}, 10, trained))

    def wait(self, seconds):
        raise AssertionError("everybody has answered")


def play(folder, steps, after=lambda step: None):
    host = Host("test", logging.getLogger("test"), {}, frozenset(Need))
    server = Server(make_selector("random", k=2), Settings(seed=0), host, clock="reported", folder=folder)
    server.share({"w": np.zeros(3)} if server.saved is None else server.saved.model)
    server.membership.update({name: Note(name=name) for name in CLIENTS})
    wire = Wire(server)
    with server.run_context():
        while server.coordinator.step < steps:
            step = server.next_step(wire, CLIENTS)
            moved = server.apply(step)
            server.stepped(step, server.shared.arrays, moved=moved)
            server.files.evaluated({"accuracy": 0.1 * server.coordinator.step})
            after(server.coordinator.step)
    return server


def deleting(folder, when, how=shutil.rmtree):
    return lambda step: how(folder) if step == when else None


def emptied(folder):
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("how", [shutil.rmtree, emptied, lambda folder: folder.rename(folder.with_name("moved"))])
@pytest.mark.parametrize(("when", "then"), [(3, 4), (6, 6)], ids=["before a step", "before the end"])
def test_a_deleted_folder_is_an_error_and_the_server_can_be_started_again(tmp_path, how, when, then):
    folder = tmp_path / "state"
    whole = play(tmp_path / "whole", 9).shared.arrays["w"]
    with pytest.raises(
        StorageError, match=f"deleted or replaced.*after step {then} was written anew: start the server"
    ):
        play(folder, 6, deleting(folder, when, how))
    with pytest.raises(ZeroDivisionError):
        play(folder, 9, lambda step: 1 / (step - 7))  # a restart, and another one
    np.testing.assert_allclose(play(folder, 9).shared.arrays["w"], whole)
    run = read_run(folder)
    assert [entry.number for entry in run.rounds] == list(range(then, 10))
    assert run.info.status == "finished"


def test_a_folder_that_is_another_servers_by_now_is_not_touched(tmp_path):
    folder = tmp_path / "state"

    def replaced(folder):
        shutil.rmtree(folder)
        play(folder, 1)

    with pytest.raises(StorageError, match="holds another server's state now"):
        play(folder, 6, deleting(folder, 3, replaced))
    assert read_run(folder).rounds[-1].number == 1


def test_a_folder_that_is_deleted_before_the_first_step(tmp_path):
    folder = tmp_path / "state"
    host = Host("test", logging.getLogger("test"), {}, frozenset(Need))
    server = Server(make_selector("random", k=2), Settings(seed=0), host, folder=folder)
    shutil.rmtree(folder)
    with pytest.raises(StorageError, match="No step had been made: start the server again"), server.run_context():
        pass


def test_a_record_that_was_removed_says_how_to_go_on(tmp_path):
    play(tmp_path, 3)
    (tmp_path / "rounds.jsonl").unlink()
    with pytest.raises(InputError, match=r"or remove rounds\.jsonl and run\.json, and the server goes on"):
        play(tmp_path, 5)
    (tmp_path / "run.json").unlink()
    play(tmp_path, 5)
    assert [entry.number for entry in read_run(tmp_path).rounds] == [3, 4, 5]


@pytest.mark.parametrize("victim", ["model-3.npz", "paced.json", "session.json", "rounds.jsonl", "run.json"])
def test_a_full_disk_is_a_sentence_and_what_was_recorded_is_intact(tmp_path, monkeypatch, victim):
    play(tmp_path, 2)
    opened, pwrite = Path.open, os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(path, *arguments, **options):
        return full() if path.name.startswith(f".{victim}.") else opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    if victim == "rounds.jsonl":
        monkeypatch.setattr(
            os, "pwrite", lambda file, line, place: full() if b"number" in line else pwrite(file, line, place)
        )
    with pytest.raises(StorageError, match=r"cannot write .*: No space left.*is intact: make room, and go on"):
        play(tmp_path, 5)
    monkeypatch.undo()
    play(tmp_path, 5)
    assert [entry.number for entry in read_run(tmp_path).rounds] == [0, 1, 2, 3, 4, 5]


def test_a_metric_that_was_edited_is_noticed(tmp_path):
    play(tmp_path, 4)
    path = tmp_path / "rounds.jsonl"
    lines = path.read_text().splitlines()
    assert json.loads(lines[2])["metric"] == pytest.approx(0.2)
    path.write_text("\n".join([*lines[:2], lines[2].replace('"metric":0.2', '"metric":0.9'), *lines[3:]]) + "\n")
    with pytest.raises(InputError, match=r"line 3 of .*rounds\.jsonl is not what was recorded"):
        play(tmp_path, 6)
    path.write_text("\n".join(lines) + "\n")
    play(tmp_path, 6)


SERVE = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("folder", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def after(step):
    if step == 2:
        print("two", flush=True)
        time.sleep(60)
module.play(Path(sys.argv[2]), 5, after)
"""


def test_a_server_that_is_terminated_says_that_it_was_interrupted(tmp_path):
    command = [sys.executable, "-c", SERVE, __file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "two\n"
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode != 0
    assert read_run(tmp_path).info.status == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    play(tmp_path, 5)
    assert read_run(tmp_path).info.status == "finished"
