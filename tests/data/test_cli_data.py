"""`fedpace data get` and `fedpace data show`, on generated files and on what is inside the package."""

from __future__ import annotations

import json

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from fedpace._base.errors import InputError
from fedpace.cli import app

RUNNER = CliRunner()


def invoke(*arguments):
    result = RUNNER.invoke(app, ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_get_says_what_there_is_and_where_it_came_from(folder, parquet):
    parquet.generate(folder, "mnist")
    shown = invoke("get", "mnist", "--data", str(folder))
    assert "ylecun/mnist" in shown
    assert "120" in shown
    assert "a part: the Hub's has 60,000" in shown
    assert str(folder / "mnist") in shown


def test_get_as_json(folder, parquet):
    parquet.generate(folder, "femnist")
    found = json.loads(invoke("get", "femnist", "--data", str(folder), "--json"))
    assert found["splits"] == {"train": {"rows": 120, "complete": 814_277}}
    assert (found["classes"], found["owners"], found["input_shape"]) == (62, 6, [1, 28, 28])


def test_get_finds_the_folder_of_the_variable(folder, parquet, monkeypatch):
    parquet.generate(folder, "femnist")
    monkeypatch.setenv("FEDPACE_DATA", str(folder))
    assert "6 owners (writer_id)" in invoke("get", "femnist")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digits", "there is nothing to fetch for 'digits'"),
        ("mnits", "there is no data set 'mnits' to fetch. Known: mnist, fashion-mnist"),
    ],
)
def test_get_what_cannot_be_fetched(name, words):
    with pytest.raises(InputError, match=words):
        invoke("get", name)


def test_show_in_words(folder, parquet):
    parquet.generate(folder, "mnist")
    shown = invoke("show", "mnist", "--data", str(folder), "-o", "clients=5", "-o", "partition=rotated")
    assert "24 / 24 / 24" in shown
    assert "label skew" in shown


def test_show_as_json(folder, parquet):
    parquet.generate(folder, "shakespeare")
    options = ("-o", "clients=3", "-o", "min_samples=300")
    found = json.loads(invoke("show", "shakespeare", "--data", str(folder), *options, "--json"))
    assert found["samples"] == [190, 190, 190]
    assert found["test_samples"] == [30, 30, 30]
    assert found["options"]["clients"] == 3
    assert [sum(row) for row in found["histograms"]] == found["samples"]
    assert 0 < found["skew"] < 1


def test_seeds_differ_and_repeat(folder, parquet):
    parquet.generate(folder, "mnist")

    def histograms(seed):
        shown = invoke("show", "mnist", "--data", str(folder), "-o", "clients=5", "--seed", seed, "--json")
        return json.loads(shown)["histograms"]

    assert histograms("0") == histograms("0") != histograms("1")


def test_the_picture(tmp_path):
    invoke("show", "digits", "--png", str(tmp_path / "digits.png"))
    assert imread(tmp_path / "digits.png").shape[0] > 400


def test_regression_has_numbers_but_no_picture(tmp_path):
    small = ("-o", "clients=3", "-o", "dimension=5")
    assert "none: regression" in invoke("show", "quadratic", *small)
    found = json.loads(invoke("show", "quadratic", *small, "--json"))
    assert (found["classes"], found["skew"], found["histograms"], found["test_samples"]) == (None,) * 4
    with pytest.raises(InputError, match="quadratic is regression and has no classes"):
        invoke("show", "quadratic", *small, "--png", str(tmp_path / "no.png"))
    assert not (tmp_path / "no.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mnits"], "Did you mean 'mnist'"),
        (["mnist", "-o", "alhpa=1.0"], "Did you mean 'alpha'"),
        (["mnist", "-o", "partition=natural"], "partition"),
        (["mnist", "--data", "nowhere"], "'mnist' is not in nowhere"),
        (["digits", "--data", "nowhere"], "--data is for data sets of parquet files, but digits has none"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(InputError, match=words):
        invoke("show", *arguments)
