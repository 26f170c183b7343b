from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedpace.cli import app

SMALL = ["population", "--devices", "50000", "--concurrency", "40", "--hours", "0.1"]


def test_policies_are_compared_recorded_and_drawn(tmp_path):
    out = tmp_path / "fleet"
    done = CliRunner().invoke(
        app, [*SMALL, "--policies", "paced(buffer=5),first-come(buffer=5)", "--out", str(out), "--target", "0.2"]
    )
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == {
        "paced_buffer_5_.json",
        "first-come_buffer_5_.json",
        "population.png",
    }
    record = json.loads((out / "paced_buffer_5_.json").read_text())
    assert record["policy"] == "paced"
    assert record["evaluations"][0]["clock"] == 0
    assert (out / "population.png").read_bytes()[:4] == b"\x89PNG"


def test_load_only_prints_json():
    done = CliRunner().invoke(app, [*SMALL, "--load-only", "--steer", "50", "--policies", "random", "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)["random"]
    assert summary["accuracy"] is None
    assert summary["devices"] == 50000


def test_an_edge_per_zone_sends_fewer_vectors():
    done = CliRunner().invoke(app, [*SMALL, "--policies", "paced(buffer=5)", "--edges", "20", "--json"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)["paced(buffer=5)"]
    assert 0 < summary["vectors_received"] < summary["answered"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--devices", "-5"], "devices must be at least 6"),
        (["--devices", str(10**19)], "devices of west-fast must lie between"),
        (["--concurrency", "0"], "concurrency must be at least 1"),
        (["--hours", "nan"], "--hours must be above 0"),
        (["--hours", "inf"], "--hours must be a finite number"),
        (["--start-hour", "-1"], "start_hour must be at least 0"),
        (["--steer", "-1"], "check_ins_per_second of steering must be above 0"),
        (["--edges", "-1"], "seconds between messages of every edge must be at least 0"),
        (["--target", "nan"], "--target must lie between 0 and 1"),
        (["--target", "2"], "--target must lie between 0 and 1"),
        (["--policies", "paced,paced"], "--policies names paced twice"),
        (["--policies", "paced(power=nan)"], "power of paced must lie between 0 and 1"),
        (["--policies", "paced(pwer=1)"], "paced has no option 'pwer'"),
    ],
)
def test_bad_options_are_refused(options, sentence):
    done = CliRunner().invoke(app, [*SMALL, "--load-only", *options])
    assert sentence in str(done.exception)


def test_mistakes_are_one_sentence():
    done = CliRunner().invoke(app, [*SMALL, "--policies", "first-com"])
    assert "Did you mean 'first-come'?" in str(done.exception)
    done = CliRunner().invoke(app, [*SMALL, "--scenario", "rar"])
    assert "scenario must be one of" in str(done.exception)
