"""Results as pandas data frames."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fedpace
from fedpace._base.errors import InputError, MissingExtraError
from fedpace.sim.training import Training

pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def results():
    rng = np.random.default_rng(0)
    clients = [(x := rng.normal(size=(12, 3)), (x[:, 0] > 0).astype(int)) for _ in range(6)]
    training = Training(epochs=1, arithmetic="numpy")
    return fedpace.compare(
        clients, clients[0], "softmax", schemes="random(k=3),pace-async", seeds=2, rounds=3, target=0.999,
        training=training, progress=False,
    )  # fmt: skip


def test_a_frame_has_a_row_per_round(results):
    frame = results.to_frame()
    assert len(frame) == sum(len(run.rounds) for run in results.records)
    assert set(frame["scheme"]) == {"random(k=3)", "pace-async"}
    run = results.records[0]
    mine = frame[(frame["scheme"] == run.info.label) & (frame["seed"] == run.info.seed)]
    assert mine["clock"].tolist() == [current.clock for current in run.rounds]


def test_a_frame_has_a_row_per_run_or_per_client(results):
    seeds = results.to_frame("seeds")
    assert sorted(zip(seeds["scheme"], seeds["seed"], strict=True)) == [
        ("pace-async", 0), ("pace-async", 1), ("random(k=3)", 0), ("random(k=3)", 1),
    ]  # fmt: skip
    assert seeds["work"].tolist() == [r.cost.work for s in results.comparison.schemes for r in s.results]
    members = results.to_frame("clients")
    assert len(members) == sum(len(current.clients) for run in results.records for current in run.rounds)
    with pytest.raises(InputError, match="rows"):
        results.to_frame("weeks")


def test_without_pandas_the_error_says_how_to_install_it(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedpace\[frames\]'"):
        results.to_frame()
