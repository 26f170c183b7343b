"""`fedpace list selectors` shows what each scheme needs, its paper and its options."""

from __future__ import annotations

import inspect
import json
import sys

import pytest
from typer.testing import CliRunner

from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.cli.listing import reflowed


@pytest.fixture(scope="module")
def listed():
    shown = CliRunner().invoke(app, ["list", "selectors", "--json"], catch_exceptions=False).stdout
    return {entry["name"]: entry for entry in json.loads(shown)["selectors"]}


def test_every_scheme_is_listed_with_its_paper_unless_it_is_ours(listed):
    assert sorted(listed) == registry.selectors.names()
    for name, entry in listed.items():
        ours = "\n\nOurs" in (sys.modules[registry.selectors[name].__module__].__doc__ or "")
        assert ours or '"' in entry["paper"], f"the header of {name} should begin with its paper, or with 'Ours'"


def test_needs_and_uses_are_told_apart(listed):
    assert listed["delayhet-submodular"]["needs"] == ["delays", "feature moments"]
    assert listed["approx-opt-sampling"]["uses"] == ["update sketches"]
    plain = {"k": 10, "variant": "uniform-wor", "fedexp_exponent": 0.0, "momentum": False, "overcommit": 1.0}
    assert listed["random"]["options"] == plain


def test_the_table_names_papers_and_options():
    shown = (
        CliRunner().invoke(app, ["list", "selectors", "--long"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    )
    assert "Harshvardhan" in shown
    assert "target_heterogeneity = 0.0" in shown


def test_options_are_readable_in_a_narrow_terminal():
    shown = (
        CliRunner().invoke(app, ["list", "selectors", "--long"], env={"COLUMNS": "60"}, catch_exceptions=False).stdout
    )
    assert "target_heterogeneity" in shown
    assert max(len(line) for line in shown.splitlines()) <= 60


@pytest.mark.parametrize("kind", ["schemes", "delays", "datasets", "models", "servers", "robust"])
def test_the_list_fits_a_window(kind):
    """A name and what it is: papers and options are for --long and `show`."""
    shown = CliRunner().invoke(app, ["list", kind], env={"COLUMNS": "80"}, catch_exceptions=False).stdout
    names = getattr(registry, {"schemes": "selectors"}.get(kind, kind)).names()
    _, _, table = shown.partition("\n\n")
    lines = table.splitlines()
    assert len(lines) == len(names), "a summary does not fit on its line: shorten the first line of its class"
    assert sorted(line.split()[0] for line in lines) == names
    assert "options:" not in shown


def test_a_misspelt_command_and_a_misspelt_kind_are_guessed_once():
    shown = CliRunner().invoke(app, ["lst"], env={"COLUMNS": "100"})
    assert shown.output.count("Did you mean 'list'?") == 1
    with pytest.raises(InputError, match=r"but 'schems' came\. Did you mean 'schemes'\? `fedpace show NAME` shows"):
        CliRunner().invoke(app, ["list", "schems"], catch_exceptions=False)


def test_show_fills_paragraphs_and_items_to_the_window():
    text = (
        "One two three four five\nsix.\n\n- an item that\n  goes on, and on\n- another\n\nFormula:\n"
        "    a = b + c + d + e + f + g\nand more."
    )
    assert reflowed(text, 20).splitlines() == [
        "One two three four", "five six.", "", "- an item that goes", "  on, and on", "- another", "",
        "Formula:", "    a = b + c + d + e + f + g", "and more.",
    ]  # fmt: skip
    for name in registry.selectors.names():
        about = inspect.getdoc(inspect.getmodule(registry.selectors[name])) or ""
        assert reflowed(about, 60).split() == about.split(), "no word is lost"
    shown = CliRunner().invoke(app, ["show", "pace"], env={"COLUMNS": "60"}, catch_exceptions=False).stdout
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 60


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare"], "Experiment in TOML"),
        (["compare"], "runs/NAME-TIME"),
        (["delays", "show"], "Name of a delay model"),
    ],
)
def test_help_explains_arguments_and_defaults(command, words):
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
    assert words in shown
