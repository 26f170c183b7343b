"""The results that come with fedpace are what this version of it gives: some of their runs, once more.

Whoever changes what a scheme decides has to run its columns anew (docs/reproduction.md).
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from threadpoolctl import threadpool_limits

from fedpace.reproduce.command import PACKAGED
from fedpace.reproduce.paper import task, task_names
from fedpace.reproduce.paper_runs import Request, planned, play
from fedpace.reproduce.paper_tables import ReproducedResults, collect

OURS = ("pace", "pace-async")
OTHERS = ("random", "flanp")
"""Fast ones: those of the paper take a second a round."""


def rerun(name, columns, store):
    """Check the columns of a data set against what is recorded, under the first seed and both delay models."""
    raw = json.loads(files("fedpace.reproduce").joinpath(PACKAGED["quick"]).read_text(encoding="utf-8"))
    recorded = ReproducedResults.parse(raw, "the packaged results")
    wanted = planned(Request("quick", (name,), (0,), columns), ["table1", "table2"])
    with threadpool_limits(limits=1):  # as the command has it
        assert play([each.run for each in wanted], store) == 0
    found = collect("quick", wanted, store)
    for each in wanted:
        expected, now = recorded.known(each), found.known(each)
        assert (now.rounds, now.status) == (expected.rounds, expected.status), each.place
        assert now.seconds == pytest.approx(expected.seconds, abs=0.1), each.place


def test_quadratic_comes_out_as_it_is_recorded(tmp_path):
    rerun("quadratic", (*OTHERS, "pace"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", task_names())
def test_every_data_set_comes_out_as_it_is_recorded(name, tmp_path, real, monkeypatch):
    if name != "quadratic":
        monkeypatch.setenv("FEDPACE_DATA", real(task(name, "quick").data["name"]))
    rerun(name, (*OTHERS, *OURS), tmp_path)
