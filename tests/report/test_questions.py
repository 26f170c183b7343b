"""Another target, and how far everybody was at a time, of runs that were recorded before."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpace.cli import app
from fedpace.core.errors import InputError
from fedpace.records.writer import RunWriter
from fedpace.report.questions import at_time, retarget, short_of
from fedpace.report.tables import summarise


def test_an_easier_target_is_reached_sooner(three_schemes):
    easier = summarise(retarget(three_schemes, 0.5))
    assert easier.target == 0.5
    assert easier["random"].time_to_target.mean == pytest.approx((60 + 120) / 2)
    assert easier["stuck"].time_to_target.mean == pytest.approx((10 + 10) / 2)
    assert summarise(retarget(three_schemes, None)) == summarise(three_schemes)


def test_a_harder_target_is_not_made_up(make_run):
    stopped = [make_run("a", 0, [(10, 0.95)], status="reached"), make_run("b", 0, [(10, 0.5)])]
    asked = retarget(stopped, 0.99)
    assert summarise(asked)["a"].reached == 0
    assert short_of(stopped, asked) == ["a"]  # b had all the time that it was given
    assert short_of(stopped, retarget(stopped, 0.9)) == []


def test_held_over_another_number_of_instants(make_run):
    run = make_run("a", 0, [(10, 0.95), (10, 0.2), (10, 0.95), (10, 0.96)], hold=1, hold_every=10.0)
    assert summarise([run])["a"].time_to_target.mean == 10
    assert summarise(retarget([run], None, hold=2))["a"].time_to_target.mean == 30


def test_the_metric_at_a_time_is_that_of_the_model_then(three_schemes):
    instant = at_time(three_schemes, 55.0)
    assert instant.schemes["random"].mean == pytest.approx(0.1)
    assert instant.schemes["quick"].mean == pytest.approx(0.92)
    assert instant.schemes["stuck"].mean == pytest.approx((0.5 + 0.6) / 2)  # ended long before
    assert instant.sentence() == "Accuracy after 55.0 s: random 0.100, quick 0.920, stuck 0.550."


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_make_no_sense(three_schemes, seconds):
    with pytest.raises(InputError, match="--at takes seconds"):
        at_time(three_schemes, seconds)


def test_the_command(three_schemes, tmp_path):
    for run in three_schemes:
        with RunWriter(tmp_path / run.info.label / f"seed-{run.info.seed}", run.info) as writer:
            for current in run.rounds:
                writer.add(current)
            writer.finish("finished")
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--target", "0.5", "--at", "55", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["target"] == 0.5
    assert found["at"]["schemes"]["quick"]["mean"] == pytest.approx(0.92)
    assert "target 0.5" in (tmp_path / "report.html").read_text()
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--at", "55"], terminal_width=200)
    assert "Accuracy after 55.0 s" in " ".join(shown.stdout.split())
