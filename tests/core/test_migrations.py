"""Sessions that earlier versions saved go on."""

from __future__ import annotations

import json

import numpy as np

from fedpace import Coordinator, Outcome, Session, Settings, make_selector
from fedpace.core import saving
from fedpace.selectors.random import Random


def test_a_session_of_format_3_goes_on(tmp_path):
    """What only pace remembers was among everybody's facts then."""
    session = Session(make_selector("pace"), seed=1)
    session.join(range(8), delays=[1.0 + client for client in range(8)])
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(8, 3, 2))
    for _ in range(3):
        chosen = session.select().clients
        session.observe([Outcome(client, seconds=2.0 + client, moment=factors[client]) for client in chosen])
    session.save(tmp_path)
    index = json.loads((tmp_path / saving.INDEX).read_text())
    arrays = dict(np.load(tmp_path / index["arrays"]))
    for name in ("recent_weight", "lateness"):
        arrays[f"ledger/{name}"] = arrays.pop(f"ledger/accumulated/{name}")
    np.savez(tmp_path / index["arrays"], **arrays)
    index["progress"]["enough"] = index["progress"].pop("quorum")
    (tmp_path / saving.INDEX).write_text(json.dumps(index | {"format": 3}))
    back = Session.restore(tmp_path)
    for name, values in session.view().accumulated.items():
        np.testing.assert_array_equal(back.view().accumulated[name], values)
    assert back.select().clients == session.select().clients


def test_of_other_schemes_the_same_facts_are_forgotten(tmp_path):
    session = Session(make_selector("random", k=2))
    session.join(["a", "b", "c"])
    session.save(tmp_path)
    index = json.loads((tmp_path / saving.INDEX).read_text())
    arrays = dict(np.load(tmp_path / index["arrays"]))
    np.savez(tmp_path / index["arrays"], **arrays, **{"ledger/recent_weight": np.zeros(3)})
    index["progress"]["enough"] = index["progress"].pop("quorum")
    (tmp_path / saving.INDEX).write_text(json.dumps(index | {"format": 3}))
    assert Session.restore(tmp_path).view().accumulated == {}


def test_a_session_of_format_4_goes_on_in_mid_round(tmp_path):
    """A quorum was called enough then, and late clients were awaited."""
    session = Session(Random(k=2), seed=1)
    session.join(["a", "b", "c"])
    chosen = session.select()
    session.coordinator.receive(session.coordinator.tasks[0].id, Outcome(chosen.clients[0], seconds=1.0))
    session.save(tmp_path)
    index = json.loads((tmp_path / saving.INDEX).read_text())
    for table in (index["progress"], index["shell"]["pending"]):
        table["enough"] = table.pop("quorum")
    for outcome in index["flight"]["outcomes"]:
        outcome["awaited"] = outcome.pop("late")
    assert index["flight"]["outcomes"]
    (tmp_path / saving.INDEX).write_text(json.dumps(index | {"format": 4}))
    assert Session.restore(tmp_path).pending.clients == chosen.clients


def test_a_coordinator_of_format_5_goes_on(tmp_path):
    """pace-async kept rows of clients in its state then."""
    one = Coordinator(make_selector("pace-async"), Settings(seed=1))
    one.join(["a", "b", "c"])
    started = one.due(0.0, ["a", "b", "c"]).tasks
    one.save(tmp_path)
    index = json.loads((tmp_path / saving.INDEX).read_text())
    index["state"]["begun"] = [0, 1, 2]
    (tmp_path / saving.INDEX).write_text(json.dumps(index | {"format": 5}))
    assert Coordinator.restore(tmp_path).tasks == started
