"""Another target, and how far everybody was at a time, of runs that were recorded before."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.records.writer import RunWriter
from fedpace.report.comparison import retarget, summarise
from fedpace.report.summary import sentences
from fedpace.report.tables import scheme_table


def test_an_easier_target_is_reached_sooner(three_schemes):
    easier = summarise(retarget(three_schemes, 0.5))
    assert easier.target == 0.5
    assert easier["random"].time_to_target.mean == pytest.approx((60 * 120) ** 0.5)
    assert easier["stuck"].time_to_target.mean == pytest.approx((10 + 10) / 2)
    assert summarise(retarget(three_schemes, None)) == summarise(three_schemes)


def test_recorded_runs_are_looked_at_on_a_grid(make_run):
    """`often` is lucky for a second between two instants; `rarely` ends a round at 10 s, which is one of them."""
    lucky = [(1, 0.95 if second == 11 else 0.5 if second < 16 else 0.96) for second in range(1, 41)]
    held = {"hold": 2, "hold_every": 10.0, "status": "reached"}
    runs = [make_run("often", 0, lucky, **held), make_run("rarely", 0, [(10, 0.95), (15, 0.95), (15, 0.95)], **held)]
    before, after = summarise(runs), summarise(retarget(runs, None, looks="grid"))
    assert [before[label].time_to_target.mean for label in ("often", "rarely")] == pytest.approx([11, 10])
    assert [after[label].time_to_target.mean for label in ("often", "rarely")] == pytest.approx([16, 10])
    with pytest.raises(InputError, match="--looks"):
        retarget(runs, None, looks="often")
    mixed = [runs[0], retarget(runs, None, looks="grid")[1]]
    with pytest.raises(InputError, match="same instants"):
        summarise(mixed)


def test_a_harder_target_is_not_made_up(make_run):
    stopped = [make_run("a", 0, [(10, 0.95)], status="reached"), make_run("b", 0, [(10, 0.5)])]
    harder = summarise(retarget(stopped, 0.99))
    assert (harder["a"].reached, harder["a"].censored) == (0, 1)
    assert (harder["b"].reached, harder["b"].censored) == (0, 0)  # b had all the time that it was given
    assert not any(scheme.censored for scheme in summarise(retarget(stopped, 0.9)).schemes)


@pytest.mark.parametrize(("slow", "best"), [(50, None), (5, "slow")])
def test_nobody_is_called_faster_than_a_run_that_was_stopped_before(make_run, slow, best):
    """`quick` was stopped after 10 s: whoever needed longer may have been slower, and whoever needed less was not."""
    runs = [
        make_run("quick", 0, [(10, 0.95)], status="reached"),
        make_run("slow", 0, [(slow, 0.99)], status="reached"),
        make_run("stuck", 0, [(100, 0.5)]),
    ]
    assert summarise(runs).best == ("quick" if slow > 10 else "slow")
    harder = summarise(retarget(runs, 0.98))
    assert harder.best == best
    said = " ".join(sentences(harder))
    assert ("cannot show which" in said) == (best is None)
    assert "1 of 1 run of quick ended with the easier target" in said
    assert "stuck did not reach the target" in said
    cell = scheme_table(harder).rows[0][1]
    assert cell.text == "stopped before"


def test_a_stopped_run_that_met_the_target_may_have_held_it_from_there_on(make_run):
    """With hold, `quick` met 0.98 at 20 s and ended at 30 s: 25 s of `slow` need not be faster."""
    held = {"hold": 2, "hold_every": 20.0, "status": "reached"}
    runs = [
        make_run("quick", 0, [(10, 0.9), (10, 0.99), (10, 0.99)], **held),
        make_run("slow", 0, [(25, 0.99), (30, 0.99)], **held),
    ]
    assert summarise(retarget(runs, 0.98)).best is None


def test_held_over_another_number_of_instants(make_run):
    run = make_run("a", 0, [(10, 0.95), (10, 0.2), (10, 0.95), (10, 0.96)], hold=1, hold_every=10.0)
    assert summarise([run])["a"].time_to_target.mean == pytest.approx(10)
    assert summarise(retarget([run], None, hold=2))["a"].time_to_target.mean == pytest.approx(30)


def test_the_metric_at_a_time_is_that_of_the_model_then(three_schemes):
    found = summarise(three_schemes, at=55.0)
    assert found["random"].at.mean == pytest.approx(0.1)
    assert found["quick"].at.mean == pytest.approx(0.92)
    assert found["stuck"].at.mean == pytest.approx((0.5 + 0.6) / 2)  # ended long before
    table = scheme_table(found)
    place = [column.title for column in table.columns].index("Accuracy at 55.0 s")
    assert [row[place].text for row in table.rows] == ["0.100", "0.920", "0.550"]
    assert not any(column.sub.startswith("at ") for column in scheme_table(summarise(three_schemes)).columns)


def test_no_interval_of_an_accuracy_leaves_0_to_1(make_run):
    low = [make_run("low", seed, [(1, value)]) for seed, value in enumerate((0.1, 0.1, 0.6))]
    high = [make_run("high", seed, [(1, value)]) for seed, value in enumerate((0.6, 0.99, 0.99))]
    found = summarise([*low, *high], at=5.0)
    assert (found["low"].at.low, found["high"].at.high) == (0.0, 1.0)
    assert found["low"].at.high == pytest.approx(0.267 + 0.717, abs=1e-3)
    assert summarise(high)["high"].final.high == 1.0
    losses = [make_run("loss", seed, [(1, 10 * seed)], metric="loss", direction="down") for seed in range(3)]
    assert summarise(losses, at=5.0)["loss"].at.high > 1


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_make_no_sense(three_schemes, seconds):
    with pytest.raises(InputError, match="--at takes seconds"):
        summarise(three_schemes, at=seconds)


def test_the_command(three_schemes, tmp_path):
    for run in three_schemes:
        with RunWriter(tmp_path / run.info.label / f"seed-{run.info.seed}", run.info) as writer:
            for current in run.rounds:
                writer.add(current)
            writer.finish("finished")
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    before = {name: (tmp_path / name).read_bytes() for name in ("report.html", "report.png", "comparison.json")}
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--target", "0.5", "--at", "55", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["target"] == 0.5
    assert found["at"] == 55
    assert {each["label"]: each["at"] for each in found["schemes"]}["quick"]["mean"] == pytest.approx(0.92)
    assert "target 0.5" in (tmp_path / "report-target-0.5-at-55.html").read_text()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before  # of the runs' own target
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--at", "55"], terminal_width=200)
    assert "at 55.0 s" in shown.stdout
    assert "0.550" in shown.stdout
