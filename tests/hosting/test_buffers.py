"""What a model holds beside its parameters, running statistics and counters, can ruin it as well."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedpace import Coordinator, Outcome, Settings, make_selector, make_server, stream
from fedpace.core.types import Need
from fedpace.hosting.live_server import Host, Server
from fedpace.hosting.replies import Note, Raw, parse
from fedpace.hosting.shared_model import SharedModel

MODEL = {
    "w": np.zeros((3, 2), np.float32),
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(0),
}
CLIENTS = ["liar", *"abcdefg"]


class Wire:
    """Answers at once; the liar's model is changed."""

    def __init__(self, server, change):
        self.server, self.change, self.rng, self.out = server, change, stream(0, "wire"), []

    def send(self, tasks):
        self.out += [(task, self.server.shared.arrays) for task in tasks]

    def collect(self):
        out, self.out = self.out, []
        for task, sent in out:
            raw = Raw({"seconds": 1.0}, {"loss": 1.0}, 10, self.trained(sent))
            came = self.change(raw) if task.client == "liar" else raw
            yield task.id, partial(lambda told: told, came)

    def wait(self, seconds):
        raise AssertionError("everybody has answered")

    def trained(self, sent):
        noise = {name: 0.1 * self.rng.normal(size=array.shape) for name, array in sent.items()}
        return {
            "w": np.float32(sent["w"] + 0.1 * (1 - sent["w"]) + 0.1 * noise["w"]),
            "bn.running_mean": np.float32(0.9 * sent["bn.running_mean"] + 0.1 * (0.5 + noise["bn.running_mean"])),
            "bn.running_var": np.float32(0.9 * sent["bn.running_var"] + 0.1 * (2 + noise["bn.running_var"])),
            "bn.num_batches_tracked": sent["bn.num_batches_tracked"] + 7,
        }


def with_array(name, value):
    return lambda raw: replace(raw, model={**raw.model, name: np.full_like(raw.model[name], value)})


def play(change, scheme="random", folder=None, steps=6, **options):
    host = Host("test", logging.getLogger("test"), {}, frozenset(Need))
    server = Server(make_selector(scheme, **options), Settings(seed=0), host, clock="reported", folder=folder)
    server.share(MODEL if server.saved is None else server.saved.model)
    server.membership.update({name: Note(name=name) for name in CLIENTS})
    wire, failed = Wire(server, change), set()
    while server.coordinator.step < steps:
        step = server.next_step(wire, CLIENTS)
        moved = server.apply(step)
        failed |= set(server.stepped(step, server.shared.arrays, moved=moved).failed)
    server.files.close()
    return server, failed


LIES = {
    "running_mean of 1e30": ("bn.running_mean", 1e30),
    "running_mean of 1000": ("bn.running_mean", 1e3),
    "a negative variance": ("bn.running_var", -0.1),
    "running_var of 1e20": ("bn.running_var", 1e20),
    "a counter of 2^62": ("bn.num_batches_tracked", 2**62),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("scheme", "options"), [("random", {"k": 8}), ("fedbuff", {"buffer": 6})])
def test_buffers_that_went_far_are_clipped(scheme, options, lie):
    """An eighth of every step is the liar's, and ten times what honest buffers move: no lie reaches further."""
    server, failed = play(with_array(*LIES[lie]), scheme, **options)
    assert failed == ({"liar"} if lie == "a negative variance" else set()), "what cannot be is refused"
    model = server.shared.arrays
    assert {name: array.dtype for name, array in model.items()} == {name: array.dtype for name, array in MODEL.items()}
    assert np.abs(model["bn.running_mean"]).max() < 6
    assert (model["bn.running_var"] > 0.9).all()
    assert (model["bn.running_var"] < 8).all()
    assert 0 < model["bn.num_batches_tracked"] <= 7 * 6 * 10


def test_an_update_too_large_to_be_measured_is_that_clients_failure(monkeypatch):
    """In double precision 1e200 is finite, and its square is not: the reply is refused, and the server goes on."""
    monkeypatch.setitem(MODEL, "w", np.zeros((3, 2)))
    huge = lambda raw: replace(raw, model={**raw.model, "w": np.full((3, 2), 1e200)})  # noqa: E731
    server, failed = play(huge, k=8)
    assert failed == {"liar"}
    assert np.abs(server.shared.arrays["w"]).max() < 2
    server, failed = play(huge, "fedbuff", buffer=6)
    assert failed == {"liar"}


def test_buffers_of_another_shape_are_as_they_were_sent():
    coordinator = Coordinator(make_selector("random", k=6), Settings(seed=0))
    coordinator.join(range(6))
    for task in coordinator.due(0.0).tasks:
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    step = coordinator.due(1.0).step
    shared = SharedModel({"w": np.zeros(3), "bn.running_mean": np.zeros(2)}, make_server("average"))
    trained = {
        task.id: {"w": np.ones(3), "bn.running_mean": np.ones(3 if task.client == 0 else 2)} for task, _ in step.answers
    }
    shared.apply(coordinator, step, trained)
    np.testing.assert_allclose(shared.arrays["bn.running_mean"], 5 / 6)


def test_honest_buffers_are_averaged():
    server, failed = play(lambda raw: raw, k=8)
    assert not failed
    assert server.shared.arrays["bn.num_batches_tracked"] == 42


def test_what_is_usual_is_known_after_a_restart(tmp_path):
    first, _ = play(lambda raw: raw, folder=tmp_path, steps=3, k=8)
    known = {kind: lengths.copy() for kind, lengths in first.coordinator.ledger.trust.longest.items()}
    assert set(known) == {"update", "running_mean", "running_var", "counters"}
    again, failed = play(with_array("bn.running_mean", 50.0), folder=tmp_path, steps=4, k=8)
    assert not failed
    assert np.abs(again.shared.arrays["bn.running_mean"]).max() < 1
    for kind, lengths in known.items():
        after = again.coordinator.ledger.trust.longest[kind]
        assert (after >= lengths).all(), "the longest of each client is remembered"
    np.testing.assert_array_equal(
        again.coordinator.ledger.trust.longest["counters"], known["counters"], "all honest in every step"
    )


@pytest.mark.parametrize(("value", "reason"), [(1e300, "into int64"), (np.nan, "NaN"), (1e18 + 0.5, "")])
def test_a_counter_that_came_as_a_float(value, reason):
    model = {name: np.array(array) for name, array in MODEL.items()} | {"bn.num_batches_tracked": np.array(value)}
    found = parse(lambda: Raw(model=model), MODEL)
    assert (reason in found) if reason else not isinstance(found, str)
