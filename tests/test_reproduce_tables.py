"""The tables of `fedpace reproduce` and its headline, from results that are known."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest

from fedpace._base.errors import InputError
from fedpace.report.tables import latex, markdown, terminal_pieces
from fedpace.reproduce.command import PACKAGED
from fedpace.reproduce.paper import PAPER_SCHEMES, PRINTED, TunedOptions, merged, task, task_names
from fedpace.reproduce.paper_runs import PLANS, Request, planned
from fedpace.reproduce.paper_tables import (
    NOT_REACHED,
    NOT_RUN,
    ReproducedResults,
    SeedOutcome,
    TableEntry,
    cell_scores,
    cell_table,
    comma_separated,
    printed_cells,
)

REQUEST = Request("quick", ("quadratic",), (0, 1, 2), ("random", "flanp", "divfl", "pace"))


def entry(*seconds, wanted=3):
    status = {None: "finished"}
    return TableEntry(
        wanted, {s: SeedOutcome(t, 5, 900.0, 10.0, status.get(t, "reached")) for s, t in enumerate(seconds)}
    )


@pytest.fixture
def results():
    return ReproducedResults(
        "quick",
        {
            "table1/quadratic/random": entry(600.0, 700.0, 800.0),
            "table1/quadratic/flanp": entry(100.0, None, 200.0),
            "table1/quadratic/pace": entry(400.0, wanted=3),
        },
    )


def row(results):
    (found,) = cell_table("table1", REQUEST, results).rows
    return dict(zip(("title", "target", "random", "flanp", "divfl", "pace", "rival"), found, strict=True))


def test_a_cell_says_what_came_out_and_how_sure_it_is(results):
    cells = row(results)
    assert cells["random"].lines == ("0.695", "0.486–0.994", "paper 0.714")  # noqa: RUF001
    assert cells["flanp"].text == NOT_REACHED  # the seed that missed the target is not left out of a mean
    assert cells["flanp"].note == "2 of 3 arrive"
    assert cells["divfl"].text == NOT_RUN
    assert cells["pace"].lines == ("0.400", "1 of 3 seeds")
    assert [name for name, cell in cells.items() if cell.tone == "best"] == ["pace"]


def test_the_papers_best_is_found_among_the_columns_that_are_shown(results):
    # Of random, FLANP and DivFL the paper has DivFL in front: 0.635.
    assert [name for name, cell in row(results).items() if cell.published_best] == ["divfl"]


def test_a_row_says_its_best_rival_and_how_many_seeds_it_has(results):
    table = cell_table("table1", REQUEST, results)
    (found,) = table.rows
    assert found[0].lines == ("Quadratic", "1 to 3 seeds")
    assert table.columns[-1].title == "Best rival"
    assert found[-1].lines == (NOT_RUN,)  # DivFL was not: it might be the best
    some = Request("quick", ("quadratic",), (0, 1, 2), ("random", "flanp", "pace"))
    assert cell_table("table1", some, results).rows[0][-1].lines == ("0.695", "Random")  # FLANP missed; pace is ours
    alone = cell_table("table1", Request("quick", ("quadratic",), (0, 1, 2), ("random", "divfl")), results)
    assert not any(cell.tone == "best" for cell in alone.rows[0])
    ours = cell_table("table1", Request("quick", ("quadratic",), (0, 1, 2), ("pace",)), results)
    assert ours.rows[0][-1].lines == ()
    assert "Scale of Quadratic: as in the paper." in table.notes


def test_every_run_that_came_with_fedpace_is_known_by_its_configuration():
    """Otherwise `--missing` runs it again: whoever changes a task or a column has to run its cells anew."""
    for profile, name in PACKAGED.items():
        raw = json.loads(files("fedpace.reproduce").joinpath(name).read_text(encoding="utf-8"))
        packaged = ReproducedResults.parse(raw, name)
        known = [each for each in planned(Request(profile), list(PLANS)) if packaged.known(each) is not None]
        assert len(known) == sum(len(entry.outcomes) for entry in packaged.entries.values())


def test_every_form_has_the_same_figures(results):
    table = cell_table("table1", REQUEST, results)
    assert "**0.400**<br>1 of 3 seeds" in markdown(table)
    assert r"\makecell{\textbf{0.400} \\ 1 of 3 seeds}" in latex(table)
    assert "0.486--0.994" in latex(table)
    assert "resizebox" not in latex(table)
    wide = latex(cell_table("table1", Request(only=("quadratic",)), results))
    assert r"\resizebox{\textwidth}" in wide
    assert wide.count("{") == wide.count("}")
    lines = comma_separated(REQUEST, results).splitlines()
    assert lines[1] == "table1,quadratic,random,0,600.0,5,10.0,900.0,reached,2.95,714.0,2.95,quick"
    assert len(lines) == 1 + 3 + 3 + 1


def test_a_wide_table_comes_in_pieces_that_all_name_their_rows(results):
    table = cell_table("table1", REQUEST, results)
    assert len(terminal_pieces(table, 200)) == 1
    pieces = terminal_pieces(table, 40)
    assert len(pieces) > 1
    assert sum(len(piece.columns) - 1 for piece in pieces) == len(table.columns) - 1
    assert {str(piece.columns[0].header) for piece in pieces} == {"Data set"}


def test_results_come_back_as_they_were_written(results, tmp_path):
    results.write(tmp_path / "results.json")
    back = ReproducedResults.read(tmp_path / "results.json")
    assert back.content() == results.content()
    (tmp_path / "results.json").write_text('{"format": 2}')
    with pytest.raises(InputError, match="does not hold results"):
        ReproducedResults.read(tmp_path / "results.json")


def test_the_papers_own_headline():
    # Counted by hand in its tables 1 and 2: the bold entries that are its own, 15 of 18.
    cells = printed_cells()
    assert len(cells) == 18
    assert cell_scores(cells, PAPER_SCHEMES).fastest == 15
    assert cell_scores(cells, PAPER_SCHEMES).cells == cell_scores(cells, PAPER_SCHEMES).arrived == 18


def test_a_standing_counts_misses_and_leaves_out_what_was_not_run():
    rivals = ("random", "flanp")
    cells = {
        "won": {"random": 800.0, "flanp": 400.0, "pace": 200.0},
        "lost": {"random": 800.0, "flanp": 100.0, "pace": 200.0},
        "alone": {"random": None, "flanp": None, "pace": 200.0},
        "missed": {"random": 800.0, "flanp": 400.0, "pace": None},
        "not run": {"random": 800.0, "flanp": 400.0},
        "rival not run": {"random": 800.0, "pace": 200.0},
    }
    found = cell_scores(cells, ("pace",), rivals)
    assert (found.cells, found.arrived, found.fastest) == (4, 3, 2)
    assert math.isclose(found.over_random, 4.0)
    assert math.isclose(found.over_baseline, 1.0)  # twice as fast, and half as fast


def test_every_data_set_has_a_target_that_was_tuned_and_one_of_the_paper():
    tuned = TunedOptions.packaged()
    for name in task_names():
        quick, full = task(name, "quick"), task(name, "paper")
        assert full.target == full.paper_target == quick.paper_target
        assert quick.training["lr"] in quick.rates
        assert quick.max_rounds == 3 * quick.rounds
        for delays in ("synthetic", "nycmesh"):
            assert tuned.options(name, delays, "flanp")
            assert tuned.options(name, delays, "approx-opt-sampling")
    assert task("quadratic", "quick").target == 2.95
    assert len(PRINTED) == 7


def test_another_model_keeps_none_of_the_options_of_the_first():
    table = {"model": {"name": "resnet18", "width": 64}, "data": {"name": "mnist", "clients": 100}}
    found = merged(table, {"model": {"name": "mlp", "hidden": 32}, "data": {"clients": 50}})
    assert found == {"model": {"name": "mlp", "hidden": 32}, "data": {"name": "mnist", "clients": 50}}


def test_the_documents_have_the_tables_of_the_results_that_come_with_fedpace():
    root = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location("reproduction", root / "benchmarks" / "reproduction.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    texts = [document.read_text(encoding="utf-8") for document in module.DOCUMENTS]
    for text in texts:
        assert text == module.filled(text, *module.packaged()), "run benchmarks/reproduction.py"
    every = "".join(texts)
    assert len(re.findall("<!-- made: ", every)) + len(module.shown(*module.packaged())) == every.count("<!-- end -->")
