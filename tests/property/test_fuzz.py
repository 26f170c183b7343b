"""Anything at all into every public surface: what comes out is a result, or a FedpaceError; never anything else.

`FEDPACE_FUZZ` is the number of cases for each surface: 100 unless told otherwise, 10,000 in `make test-deep`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedpace
from fedpace import (
    Coordinator,
    FedpaceError,
    Outcome,
    Session,
    Settings,
    make_selector,
    numerics,
    registry,
)
from fedpace.config import parse_experiment
from fedpace.core.files import read_json, read_npz
from fedpace.moments import MomentBank, compress, factor_from_features, private_moment
from fedpace.records.run import read_run

CASES = int(os.environ.get("FEDPACE_FUZZ", "100"))
COUNTS: dict[str, Counter[str]] = {}
"""Surface -> what came of the cases; printed at the end."""

FLOATS = st.one_of(
    st.floats(), st.floats(0, 10), st.sampled_from([0.0, -0.0, 1e-320, 1e155, 1e300, -1e308, math.inf, math.nan])
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.sampled_from([10**400, -(10**400), 2**63, 2**31]),
    FLOATS,
    st.text(max_size=4),
    st.binary(max_size=4),
    st.just(1j),
)
ARRAYS = hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=FLOATS)
JUNK = st.recursive(
    st.one_of(SCALARS, ARRAYS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def fuzzed(surface, *strategies):
    """Run a test for as many cases as are asked for, and count what came of them."""

    def decorate(check):
        counts = COUNTS.setdefault(surface, Counter())

        @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=CASES <= 500)
        @given(st.tuples(*strategies))
        def test(drawn):
            try:
                check(*drawn)
            except FedpaceError:
                counts["refused"] += 1
            else:
                counts["taken"] += 1

        return test

    return decorate


def roster(scheme="random", **options):
    session = Session(make_selector(scheme, **options), seed=1)
    session.join(range(6), samples=[1.0] * 6, labels=np.ones((6, 2)))
    return session


@fuzzed("Session.join", JUNK, JUNK, JUNK, JUNK)
def test_join(ids, samples, delays, labels):
    session = Session(make_selector("random", k=1))
    try:
        session.join(ids, samples=samples, delays=delays, labels=labels)
    except FedpaceError:
        assert len(session) == 0, "who was refused must not be in"
        raise
    if len(session):
        session.select()


@fuzzed("Session.select", JUNK, JUNK)
def test_select(now, available):
    session = roster(k=2)
    session.select(now=now, available=available)


FIELDS = ["seconds", "finished", "loss", "samples", "moment", "update", "late", "measured"]


@fuzzed(
    "Session.observe",
    st.sampled_from(["pace", "oort", "delayhet-submodular"]),
    st.dictionaries(st.sampled_from(FIELDS), JUNK),
)
def test_observe(scheme, told):
    session = roster(scheme)
    rng = fedpace.stream(0, "fuzz")
    for _ in range(3):
        outcomes = []
        for client in session.select().clients:
            good = {
                "seconds": 1.0 + client,
                "loss": 1.0,
                "moment": rng.normal(size=(4, 3)),
                "update": rng.normal(size=4),
            }
            outcomes.append(Outcome(client, **(good | (told if client == 0 else {}))))
        session.observe(outcomes)


@fuzzed("Session.observe, the list", JUNK)
def test_observe_list(outcomes):
    session = roster(k=2)
    session.select()
    session.observe(outcomes)


@fuzzed("Coordinator.receive", JUNK, JUNK, JUNK)
def test_receive(task, answer, now):
    coordinator = Coordinator(make_selector("random", k=2))
    coordinator.join(range(4))
    tasks = coordinator.due(0.0).tasks
    if not callable(answer):
        for named in (task, tasks[0].id):
            try:
                coordinator.receive(named, answer, now)
            except FedpaceError:
                continue
    assert coordinator.receive(tasks[0].id, Outcome(tasks[0].client, seconds=1.0))
    coordinator.lost(tasks[1].id, now, seconds=task)


@fuzzed("Settings", st.dictionaries(st.sampled_from(list(Settings.__dataclass_fields__)), JUNK, max_size=2))
def test_settings(options):
    Settings(**options)


@st.composite
def with_options(draw, catalogue):
    """A registered name, and junk for some of its options."""
    name = draw(st.sampled_from(catalogue.names()))
    fields = [item.name for item in dataclasses.fields(catalogue[name])]
    return name, draw(st.dictionaries(st.sampled_from(fields), SCALARS, max_size=2)) if fields else {}


@fuzzed("make_selector", with_options(registry.selectors))
def test_selectors(drawn):
    name, options = drawn
    registry.selectors.make(name, **options)


@fuzzed("make_server", with_options(registry.servers))
def test_servers(drawn):
    name, options = drawn
    registry.servers.make(name, **options)


@fuzzed("numerics.best_prefix", JUNK, JUNK)
def test_best_prefix(matrix, delays):
    numerics.best_prefix(matrix, delays)


@fuzzed("numerics.pairwise_heterogeneity", JUNK)
def test_heterogeneity(factors):
    numerics.pairwise_heterogeneity(factors)


@fuzzed("numerics.expected_max", JUNK, JUNK, SCALARS)
def test_expected_max(p, delays, k):
    numerics.expected_max(p, delays, k)


@fuzzed("numerics.transport_cost", JUNK, JUNK, JUNK)
def test_transport(p, q, cost):
    numerics.transport_cost(p, q, cost)


@fuzzed("MomentBank", JUNK, JUNK)
def test_bank(row, factor):
    bank = MomentBank(3)
    bank.put(0, np.eye(2))
    bank.put(1, 2 * np.eye(2))
    bank.put(row, factor)
    bank.directions(ridge=0.1)


@fuzzed("moments of features", JUNK, SCALARS)
def test_moments(features, rank):
    compress(factor_from_features(features), rank)


@fuzzed("private_moment", JUNK, SCALARS, SCALARS)
def test_private(features, epsilon, delta):
    private_moment(features, epsilon=epsilon, delta=delta, clip=1.0, seed=0)


TABLE = {
    "name": "e",
    "seeds": 1,
    "data": {"name": "quadratic"},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"lr": 0.1},
    "fleet": {"warmup": "full"},
    "clock": {"deadline": 3.0},
    "stop": {"target": 1.0},
    "selectors": [{"name": "random", "k": 2}],
}


@fuzzed("experiments", st.sampled_from([*TABLE, "server", "x"]), st.text(max_size=8), JSON, st.booleans())
def test_experiments(part, key, value, whole):
    table = json.loads(json.dumps(TABLE))
    if whole or not isinstance(table.get(part), dict):
        table[part] = value
    else:
        table[part][key] = value
    parse_experiment(table, "fuzz")


@pytest.fixture(scope="module")
def saved():
    """A saved coordinator: its JSON and its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator(make_selector("pace"))
        coordinator.join(range(4), delays=[1.0, 2.0, 3.0, 4.0])
        tasks = coordinator.due(0.0).tasks
        for task in tasks:
            coordinator.receive(task.id, Outcome(task.client, seconds=1.0, moment=np.eye(2)), now=1.0)
        coordinator.due(1.0)
        coordinator.save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=CASES <= 500)
@given(st.data())
def test_restore(saved, data):
    counts = COUNTS.setdefault("Coordinator.restore", Counter())
    with tempfile.TemporaryDirectory() as folder:
        for name, content in saved.items():
            (Path(folder) / name).write_bytes(content)
        index = json.loads(saved["session.json"])
        place = index
        while isinstance(place, dict | list) and place and data.draw(st.booleans()):
            inner = list(place if isinstance(place, dict) else range(len(place)))
            key = data.draw(st.sampled_from(inner))
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
        if isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(list(place if isinstance(place, dict) else range(len(place)))))
            place[key] = data.draw(JSON)
        (Path(folder) / "session.json").write_text(json.dumps(index))
        try:
            Coordinator.restore(folder)
            counts["taken"] += 1
        except FedpaceError:
            counts["refused"] += 1


@fuzzed(
    "read_json",
    st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode), JSON.map(lambda x: json.dumps(x).encode())),
)
def test_read_json(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(content)
        read_json(path)


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(6.0).reshape(2, 3), b=np.zeros(0))
    return buffer.getvalue()


NPZ = _npz()


@fuzzed(
    "read_npz", st.lists(st.tuples(st.integers(0, len(NPZ) - 1), st.integers(0, 255)), max_size=4), st.integers(0, 40)
)
def test_read_npz(changes, cut):
    content = bytearray(NPZ)
    for place, value in changes:
        content[place] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        path.write_bytes(bytes(content[: len(content) - cut]))
        read_npz(path)


LINE = '{"number":0,"clock":0.0,"seconds":0.0,"overhead":0.0,"metric":0.1,"loss":1.0}\n'
INFO = {"label": "a", "selector": "random", "options": {}, "seed": 0, "metric": "accuracy", "direction": "up",
        "target": 0.9, "experiment": {}, "expected_delays": [], "format": 1}  # fmt: skip


@fuzzed(
    "read_run",
    st.sampled_from([*INFO, "hold", "status", "digest", "rounds"]),
    JSON,
    st.one_of(st.binary(max_size=30), JSON.map(lambda x: json.dumps(x).encode() + b"\n")),
)
def test_read_run(key, value, extra):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_text(json.dumps(INFO | {key: value}))
        (Path(folder) / "rounds.jsonl").write_bytes(LINE.encode() + extra)
        read_run(Path(folder))
