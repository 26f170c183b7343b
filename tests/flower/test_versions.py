"""The gate to Flower's versions: what differs between them, and fedpace on each of them for real."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from federations import Federation, finish, start_quickly
from flower_wheels import unpacked_wheel

pytest.importorskip("flwr")

from fedpace._base.errors import InputError, MissingExtraError
from fedpace.flower import PacedServer
from fedpace.flower import grid as versions

HERE = Path(__file__).resolve().parent
TRIED = ("1.21.0", "1.30.0", "1.41.0", "1.42.0")
"""The oldest, one between, the one that the other tests run with, and the newest."""


class Refusing:
    """Takes every message but those to node 2; says so as one version or another does."""

    def __init__(self, said):
        self.said = said

    def push_messages(self, messages):
        identifiers = []
        for number, message in enumerate(messages):
            message.metadata.message_id = f"id-{number}"
            identifiers.append(None if message.metadata.dst_node_id == 2 else f"id-{number}")
        return self.said(identifiers)


@pytest.mark.parametrize(
    "said",
    [
        lambda ids: ids,  # the deployment's grid: None
        lambda ids: ["" if i is None else i for i in ids],  # the same, as it comes over the wire
        lambda ids: [i for i in ids if i is not None],  # the simulation's: it leaves them out
        lambda ids: iter(ids),
    ],
    ids=["None", "empty", "left out", "an iterator"],
)
def test_a_refused_message_is_known_by_its_place(said):
    messages = [SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node, message_id="")) for node in (1, 2, 3)]
    assert versions.push(Refusing(said), messages) == ["id-0", "", "id-2"]


def test_a_payload_that_is_too_large_reaches_nobody():
    messages = [SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node, message_id="")) for node in (1, 3)]
    assert versions.push(Refusing(lambda ids: []), messages) == ["", ""]


@pytest.mark.parametrize("name", ["message_ids", "msg_ids"])
def test_replies_are_pulled_whatever_the_argument_is_called(name):
    grid = {}
    exec(f"def pull_messages({name}): return iter({name})", grid)
    assert versions.pull(SimpleNamespace(**grid), {"a": 1, "b": 2}) == ["a", "b"]


def test_what_a_version_lacks_is_said_at_the_start(flower):
    grid = SimpleNamespace(get_node_ids=list, push_messages=list)
    with pytest.raises(InputError, match=r"fedpace works with Flower 1\.21 and later.*has no pull_messages"):
        PacedServer("fedbuff").start(grid, flower.arrays([0.0]))


@pytest.mark.parametrize(("lacks", "said"), [("flwr.serverapp.strategy", "an older version is here"), ("flwr", "")])
def test_a_flower_that_is_missing_or_too_old_is_refused_with_a_sentence(monkeypatch, lacks, said):
    for name in [name for name in sys.modules if name.startswith("fedpace.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacks, None)
    with pytest.raises(MissingExtraError, match=rf"{said}.*needs 'flwr>=1\.21'.*fedpace\[flower\]"):
        importlib.import_module("fedpace.flower")


@pytest.mark.parametrize(
    ("found", "said"), [("1.21.0", False), ("1.42.3", False), ("1.43.0.dev1", True), ("2.0", True)]
)
def test_a_flower_that_nobody_tried_is_said_at_the_start(monkeypatch, flower, caplog, found, said):
    monkeypatch.setattr(versions, "version", lambda name: found)
    with caplog.at_level("WARNING", "flwr"):
        versions.check(flower.grid())
    assert ("newer than 1.42" in caplog.text) == said


@pytest.mark.slow
@pytest.mark.flower
def test_an_old_version_for_real(tmp_path):
    path = os.pathsep.join([str(unpacked_wheel("1.20.0", tmp_path)), *filter(None, sys.path)])
    command = [sys.executable, "-c", "import fedpace.flower"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert "MissingExtraError: fedpace on Flower (an older version is here) needs" in done.stderr


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("version", TRIED)
def test_fedpace_on_this_version(version, tmp_path):
    """Its own wheel, before the installed one on the path: the client's side, rounds, and none."""
    flower = unpacked_wheel(version, tmp_path)
    path = os.pathsep.join([str(flower), *filter(None, sys.path)])
    names = ("test_client.py", "test_strategy.py", "test_warmups.py", "test_asking.py", "test_without_rounds.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(HERE / name) for name in names)]
    command += [f"{HERE / 'test_parity.py'}::test_both_hosts_do_without_rounds_alike"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.parametrize("scheme", ["random", "pace-async"])
def test_a_deployment_of_the_newest_version(tmp_path, scheme):
    """A SuperLink and SuperNodes of it, in rounds and without; other tests have the installed one's."""
    gate, state = tmp_path / "gate", tmp_path / "state"
    gate.mkdir()
    with Federation(tmp_path / "federation", app=HERE / "faults_app") as federation:
        path = [str(unpacked_wheel(TRIED[-1], tmp_path)), *filter(None, sys.path)]
        federation.environment["PYTHONPATH"] = os.pathsep.join(path)
        federation.start(["flwr", "--version"], "version").wait(600)
        assert TRIED[-1] in federation.output("version")
        start_quickly(federation)
        federation.superlink()
        for partition in range(4):
            federation.supernode(partition, 4)
        rounds = finish(federation, state, selector=scheme, state=str(state), gate=str(gate), num_server_rounds=3)
    assert [entry.number for entry in rounds] == [1, 2, 3]
    assert not any(entry.failed for entry in rounds)
