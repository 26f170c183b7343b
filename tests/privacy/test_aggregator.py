"""A trusted aggregator: real processes on loopback, and what it refuses to a server that asks for too much."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest

from fedpace import (
    AggregatorProcess,
    Coordinator,
    Group,
    Outcome,
    PrivateClient,
    Settings,
    SumAggregator,
    Task,
    TrainingPrivacy,
    TrustedAggregator,
    make_selector,
)
from fedpace._base.errors import InputError
from fedpace.core.sums import Member
from fedpace.hosting.aggregator import make_keys, pack, seal, unpack, unseal
from fedpace.server import server_step
from fedpace.server._client_memory import sum_rule

pytest.importorskip("cryptography")

TARGETS = np.random.default_rng(0).normal(size=(12, 5))
"""Each client pulls the model towards a point of its own; the optimum is their mean."""


class Direct(TrustedAggregator):
    """The server's half, with an aggregator in the same process."""

    def __init__(self, process, keys):
        self._process = process
        super().__init__("127.0.0.1:1", keys / "server.json")

    def _ask(self, header, vectors=None, blobs=None):
        from fedpace.hosting import aggregator

        content = pack({**header, "request": os.urandom(8).hex()}, vectors or {}, blobs)
        _, answer = self._process.handle(aggregator._encrypted(self._cipher, content, b"request"))
        found, sums, _ = unpack(answer)
        if "error" in found:
            raise InputError(found["error"])
        self.instance = found["instance"]
        return found, sums


def train(client, model):
    return 0.5 * (TARGETS[client] - model)


def play(opener, scheme, steps, clients, minimum, *, lose=lambda step, client: False, seen=None):
    """Train with a coordinator, sealed answers and virtual seconds; return the models."""
    policy = make_selector(scheme[0], **dict(scheme[1:]))
    coordinator = Coordinator(policy, Settings(aggregation="sums", minimum=minimum))
    coordinator.join(range(len(TARGETS)))
    rule = sum_rule(server_step(policy, None), noisy=opener.privacy.epsilon > 0)
    opener.memory = rule.name == "client-memory"
    aggregator = SumAggregator(rule, lambda: np.zeros(5))
    models, flying, now = [np.zeros(5)], [], 0.0
    while len(models) <= steps:
        due = coordinator.due(now)
        if due.step is not None:
            applied = aggregator.apply(coordinator, due.step, models[-1], opener)
            models.append(np.asarray(applied.model))
            coordinator.stepped(now)
            if seen is not None:
                seen(applied)
        for task in due.tasks:
            sent = (models[task.step], opener.parcel(task))
            flying.append((now + 1 + task.client % 5 + 0.01 * task.client, task.id, task, sent))
        if due:
            continue
        flying.sort()
        now, _, task, (model, parcel) = flying.pop(0)
        if lose(len(models), task.client):
            coordinator.lost(task.id, now)
            continue
        update = train(task.client, model)
        opener.receive(task.id, clients[task.client].answer(parcel, update, loss=float(update @ update)))
        coordinator.receive(task.id, Outcome(task.client, seconds=now - task.began), now)
    return models


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path)
    return tmp_path


def clients_of(keys):
    return [PrivateClient(keys / "client.json", client) for client in range(len(TARGETS))]


def test_sealed_bytes_are_for_the_aggregator_alone(keys):
    private = AggregatorProcess(keys, 2)
    client = PrivateClient(keys / "client.json", "a")
    sealed = seal(b"secret" * 10, client._public, client._secret)
    assert unseal(sealed, private._private, private._secret) == b"secret" * 10
    assert b"secret" not in sealed
    with pytest.raises(InputError, match="other keys"):
        unseal(sealed[:-1] + bytes([sealed[-1] ^ 1]), private._private, private._secret)
    with pytest.raises(InputError, match="other keys"):  # the server has no secret of the clients
        unseal(seal(b"forged", client._public, b"0" * 32), private._private, private._secret)
    assert (keys / "client.json").stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="use the file that"):
        PrivateClient(keys / "server.json", "a")


@pytest.mark.parametrize("cached", [256, 0], ids=["memory at the aggregator", "memory on the clients"])
def test_pace_async_learns_over_sealed_updates(keys, cached):
    process = AggregatorProcess(keys, 4, cached=cached)
    kinds, opened = set(), process._open

    def watched(header, vectors, blobs):
        kinds.add(header["kind"])
        return opened(header, vectors, blobs)

    process._open = watched
    models = play(Direct(process, keys), ("pace-async",), 25, clients_of(keys), 4)
    assert np.allclose(models[-1], TARGETS.mean(axis=0), atol=0.02)
    assert {"fresh", "late"} <= kinds
    assert len(process._recent) <= cached


def test_memory_on_the_clients_makes_the_same_steps(keys):
    one = play(Direct(AggregatorProcess(keys, 3, cached=256), keys), ("pace-async",), 12, clients_of(keys), 3)
    other = play(Direct(AggregatorProcess(keys, 3, cached=0), keys), ("pace-async",), 12, clients_of(keys), 3)
    assert np.allclose(one, other, atol=1e-5)


def test_a_restarted_aggregator_starts_with_new_clients(keys):
    first = AggregatorProcess(keys, 4)
    opener = Direct(first, keys)
    times = []

    def seen(applied):
        times.append(applied.moved)
        if len(times) == 8:
            opener._process = AggregatorProcess(keys, 4)

    models = play(opener, ("pace-async",), 30, clients_of(keys), 4, seen=seen)
    assert not all(times[8:12]), "answers for the first start are refused"
    assert all(times[14:])
    assert np.allclose(models[-1], TARGETS.mean(axis=0), atol=0.05)


def test_noise_and_budgets_are_the_aggregators(keys):
    pytest.importorskip("dp_accounting")
    privacy = TrainingPrivacy("sums", minimum=4, epsilon=3.0, clip=0.5, releases=3, mechanism="ftrl")
    opener = Direct(AggregatorProcess(keys, 4, privacy), keys)
    play(opener, ("random", ("k", 6)), 4, clients_of(keys), 4)
    assert 0 < opener.facts["epsilon"] <= 3.0
    spent = AggregatorProcess(keys, 4, privacy)._budget.spent
    assert spent, "a restart does not give budgets back"
    assert spent == opener._process._budget.spent


# -- a server that asks for too much ----------------------------------------------------------------------------------


def answers(opener, keys, number, first=0, task=0):
    """Let clients answer, and return them as members."""
    members = []
    for place in range(number):
        one = Task(task + place, first + place, "train", 0, 0.0)
        update = np.full(3, float(first + place))
        client = PrivateClient(keys / "client.json", one.client)
        opener.receive(one.id, client.answer(opener.parcel(one), update))
        members.append(Member(one.id, one.client, 0, 0.1, 0.1))
    return members


def weighted(members, weights=None):
    weights = weights or [0.1] * len(members)
    return Group("weighted", tuple(members), tuple({"weight": weight} for weight in weights))


def test_an_answer_is_opened_once_and_only_in_a_large_group(keys):
    opener = Direct(AggregatorProcess(keys, 4), keys)
    members = answers(opener, keys, 6)
    assert opener.open(weighted(members[:3]), 1) is None, "the aggregator's own minimum counts"
    found = opener.open(weighted(members[:5]), 4)
    assert np.allclose(found.vectors["update"], 0.1 * (0 + 1 + 2 + 3 + 4))
    assert opener.open(weighted(members), 4) is None, "the difference of two sums would be the sixth client"


def test_one_client_does_not_pass_for_many(keys):
    opener = Direct(AggregatorProcess(keys, 4), keys)
    members = answers(opener, keys, 4)
    renamed = [members[0]._replace(client=name) for name in range(4)]
    assert opener.open(weighted(renamed), 4) is None
    again = [*members[:3], *(members[0]._replace(task=9),)]
    assert opener.open(weighted(again), 4) is None


def test_weights_that_single_out_a_client_are_refused(keys):
    opener = Direct(AggregatorProcess(keys, 4), keys)
    members = answers(opener, keys, 5)
    assert opener.open(weighted(members, [1.0, 1e-9, 1e-9, 1e-9, 1e-9]), 4) is None
    assert opener.open(weighted(members, [0.4, 0.1, 0.2, 0.2, 0.1]), 4) is not None


def test_requests_without_the_servers_key_get_no_answer(keys, tmp_path):
    make_keys(tmp_path / "other")
    process = AggregatorProcess(keys, 4)
    with pytest.raises(InputError, match="other keys"):
        Direct(process, tmp_path / "other")
    with pytest.raises(InputError):
        process.handle(b"nonsense")


@pytest.mark.parametrize("message", [b"", b"\xff" * 40, b"\x02\x00\x00\x00[]", pack({}, {"a": np.ones(3)})[:-1]])
def test_broken_messages_are_refused(message):
    with pytest.raises(InputError, match="another kind"):
        unpack(message)


# -- real processes ---------------------------------------------------------------------------------------------------


def _client(keys, name, link):
    client = PrivateClient(f"{keys}/client.json", name)
    with link, link.makefile("rwb") as lines:
        for line in lines:
            number, model, parcel = line.split()
            if number == b"hang":
                time.sleep(600)
            update = train(name, np.frombuffer(bytes.fromhex(model.decode())))
            sealed = client.answer(bytes.fromhex(parcel.decode()), update)
            lines.write(number + b" " + sealed.hex().encode() + b"\n")
            lines.flush()


def start_aggregator(keys, port):
    command = [sys.executable, "-m", "fedpace", "aggregator", str(keys), "--listen", f"127.0.0.1:{port}"]
    return subprocess.Popen([*command, "--minimum", "4"], stdout=subprocess.PIPE)


@pytest.mark.slow
def test_processes_on_loopback_with_a_client_killed_and_the_aggregator_restarted(keys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = start_aggregator(keys, port)
    fork = multiprocessing.get_context("spawn")
    links, clients = {}, {}
    try:
        for name in range(len(TARGETS)):
            here, there = socket.socketpair()
            clients[name] = fork.Process(target=_client, args=(str(keys), name, there), daemon=True)
            clients[name].start()
            there.close()
            links[name] = here.makefile("rwb")
            here.close()  # the file keeps it open
        opener = TrustedAggregator(f"127.0.0.1:{port}", keys / "server.json", patience=60)
        policy = make_selector("pace-async")
        coordinator = Coordinator(policy, Settings(aggregation="sums", minimum=4))
        coordinator.join(range(len(TARGETS)))
        opener.memory = True
        aggregator = SumAggregator(sum_rule(server_step(policy, None)), lambda: np.zeros(5))
        models, flying, moved, restarted = [np.zeros(5)], [], [], False
        began = time.monotonic()
        while len(models) <= 35:
            now = time.monotonic() - began
            due = coordinator.due(now)
            if due.step is not None:
                if len(models) == 6:  # in the middle: one client dies, and the aggregator too
                    os.kill(clients[3].pid, signal.SIGKILL)
                    running.kill()
                    running.wait()
                    running.stdout.close()
                    running, restarted = start_aggregator(keys, port), True
                applied = aggregator.apply(coordinator, due.step, models[-1], opener)
                moved.append(applied.moved)
                models.append(np.asarray(applied.model))
                coordinator.stepped(time.monotonic() - began)
            for task in due.tasks:
                text = f"{task.id} {models[task.step].tobytes().hex()} {opener.parcel(task).hex()}\n"
                try:
                    links[task.client].write(text.encode())
                    links[task.client].flush()
                    flying.append(task)
                except OSError:
                    coordinator.lost(task.id, time.monotonic() - began)
            if due:
                continue
            if flying:
                task = flying.pop(0)
                line = links[task.client].readline()
                now = time.monotonic() - began
                if not line:
                    coordinator.lost(task.id, now)
                    if task.client in coordinator.ledger:
                        coordinator.leave([task.client])
                    continue
                opener.receive(task.id, bytes.fromhex(line.split()[1].decode()))
                coordinator.receive(task.id, Outcome(task.client, seconds=now - task.began), now)
            assert time.monotonic() - began < 300
        assert restarted
        assert not moved[5]
        assert all(moved[9:]), "it goes on after the answers that were under way"
        left = [client for client in range(len(TARGETS)) if client != 3]
        # So few clients are forgotten often, and the step after that follows the four fastest: the best model counts.
        assert min(np.linalg.norm(model - TARGETS[left].mean(axis=0)) for model in models[7:]) < 0.1
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
        for name, one in clients.items():
            one.kill()
            one.join()
            with suppress(OSError):
                links[name].close()


def test_the_command_makes_keys(tmp_path):
    from typer.testing import CliRunner

    from fedpace.cli import app

    result = CliRunner().invoke(app, ["aggregator", str(tmp_path / "k"), "--make-keys"], catch_exceptions=False)
    assert result.exit_code == 0
    assert {path.name for path in islice((tmp_path / "k").iterdir(), 9)} == {
        "aggregator.json",
        "client.json",
        "server.json",
    }
