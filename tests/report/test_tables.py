from __future__ import annotations

import json
import math

import pytest

from fedpace._base.errors import InputError
from fedpace.report.comparison import summarise
from fedpace.report.export import round_rows
from fedpace.report.figures import cohort_over_rounds
from fedpace.report.numbers import estimate, geometric_estimate, time_estimate
from fedpace.report.summary import sentences
from fedpace.report.tables import scheme_table

T_2 = 4.302652730  # Student's t, 97.5 %, two degrees of freedom


def test_the_interval_is_students():
    # Mean 12, deviations -2, 0, 2: standard deviation 2.
    found = estimate([10.0, 12.0, 14.0])
    half = T_2 * 2 / math.sqrt(3)
    assert found is not None
    assert (found.mean, found.count) == (12.0, 3)
    assert (found.low, found.high) == pytest.approx((12 - half, 12 + half))


@pytest.mark.parametrize("values", [[7.0], [2.0, 12.0]])
def test_fewer_than_three_values_have_a_mean_and_no_interval(values):
    found = estimate(values)
    assert found is not None
    assert (found.mean, found.low, found.high, found.count) == (7.0, None, None, len(values))
    assert estimate([]) is None


def test_times_spread_by_factors_and_are_never_negative():
    # Student's interval of 1, 2 and 30 reaches far below 0; that of the logarithms is one factor each way.
    found, plain = time_estimate([1.0, 2.0, 30.0]), estimate([1.0, 2.0, 30.0])
    assert plain.low < 0 < found.low < found.mean == pytest.approx(60 ** (1 / 3))
    assert found.high / found.mean == pytest.approx(found.mean / found.low)
    assert time_estimate([]) is None


def test_twice_and_half_as_fast_cancel():
    found = geometric_estimate([2.0, 0.5, 1.0])
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    # Logarithms are +-ln 2 and 0: standard deviation ln 2, so the half width is t ln 2 / sqrt(3).
    assert found.high == pytest.approx(2 ** (T_2 / math.sqrt(3)))
    assert found.low == pytest.approx(2 ** -(T_2 / math.sqrt(3)))


def test_a_worked_example(three_schemes):
    found = summarise(three_schemes)
    assert [scheme.label for scheme in found.schemes] == ["random", "quick", "stuck"]
    assert (found.baseline, found.best) == ("random", "quick")

    random = found["random"]
    assert (random.runs, random.reached, random.seeds) == (2, 2, (0, 1))
    time = random.time_to_target
    assert time is not None
    assert (time.mean, time.low, time.high) == (pytest.approx(math.sqrt(100 * 200)), None, None)
    assert (random.min_time, random.median_time) == (100, 150)
    assert random.rounds_to_target == 2
    # (60 + 40) / 2 and (120 + 80) / 2 seconds per round.
    assert random.round_seconds == 75
    assert random.speed_up is not None
    assert random.speed_up.mean == pytest.approx(1)

    quick = found["quick"]
    assert quick.rounds_to_target == 2.5
    assert quick.clients_per_round == 2  # 3 under one seed and 1 under the other: seeds count alike, however long
    # Paired: 100 / 50 and 200 / 50, so sqrt(2 * 4).
    assert quick.speed_up is not None
    assert quick.speed_up.mean == pytest.approx(math.sqrt(8))
    assert quick.final is not None
    assert quick.final.mean == pytest.approx(0.92)


def test_schemes_are_ranked_by_the_mean_that_pairs_them(make_run):
    """By arithmetic means `steady` is faster (55 s against 56 s), seed by seed it takes 2.4 times as long."""
    runs = [make_run("random", seed, [(1000, 0.95)]) for seed in range(2)]
    runs += [make_run("uneven", seed, [(time, 0.95)]) for seed, time in enumerate((5, 107))]
    runs += [make_run("steady", seed, [(55, 0.95)]) for seed in range(2)]
    found = summarise(runs)
    assert found.ranking == ("uneven", "steady", "random")
    assert found.best == "uneven"
    means = {label: found[label].time_to_target.mean for label in found.ranking}
    assert list(means.values()) == sorted(means.values()), "the table shows the mean that ranks"
    assert found["uneven"].speed_up.mean == pytest.approx(means["random"] / means["uneven"])
    said = " ".join(sentences(found))
    assert said.startswith("uneven was the fastest")
    assert f"steady came next: seed by seed it took {55 / math.sqrt(535):.2f} times as long" in said
    cells = dict(zip(("random", "uneven", "steady"), scheme_table(found).rows, strict=True))
    assert [label for label, row in cells.items() if row[1].tone == "best"] == ["uneven"]


def test_ranked_over_the_seeds_that_all_have(make_run):
    runs = [make_run("a", 0, [(10, 0.95)]), make_run("a", 1, [(10, 0.95)]), make_run("a", 2, [(900, 0.95)])]
    runs += [make_run("b", 0, [(20, 0.95)]), make_run("b", 1, [(20, 0.95)])]
    assert summarise(runs).ranking == ("a", "b")


def test_clients_are_counted_and_not_their_replies(make_run):
    run = make_run("pace-async", 0, [(1, 0.5), (1, 0.95)], cohort=(0, 1, 1, 1, 2))
    found = summarise([run])
    assert found["pace-async"].clients_per_round == 3
    assert found["pace-async"].cost.tasks == 10, "tasks are counted one by one"
    assert cohort_over_rounds([run]).mean.tolist() == [3, 3]
    assert [row["clients"] for row in round_rows([run])] == [0, 3, 3]


def test_times_of_nothing_have_an_arithmetic_mean():
    assert time_estimate([0.0, 2.0]).mean == 1.0
    assert time_estimate([]) is None


def test_not_reached_has_no_time(three_schemes):
    stuck = summarise(three_schemes)["stuck"]
    assert (stuck.runs, stuck.reached) == (2, 0)
    assert (
        stuck.time_to_target is stuck.speed_up is stuck.min_time is stuck.median_time is stuck.rounds_to_target is None
    )
    assert stuck.final is not None
    assert stuck.final.mean == pytest.approx(0.55)
    assert [result.ended for result in stuck.results] == [10, 10]


def test_who_sometimes_fails_is_not_ranked_and_counts_as_late(make_run):
    runs = [make_run("random", seed, [(100, 0.95)]) for seed in range(3)]
    runs += [make_run("flaky", 0, [(10, 0.95)]), make_run("flaky", 1, [(1, 0.2)]), make_run("flaky", 2, [(20, 0.95)])]
    found = summarise(runs)
    flaky = found["flaky"]
    assert found.best == "random"
    assert (flaky.reached, flaky.runs, flaky.always_reached) == (2, 3, False)
    assert flaky.time_to_target is not None
    assert (flaky.time_to_target.mean, flaky.time_to_target.count) == (pytest.approx(math.sqrt(10 * 20)), 2)
    assert flaky.median_time == 20  # of 10, 20 and never
    assert flaky.speed_up is not None
    assert flaky.speed_up.count == 2
    assert flaky.speed_up.mean == pytest.approx(math.sqrt(10 * 5))


def test_pairs_go_by_seed_and_not_by_order(make_run):
    runs = [make_run("random", 0, [(100, 1.0)]), make_run("random", 1, [(10, 1.0)])]
    runs += [make_run("other", 1, [(5, 1.0)]), make_run("other", 0, [(50, 1.0)]), make_run("other", 7, [(1, 1.0)])]
    ratio = summarise(runs)["other"].speed_up
    assert ratio is not None
    assert ratio.count == 2
    assert ratio.mean == pytest.approx(2)


def test_a_single_seed(make_run):
    found = summarise([make_run("random", 0, [(100, 0.95)]), make_run("quick", 0, [(25, 0.95)])])
    quick = found["quick"]
    assert quick.time_to_target is not None
    assert quick.speed_up is not None
    assert (quick.time_to_target.mean, quick.time_to_target.low) == (pytest.approx(25), None)
    assert (quick.speed_up.mean, quick.speed_up.low, quick.speed_up.count) == (4, None, 1)


def test_without_a_target_the_final_metric_counts(make_run):
    runs = [make_run("random", 0, [(1, 0.8)], target=None), make_run("good", 0, [(1, 0.9)], target=None)]
    found = summarise(runs)
    assert (found.target, found.baseline, found.best) == (None, None, "good")
    assert found["good"].time_to_target is None


@pytest.mark.parametrize(("direction", "best"), [("up", "b"), ("down", "a")])
def test_the_best_final_metric_follows_the_direction(make_run, direction, best):
    runs = [make_run(name, 0, [(1, v)], target=None, direction=direction) for name, v in (("a", 0.2), ("b", 0.7))]
    assert summarise(runs).best == best


def test_a_loss_is_reached_from_above(make_run):
    run = make_run("random", 0, [(10, 3.2), (10, 2.9), (10, 2.5)], start=9.0, target=2.95, direction="down")
    time = summarise([run])["random"].time_to_target
    assert time is not None
    assert time.mean == pytest.approx(20)


def test_diverged_runs_count_as_such_and_lend_no_final_metric(make_run):
    runs = [make_run("wild", 0, [], status="diverged"), make_run("wild", 1, [(10, 0.95)], status="reached")]
    wild = summarise(runs)["wild"]
    assert (wild.diverged, wild.reached, wild.runs) == (1, 1, 2)
    assert wild.final is not None
    assert (wild.final.mean, wild.final.count) == (0.95, 1)
    assert wild.clients_per_round == 2  # of the run that had rounds
    alone = summarise(runs[:1])["wild"]
    assert alone.final is alone.clients_per_round is alone.round_seconds is None


def test_a_target_met_at_the_start_gives_no_ratio(make_run):
    runs = [make_run(name, 0, [], start=0.95) for name in ("random", "quick")]
    quick = summarise(runs)["quick"]
    assert quick.reached == 1
    assert quick.time_to_target is not None
    assert quick.time_to_target.mean == 0
    assert quick.speed_up is None


def test_the_baseline_is_random_by_label_or_selector_or_as_asked(make_run):
    runs = [make_run("a", 0, [(10, 0.95)]), make_run("uniform", 0, [(20, 0.95)], selector="random")]
    assert summarise(runs).baseline == "uniform"
    assert summarise(runs, baseline="a").baseline == "a"
    assert summarise(runs[:1]).baseline is None
    with pytest.raises(InputError, match="'nobody' came"):
        summarise(runs, baseline="nobody")


def test_json_is_strict_and_complete(three_schemes, make_run):
    runs = [*three_schemes, make_run("wild", 0, [], status="diverged")]
    content = summarise(runs).as_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    stuck = content["schemes"][2]
    assert (stuck["label"], stuck["reached"], stuck["runs"], stuck["time_to_target"]) == ("stuck", 0, 2, None)
    assert content["schemes"][1]["results"][0]["seconds"] == 50


def test_runs_that_do_not_belong_together_are_refused(make_run):
    run = make_run("a", 0, [(1, 0.5)])
    with pytest.raises(InputError, match="at least one run"):
        summarise([])
    with pytest.raises(InputError, match="seed 0 came twice"):
        summarise([run, run])
    with pytest.raises(InputError, match="share their metric and target"):
        summarise([run, make_run("b", 0, [(1, 0.5)], target=0.8)])
    with pytest.raises(InputError, match="two schemes"):
        summarise([run, make_run("a", 1, [(1, 0.5)], options={"k": 3})])
