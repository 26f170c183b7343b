"""The Flower baseline in examples/flower_baseline, on a grid in this process, and its form."""

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

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "flower_baseline"


@pytest.fixture
def play(monkeypatch):
    """Return a function that runs the baseline with a configuration; it prints."""
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
    except ModuleNotFoundError:
        pass
    from paceasync import client_app, server_app

    def run(nodes=8, **changed):
        written = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
        config = {**written["tool"]["flwr"]["app"]["config"], **changed}
        grid = Tools.grid()
        for node in range(nodes):
            grid.add(node + 10, client_app.app, **{"partition-id": node, "num-partitions": nodes})
            grid.nodes[node + 10][1].run_config = config
        server_app.main(grid, Context(1, 1, {}, RecordDict(), config))

    yield run
    for name in [name for name in sys.modules if name.startswith("paceasync")]:
        del sys.modules[name]


@pytest.mark.parametrize("algorithm", ["pace-async", "fedbuff", "fedavg"])
def test_it_trains(play, capsys, algorithm):
    play(**{"algorithm": algorithm, "cohort": 3, "num-server-rounds": 8, "target": 1.1})
    told = re.findall(r"PACEASYNC step \d+ seconds (\S+) accuracy (\S+)", capsys.readouterr().out)
    assert len(told) == 9
    assert float(told[-1][0]) > 0
    assert float(told[-1][1]) > float(told[0][1]) + 0.15


def test_it_ends_at_the_target(play, capsys):
    play(**{"target": 0.5, "alpha": 2.0, "num-server-rounds": 60})
    assert "PACEASYNC target reached: accuracy 0." in capsys.readouterr().out


def test_it_has_the_form_of_a_baseline():
    """Folder and package have one name, and README begins with what Flower's index reads."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = FOLDER / project["name"]
    named = {path.name for path in package.glob("*.py")}
    assert {"__init__.py", "client_app.py", "server_app.py", "dataset.py", "model.py", "strategy.py"} <= named
    assert (FOLDER / "LICENSE").exists()
    _, front, text = (FOLDER / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert {line.partition(":")[0] for line in front.splitlines()} == {"title", "url", "labels", "dataset"}
    for heading in (
        "About this baseline",
        "Experimental Setup",
        "Environment Setup",
        "Running the Experiments",
        "Expected Results",
    ):
        assert f"## {heading}" in text
