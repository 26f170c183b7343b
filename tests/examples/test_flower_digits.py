"""The app in examples/flower_digits, on a grid in this process."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flower_grid import Tools
from flwr.app import Context, RecordDict

APP = Path(__file__).resolve().parents[2] / "examples" / "flower_digits"


@pytest.fixture
def play(monkeypatch):
    """Return a function that runs the app with a configuration, and returns nothing: it prints."""
    monkeypatch.syspath_prepend(str(APP))
    try:
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
    except ModuleNotFoundError:
        pass
    from flower_digits import client_app, server_app

    def run(**changed):
        written = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
        config = {**written["tool"]["flwr"]["app"]["config"], **changed}
        grid = Tools.grid()
        for node in range(6):
            grid.add(node + 10, client_app.app, **{"partition-id": node, "num-partitions": 6})
            grid.nodes[node + 10][1].run_config = config
        server_app.main(grid, Context(1, 1, {}, RecordDict(), config))

    yield run
    for name in [name for name in sys.modules if name.startswith("flower_digits")]:
        del sys.modules[name]


@pytest.mark.parametrize("selector", ["pace", "pace-async", "random", "flower"])
def test_it_trains(play, capsys, selector):
    play(**{"selector": selector, "k": 3, "num-server-rounds": 6, "target": 1.1})
    found = [
        float(accuracy)
        for accuracy in re.findall(r"DIGITS round \d+ clock \S+ accuracy (\S+)", capsys.readouterr().out)
    ]
    assert len(found) == 7
    assert found[-1] > found[0] + 0.3
