"""Anything at all in files that fedpace reads: what comes out is a result, or a FedpaceError; never anything else."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedpace import Coordinator, FedpaceError, Outcome, make_selector
from fedpace._base.files import read_json, read_npz
from fedpace.records.run import find_runs

sys.path.insert(0, str(Path(__file__).parent))
from fuzzing import COUNTS, cases, fuzzed
from junk import json_value, listed, one_of, pick, raw, text, together


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


def spoil(rng, index):
    """Put anything into one place of a table of tables."""
    place = index
    while True:
        keys = list(place if isinstance(place, dict) else range(len(place)))
        key = rng.choice(keys)
        inside = place[key]
        if not (isinstance(inside, dict | list) and inside) or rng.random() < 0.3:
            place[key] = json_value(rng)
            return
        place = inside


def test_restore(saved, tmp_path):
    counts = COUNTS.setdefault("Coordinator.restore", Counter())
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    for rng in cases("Coordinator.restore"):
        index = json.loads(saved["session.json"])
        spoil(rng, index)
        (tmp_path / "session.json").write_text(json.dumps(index))
        try:
            Coordinator.restore(tmp_path)
            counts["taken"] += 1
        except FedpaceError:
            counts["refused"] += 1


@fuzzed(
    "read_json",
    one_of(
        raw(40), lambda rng: text(20)(rng).encode(errors="replace"), lambda rng: json.dumps(json_value(rng)).encode()
    ),
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
    "read_npz",
    listed(together(lambda rng: rng.randrange(len(NPZ)), lambda rng: rng.randrange(256)), 4),
    lambda rng: rng.randint(0, 40),
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
    pick([*INFO, "hold", "status", "digest", "rounds"]),
    json_value,
    one_of(raw(30), lambda rng: json.dumps(json_value(rng)).encode() + b"\n"),
)
def test_read_run(key, value, extra):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_text(json.dumps(INFO | {key: value}))
        (Path(folder) / "rounds.jsonl").write_bytes(LINE.encode() + extra)
        (record,) = find_runs(Path(folder))
        assert record.reached is None or record.crossed
        repr(record)
