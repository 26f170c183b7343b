from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fedpace.report import numbers
from fedpace.report.comparison import Comparison, summarise
from fedpace.report.summary import headline, sentences
from fedpace.report.tables import scheme_table, terminal


def shown(comparison: Comparison, *, width: int = 100, styled: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=styled, color_system="standard" if styled else None
    )
    console.print(terminal(scheme_table(comparison)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"),
     (0.01234, "0.0123"), (1.2345, "1.23"), (99.96, "100"), (742.3, "742"), (12345.6, "12,346"), (1e-7, "1.00e-07"),
     (999.6, "1,000"), (-12.34, "-12.3")],
)  # fmt: skip
def test_digits(value, text):
    assert numbers.digits(value) == text


def test_the_table_says_what_was_not_reached(three_schemes, make_run):
    runs = [*three_schemes, make_run("flaky", 0, [(10, 0.95)]), make_run("flaky", 1, [(5, 0.2)])]
    text = shown(summarise(runs))
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "not reached" in lines["stuck"]
    assert "1 of 2 reached" in lines["flaky"]
    assert "141 s" in lines["random"]  # sqrt(100 * 200)
    assert "2.83×" in lines["quick"]  # noqa: RUF001
    assert "target accuracy ≥ 0.9" in text
    assert "1 of 2 seeds" in text


def test_the_summary_says_which_limit_cut_runs(three_schemes, make_run):
    cut = {"experiment": {"stop": {"max_rounds": 2, "max_seconds": 500.0}}}
    runs = [
        *three_schemes[:4],
        make_run("slow", 0, [(5, 0.4), (5, 0.5)], **cut),
        make_run("slow", 1, [(600, 0.4)], **cut),
    ]
    said = " ".join(sentences(summarise(runs)))
    assert "`--max-rounds 2` ended 1 of 2 runs of slow before the target was held: with a higher limit" in said
    assert "`max_seconds = 500` ended 1 of 2 runs of slow" in said
    assert "ended" not in " ".join(sentences(summarise(three_schemes)))


def test_the_headline_claims_only_what_the_seeds_show(three_schemes, make_run):
    assert headline(summarise(three_schemes)) == "", "two seeds have no interval"
    times, speeds = [(0, 100), (1, 210), (2, 150)], (("random", 1), ("b", 4))
    clear = [make_run(name, seed, [(time / speed, 0.95)]) for seed, time in times for name, speed in speeds]
    assert headline(summarise(clear)) == "b holds accuracy 0.9 first, after 36.6 s: 4.00 times as fast as random"
    times, speeds = [(0, 100), (1, 210), (2, 150)], (("random", 1), ("c", 2), ("b", 4))
    three = [make_run(name, seed, [(time / speed, 0.95)]) for seed, time in times for name, speed in speeds]
    assert headline(summarise(three)).endswith(": 2.00 times as fast as c, 4.00 times as fast as random")
    close = [make_run(name, seed, [(10 + (seed + at) % 3, 0.95)]) for seed in range(3) for at, name in enumerate("ab")]
    assert headline(summarise(close)) == ""


def test_the_best_time_alone_is_bold(three_schemes):
    text = shown(summarise(three_schemes), styled=True)
    bold = [found.strip() for found in re.findall(r"\x1b\[1;32m(.*?)\x1b\[0m", text)]
    assert [found for found in bold if found] == ["quick", "50.0 s"]


def test_eighty_columns_lose_nothing(three_schemes):
    text = shown(summarise(three_schemes), width=80)
    assert "accuracy" in text.splitlines()[2]
    assert "0.920" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_labels_are_no_markup(make_run):
    assert "[red]a[/]" in shown(summarise([make_run("[red]a[/]", 0, [(10, 0.95)])]))


def test_without_a_target_there_is_no_column_about_it(make_run):
    text = shown(summarise([make_run("a", 0, [(1, 0.8)], target=None)]))
    assert "Time" not in text
    assert "needed" not in text
    assert "0.800" in text
    assert "no target" in text


def test_diverged_runs_get_a_column(make_run, three_schemes):
    assert "Diverged" not in shown(summarise(three_schemes))
    assert "1 of 1" in shown(summarise([make_run("wild", 0, [], status="diverged")]))


def test_the_summary_of_three_schemes(three_schemes):
    text = " ".join(sentences(summarise(three_schemes)))
    assert text.startswith("quick was the fastest to reach the target accuracy of 0.9: it took 50.0 s of virtual time")
    assert "2.83 times as fast as random" in text
    assert "too few for intervals" in text
    assert "stuck did not reach the target in any run." in text


def test_seeds_that_do_not_settle_it(make_run):
    runs = [make_run("random", seed, [(100, 0.95)]) for seed in range(3)]
    runs += [make_run("quick", seed, [(seconds, 0.95)]) for seed, seconds in enumerate((20, 50, 180))]
    said = sentences(summarise(runs))
    assert "the interval contains 1" in " ".join(said)
    assert said[0].startswith(
        "No scheme is clearly the fastest to reach the target accuracy of 0.9; quick took the least"
    )


def test_the_next_best_is_named_before_the_baseline(make_run):
    """A large factor over a bad baseline says little about a rival that is nearly as good."""
    runs = [make_run("random", seed, [(1000, 0.95)]) for seed in range(3)]
    runs += [make_run("quick", seed, [(seconds, 0.95)]) for seed, seconds in enumerate((20, 50, 80))]
    runs += [make_run("rival", seed, [(seconds, 0.95)]) for seed, seconds in enumerate((40, 100, 160))]
    said = " ".join(sentences(summarise(runs)))
    assert (
        "rival came next: seed by seed it took 2.00 times as long (95 % interval 2.00\u20132.00). Seed by seed" in said
    )
    close = [make_run("near", seed, [(seconds, 0.95)]) for seed, seconds in enumerate((60, 20, 80))]
    said = " ".join(sentences(summarise([*runs, *close])))
    assert "near came next" in said
    assert "as long" in said.split("; the interval contains 1")[0]


def test_the_summary_never_calls_a_partial_scheme_the_fastest(make_run):
    runs = [make_run("random", 0, [(100, 0.95)]), make_run("random", 1, [(100, 0.95)])]
    runs += [make_run("flaky", 0, [(1, 0.95)]), make_run("flaky", 1, [(1, 0.2)])]
    text = " ".join(sentences(summarise(runs)))
    assert "random was the only scheme to reach the target accuracy of 0.9 in every run" in text
    assert "flaky reached it in 1 of 2 runs only, so it is not ranked by time." in text
    runs[-1] = make_run("flaky", 1, [(1, 0.2)], status="interrupted")
    text = " ".join(sentences(summarise(runs)))
    assert "flaky reached it in 1 of 2 runs so far, so it is not ranked by time." in text


def test_who_is_equally_good_is_named_together(make_run):
    runs = [make_run(label, seed, [(1, 0.95 - seed)]) for label in ("a", "b") for seed in (0, 1)]
    said = " ".join(sentences(summarise(runs)))
    assert "most often it was reached by a (1 of 2 runs) and b (1 of 2 runs)." in said
    assert "not ranked by time" not in said, "said already"
    free = [make_run(label, 0, [(1, 0.5)], target=None) for label in ("a", "b")]
    assert "a and b ended with the highest accuracy" in " ".join(sentences(summarise(free)))


@pytest.mark.parametrize(
    ("metric", "start"),
    [(0.5, "No scheme reached the target accuracy of 0.9 in any run."), (0.95, "a reached the target")],
)
def test_the_summary_of_one_run(make_run, metric, start):
    text = " ".join(sentences(summarise([make_run("a", 0, [(10, metric)])])))
    assert text.startswith(start)
    assert "one seed only" in text


def test_a_baseline_that_never_arrives_is_named(make_run):
    runs = [make_run("random", 0, [(10, 0.5)]), make_run("a", 0, [(10, 0.95)])]
    assert "random, the baseline, never reached the target" in " ".join(sentences(summarise(runs)))


def test_all_diverged_without_a_target(make_run):
    text = " ".join(sentences(summarise([make_run("wild", 0, [], target=None, status="diverged")])))
    assert "1 of 1 run of wild diverged." in text
