"""Trackers on live servers: every step, with its evaluation, with and without a state folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from flower_fleet import start
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedpace import Tracker
from fedpace.flower import PacedServer, PacedStrategy

STEPS = 4


class ListSink:
    key = "here"

    def __init__(self, rows):
        self.rows = rows

    def log(self, entries):
        self.rows += [(entry.number, dict(entry.values)) for entry in entries]

    def close(self, status):
        self.rows.append(status)


@dataclass(frozen=True)
class ToList(Tracker):
    name: ClassVar[str] = "list"
    rows: ClassVar[list] = []

    def open(self, run):
        return ListSink(self.rows)


@pytest.fixture(autouse=True)
def _empty():
    ToList.rows.clear()


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("synchronous", [True, False])
def test_every_step_is_tracked_with_its_evaluation(flower, grid, tmp_path, saved, synchronous):
    options = {"state": tmp_path / "state"} if saved else {}
    settings = {"clock": "reported", "track": ToList(), **options}
    server = PacedStrategy(FedAvg(), "pace", **settings) if synchronous else PacedServer("pace-async", **settings)
    evaluate = lambda step, arrays: MetricRecord({"accuracy": 0.1 * step, "loss": 1.0 / (1 + step)})  # noqa: E731
    server.start(grid, start(flower), num_rounds=STEPS, evaluate_fn=evaluate)
    server.close()
    *rows, status = ToList.rows
    assert status == "finished"
    assert [number for number, _ in rows] == list(range(STEPS + 1))
    assert [values["accuracy"] for _, values in rows] == pytest.approx([0.1 * step for step in range(STEPS + 1)])
    assert all(values["clients"] > 0 for number, values in rows if number)
