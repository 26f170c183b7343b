"""Evaluation every n rounds: which rounds, when a run ends, and what reports make of the gaps."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from curves import metric_over_time

from fedpace._base.errors import InputError
from fedpace.config import parse_experiment
from fedpace.records.run import Round, RunInfo, RunRecord
from fedpace.report.comparison import summarise
from fedpace.report.figures import cohort_over_rounds, metric_chart
from fedpace.report.page import render_page
from fedpace.report.picture import write_png
from fedpace.runner import Job
from fedpace.sim.stopping import Stop, StopRule, run_until

TABLE = {
    "name": "tiny",
    "data": {"name": "quadratic", "clients": 5, "samples": 6, "test_samples": 5, "dimension": 3},
    "model": {"name": "linear"},
    "delays": {"name": "lognormal"},
    "training": {"epochs": 1, "batch": 0, "lr": 0.05},
    "selectors": [{"name": "random", "k": 2}],
}


def played(**stop):
    chosen = parse_experiment(TABLE | {"stop": stop}, "test")
    simulation = Job(chosen, chosen.schemes[0], 0, None).simulation()
    stop_rule = StopRule(chosen.stop, chosen.direction, simulation.expected_delays)
    return list(run_until(simulation.rounds(chosen.stop.evaluates), stop_rule))


def evaluated(rounds):
    return [current.number for current in rounds if current.metric is not None]


def test_the_first_the_nth_and_the_last_round_are_evaluated():
    assert evaluated(played(max_rounds=8, evaluate_every=3)) == [0, 3, 6, 8]
    assert evaluated(played(max_rounds=2, evaluate_every=9)) == [0, 2]
    every = played(max_rounds=8)
    assert evaluated(every) == list(range(9))
    limited = played(max_rounds=99, max_seconds=every[5].clock, evaluate_every=3)
    assert evaluated(limited) == [0, 3, 5]


def test_it_changes_nothing_but_the_metrics():
    for one, other in zip(played(max_rounds=6), played(max_rounds=6, evaluate_every=4), strict=True):
        assert (one.clients, one.clock, one.train_loss) == (other.clients, other.clock, other.train_loss)
        assert other.metric in (one.metric, None)
        assert (other.metric is None) == (other.loss is None)


def test_a_target_is_met_only_where_somebody_looks():
    metrics = [current.metric for current in played(max_rounds=12)]
    target = metrics[4]
    soonest = next(number for number, metric in enumerate(metrics) if metric <= target)
    late = played(max_rounds=12, target=target, hold=1, evaluate_every=3)
    first = next(number for number in range(0, 13, 3) if metrics[number] <= target)
    assert late[-1].number == first >= soonest
    assert late[-1].number % 3 == 0


def test_a_bad_interval():
    with pytest.raises(InputError, match="evaluate_every of stop must be at least 1, but 0 came"):
        Stop(evaluate_every=0)


def a_run(metrics, label="random", status="reached", target=0.9):
    rounds = tuple(
        Round(number, 10.0 * number, 10.0, 0.0, metric, None if metric is None else 1.0, clients=(0,) * (number > 0))
        for number, metric in enumerate(metrics)
    )
    info = RunInfo(label, label, {}, 0, "accuracy", "up", target, {}, (1.0, 2.0), status=status)
    return RunRecord(info, rounds)


def test_reports_cope_with_gaps(tmp_path):
    whole = a_run([0.1, 0.4, 0.95], label="often")
    gaps = a_run([0.1, None, None, 0.95])
    cut = a_run([0.1, None, 0.3, None], label="cut", status="interrupted")
    assert gaps.reached.number == 3
    comparison = summarise([whole, gaps, cut])
    assert comparison["random"].time_to_target.mean == pytest.approx(30.0), (
        "never earlier than a round that was evaluated"
    )
    assert comparison["cut"].final.mean == 0.3
    assert comparison["cut"].results[0].ended == 30.0
    curve = metric_over_time([gaps])
    assert curve.x.tolist() == [0.0, 30.0]
    assert metric_chart([gaps], summarise([gaps]), "rounds").series[0].y.tolist() == [0.1, 0.95]
    assert cohort_over_rounds([gaps]).x.tolist() == [1.0, 2.0, 3.0]
    assert np.isfinite(curve.mean).all()
    runs = [whole, gaps, cut]
    write_png(runs, comparison, tmp_path / "report.png")
    assert "NaN" not in render_page(runs, comparison, title="gaps", plotly="")


def test_the_simulation_itself_evaluates_always_unless_told():
    chosen = parse_experiment(TABLE, "test")
    rounds = Job(chosen, chosen.schemes[0], 0, None).simulation().rounds()
    assert all(math.isfinite(current.metric) for current in islice(rounds, 4))
