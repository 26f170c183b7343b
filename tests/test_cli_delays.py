"""`fedpace delays show`, in numbers, as a picture, and with options that make no sense."""

from __future__ import annotations

import json

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from fedpace._base.errors import InputError
from fedpace.cli import app

RUNNER = CliRunner()
SMALL = ["--clients", "10", "--fleets", "2", "--rounds", "2"]


def invoke(*arguments):
    return RUNNER.invoke(app, ["delays", "show", *arguments], catch_exceptions=False)


def test_shows_quantiles_and_a_histogram():
    result = invoke("lognormal", *SMALL)
    assert result.exit_code == 0
    assert "p90" in result.stdout
    assert "share above 1000 s" in result.stdout
    assert "█" in result.stdout


def test_json_holds_the_numbers_and_the_histogram():
    shown = json.loads(invoke("constant", "-o", "seconds=42", "--json", *SMALL).stdout)
    assert shown["seconds"]["p50"] == pytest.approx(42)
    assert sum(shown["histogram"]["counts"]) == 10 * 2 * 2


def test_options_reach_the_model():
    slow = json.loads(invoke("synthetic", "-o", "compute=[900.0, 901.0]", "--json", *SMALL).stdout)
    assert slow["seconds"]["p5"] > 900


def test_model_bytes_reach_the_model():
    light, heavy = (
        json.loads(invoke("synthetic", "--model-bytes", size, "--json", *SMALL).stdout)["seconds"]["p50"]
        for size in ("1000", "1000000000")
    )
    assert heavy > light + 100


def test_png_is_a_picture(tmp_path):
    invoke("nycmesh", "--png", str(tmp_path / "delays.png"), *SMALL)
    assert imread(tmp_path / "delays.png").shape[0] > 300


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["lognomal"], "Did you mean 'lognormal'"),
        (["lognormal", "-o", "sgima=1.0"], "Did you mean 'sigma'"),
        (["lognormal", "-o", "sigma"], "KEY=VALUE"),
        (["lognormal", "-o", "sigma=-1.0"], "sigma"),
        (["lognormal", "--clients", "0"], "--clients"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        invoke(*arguments)
