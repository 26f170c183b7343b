"""Bounded influence: counted per client, and shown wherever one looks at a run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedpace.cli import app
from fedpace.records.influence import Influence
from fedpace.records.run import Round, RunRecord
from fedpace.records.writer import RunWriter
from fedpace.report.comparison import conditions, summarise
from fedpace.report.explain import explain_client
from fedpace.report.page import MAX_BOUNDED, influence_panel, render_page
from fedpace.report.summary import influence_sentence
from fedpace.study.results import Results

FACTS = (
    {},
    {"clipped": {"1": 0.5}, "capped": {"0": 0.25}},
    {"clipped": {"1": 0.12}, "left out": ["0", "1"], "excluded": ["3"]},
    {"capped": {"0": 0.05}},
)


def with_facts(run: RunRecord, facts=FACTS) -> RunRecord:
    return replace(run, rounds=tuple(replace(r, facts=f) for r, f in zip(run.rounds, facts, strict=True)))


@pytest.fixture
def bounded(make_run):
    return with_facts(make_run("pace", 0, [(1, 0.3), (1, 0.5), (1, 0.95)]))


@pytest.fixture
def recorded(bounded, tmp_path):
    """The same run of a server, on disk."""
    info = replace(bounded.info, experiment={**bounded.info.experiment, "host": "Flower"}, status="running")
    folder = tmp_path / "state"
    with RunWriter(folder, info) as writer:
        for current in bounded.rounds:
            writer.add(current)
        writer.finish("finished")
    return folder


def test_rounds_are_counted_per_client(bounded):
    found = Influence(bounded.rounds)
    assert (found.clients["1"].clipped, found.clients["1"].shortest, found.clients["1"].left_out) == (2, 0.12, 1)
    assert (found.clients["0"].capped, found.clients["0"].least_weight) == (2, 0.05)
    assert found.excluded == {"3": 2}
    assert found.line() == "clipped 2, capped 2, left out 2, excluded: 3"
    assert found.line(("a", "b", "c", "phone-7")).endswith("excluded: phone-7")
    assert not Influence([Round(0, 0.0, 0.0, 0.0, None, None)])
    assert Influence().line() == ""


def test_a_client_that_was_readmitted_is_not_excluded_any_more(bounded):
    found = Influence(bounded.rounds)
    found.add(replace(bounded.rounds[-1], number=4, facts={"excluded": []}))
    assert found.excluded == {}
    assert "excluded:" not in found.line()
    gone = Influence(
        [replace(bounded.rounds[1], facts={"excluded": ["3"]}), replace(bounded.rounds[2], facts={"excluded": []})]
    )
    assert gone.line() == "no client is excluded any more"
    found.add(replace(bounded.rounds[-1], number=9, facts={"excluded": ["3"]}))
    assert (found.excluded, found.clients["3"].exclusions) == ({"3": 9}, 2)


def test_a_line_names_a_few_of_many_excluded(bounded):
    found = Influence([replace(bounded.rounds[1], facts={"excluded": [f"phone-{i}" for i in range(8)]})])
    assert found.line() == "excluded: phone-0, phone-1, phone-2, phone-3, phone-4, ... (8 in all)"


def test_facts_that_nobody_wrote_on_purpose_count_for_nothing(bounded):
    strange = {"clipped": [1, 2], "capped": {"0": "much"}, "left out": "0", "excluded": None}
    assert not Influence([replace(bounded.rounds[1], facts=strange)])


def test_the_page_has_a_panel_only_where_a_run_has_facts(bounded, make_run):
    plain = make_run("random", 0, [(1, 0.3), (1, 0.95)])
    assert influence_panel([plain], summarise([plain])) == ""
    assert "Bounded influence" not in render_page([plain], summarise([plain]), title="t", plotly="")
    runs = [plain, bounded]
    page = render_page(runs, summarise(runs), title="t", plotly="")
    assert page.count("<h2>Bounded influence</h2>") == 1
    panel = influence_panel(runs, summarise(runs))
    assert "<td>2<small>to 12 %</small></td>" in panel
    assert "since round 2" in panel
    assert "fedpace readmit" not in panel, "a simulation takes no requests"
    assert panel.count("<th scope='row' class='text'>pace</th>") == 3


def test_the_panel_escapes_names_and_shows_those_with_the_most(make_run):
    name = "<b>phone</b>"
    many = {str(client): 0.5 for client in range(2 * MAX_BOUNDED)}
    server = make_run("pace", 0, [(1, 0.3)], experiment={"host": "Flower"})
    run = with_facts(server, ({}, {"clipped": many, "excluded": [name]}))
    panel = influence_panel([run], summarise([run]))
    assert name not in panel
    assert "&lt;b&gt;phone&lt;/b&gt;" in panel
    assert panel.count("<tr>") == MAX_BOUNDED + 1
    assert f"the {MAX_BOUNDED} of {2 * MAX_BOUNDED + 1} clients" in panel
    assert "fedpace readmit FOLDER CLIENT" in panel


def test_the_summary_says_it_in_one_line(bounded, make_run, recorded, tmp_path):
    assert influence_sentence([make_run("random", 0, [(1, 0.3)])]) == ""
    assert influence_sentence([bounded]) == "Bounded influence: clipped 2, capped 2, left out 2, excluded: 3."
    other = with_facts(make_run("random", 0, [(1, 0.3)]), ({}, {"clipped": {"2": 0.1}}))
    assert influence_sentence([bounded, other]) == (
        "Bounded influence, 2 runs: 3 updates clipped, 2 weights capped, 2 updates left out, 1 client excluded."
    )
    assert "Bounded influence: clipped 2" in str(Results(recorded))
    done = CliRunner().invoke(app, ["report", str(recorded)])
    assert done.exit_code == 0, done.output
    assert "Bounded influence: clipped 2, capped 2, left out 2, excluded: 3." in done.output


def test_watch_says_it_in_one_line(recorded):
    done = CliRunner().invoke(app, ["watch", str(recorded), "--once"])
    assert "clipped 2, capped 2, left out 2, excluded: 3" in done.output
    (run,) = json.loads(CliRunner().invoke(app, ["watch", str(recorded), "--json"]).output)["runs"]
    assert (run["clipped"], run["capped"], run["left_out"], run["excluded"]) == (2, 2, 2, ["3"])
    several = CliRunner().invoke(app, ["watch", str(recorded.parent), "--once"])
    assert "clipped 2" in several.output


def test_explain_says_how_a_client_was_bounded(bounded):
    found = explain_client(bounded, "1")
    assert found.turns[0].reason.endswith("; its update was clipped to 50 % of its length")
    both = "its update was clipped to 12 % of its length; the robust rule left its update out of the step"
    assert found.turns[1].reason.endswith(both)
    assert "In 2 rounds its update was clipped, to 12 % of its length at the least." in found.sentences()
    assert "In 1 round the robust rule left its update out." in found.sentences()
    assert found.influence == pytest.approx(1 / 3), "an update that was left out weighed nothing"
    first = explain_client(bounded, "0")
    assert first.turns[2].reason.endswith("its weight was capped to 5.0 %")
    assert "In 2 rounds its weight was capped." in first.sentences()


def test_explain_says_how_to_take_an_exclusion_back(bounded, recorded):
    found = explain_client(bounded, "3")
    assert found.excluded_since == 2
    assert [turn.reason.startswith("excluded for a while: ") for turn in found.turns] == [False, False, True]
    assert found.sentences()[-1].endswith("refused its updates. `Coordinator.readmit` asks it again.")
    done = CliRunner().invoke(app, ["explain", str(recorded), "--client", "3"])
    assert "`fedpace readmit FOLDER 3` asks it again" in " ".join(done.output.split())


def test_a_robust_rule_is_named_among_the_conditions(make_run):
    setting = {"clock": {}, "fleet": {}}
    assert "combined by krum" in conditions(make_run("a", 0, [], experiment=setting, robust={"name": "krum"}).info)
    assert not any("combined" in said for said in conditions(make_run("a", 0, [], experiment=setting).info))


def test_how_much_a_client_trained_is_explained(make_run):
    run = make_run("a", 0, [(1, 0.5)] * 2, expected_delays=(1.0, 2.0))
    rounds = [
        replace(current, clients=(0, 1), weights=(0.5, 0.5), facts={"work": {"1": 0.25}} if number else {})
        for number, current in enumerate(run.rounds)
    ]
    run = RunRecord(run.info, tuple(rounds))
    slow, fast = explain_client(run, "1"), explain_client(run, "0")
    assert slow.mean_work == 0.25
    assert any("It trained 0.25 times as much as usual on average" in said for said in slow.sentences())
    assert all("it trained 0.25 times as much as usual" in turn.reason for turn in slow.turns)
    assert fast.mean_work == 1.0
    assert not any("as much as usual" in said for said in fast.sentences())
