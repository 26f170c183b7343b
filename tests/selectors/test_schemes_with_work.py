"""fednova, fedprox, timelyfl and fedcompass: each against its definition, and against plain FedAvg where they meet."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from buffered import quadratic_run

from fedpace import Need, View, make_selector
from fedpace._base.errors import InputError
from fedpace.core.types import InFlight
from fedpace.data.quadratic import Quadratic
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.models.builtin import Linear
from fedpace.records.run import round_line
from fedpace.selectors._drawing import fitting_work
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training

REST = np.array([1.0, 2.0, 5.0, 30.0, 1.0, 4.0])
COMPUTE = np.array([4.0, 8.0, 15.0, 10.0, 79.0, 36.0])


def shown(rest=REST, compute=COMPUTE, **changes):
    count = len(rest)
    facts = {
        "step": 0,
        "now": 0.0,
        "available": np.ones(count, bool),
        "share": np.full(count, 1 / count),
        "delay": rest + compute,
        "loss": np.full(count, np.nan),
        "loss_step": np.full(count, -1),
        "participations": np.zeros(count, np.int64),
        "compute": np.array(compute),
    }
    return View(**(facts | changes))


def chosen(scheme, view, seed=0):
    cohort, _ = scheme.select(None, view, np.random.default_rng(seed))
    return cohort


# -- the work that fits ------------------------------------------------------------------------------------------------


def test_fitting_work_by_hand():
    view = shown()
    every = np.arange(6)
    work = fitting_work(view, every, 20.0)
    np.testing.assert_allclose(work, (20.0 - REST) / COMPUTE)
    np.testing.assert_allclose(view.seconds_with(work)[work > 0], 20.0)
    constant = shown(REST, np.zeros(6))
    assert fitting_work(constant, every, 4.0).tolist() == [math.inf, math.inf, -math.inf, -math.inf, math.inf, math.inf]


# -- fednova -----------------------------------------------------------------------------------------------------------


def test_fednova_trains_as_much_as_fits():
    cohort = chosen(make_selector("fednova", k=6, quantile=0.5, least=0.1, most=3.0), shown())
    planned = np.sort(REST + COMPUTE)[2]  # the lower median
    np.testing.assert_allclose(cohort.work, np.clip((planned - REST) / COMPUTE, 0.1, 3.0))
    assert cohort.work.max() > 1 > cohort.work.min()
    assert make_selector("fednova").server.name == "fednova"


def test_fednova_among_equals_is_random_with_fedavg():
    """Equal delays: work is 1, normalised averaging is averaging, and the same clients are drawn."""
    plain, ours = (
        list(islice(quadratic_run(make_selector(name, k=3), ConstantDelays(), clients=6).rounds(), 5))
        for name in ("random", "fednova")
    )
    for left, right in zip(plain, ours, strict=True):
        assert left.clients == right.clients
        assert "work" not in right.facts
        assert right.loss == pytest.approx(left.loss, rel=1e-6)


def test_fednova_refuses_scaffold():
    data, scheme = Quadratic(clients=6, samples=12, test_samples=10, dimension=5), make_selector("fednova", k=3)
    with pytest.raises(InputError, match="fednova does not work with algorithm = 'scaffold'"):
        Simulation(data, Linear(), SyntheticDelays(), scheme, training=Training(algorithm="scaffold"))


# -- fedprox -----------------------------------------------------------------------------------------------------------


def test_fedprox_by_the_clock():
    cohort = chosen(make_selector("fedprox", k=6, quantile=0.5, least=0.05), shown())
    planned = np.sort(REST + COMPUTE)[2]
    np.testing.assert_allclose(cohort.work, np.clip((planned - REST) / COMPUTE, 0.05, 1.0))
    assert cohort.work[:3].tolist() == [1.0, 1.0, 1.0]


def test_fedprox_at_random_as_in_the_experiments_of_its_paper():
    scheme, view = make_selector("fedprox", k=6, straggling="random", stragglers=0.5, least=0.2), shown()
    drawn = np.array([chosen(scheme, view, seed).work for seed in range(400)])
    assert ((drawn < 1).sum(axis=1) == 3).all()
    parts = drawn[drawn < 1]
    assert parts.min() >= 0.2
    assert abs(parts.mean() - 0.6) < 0.02  # uniform on [0.2, 1]
    slow = (drawn < 1).mean(axis=0)
    assert (np.abs(slow - 0.5) < 0.1).all()  # whoever it is
    none = make_selector("fedprox", k=6, straggling="random", stragglers=0.0)
    assert chosen(none, view).work.tolist() == [1.0] * 6


# -- timelyfl ----------------------------------------------------------------------------------------------------------


def test_timelyfl_by_hand():
    cohort = chosen(make_selector("timelyfl", k=3, concurrency=0, most=4, slack=1.0), shown())
    interval = 20.0  # of the third fastest: 5, 10, 20, 40, 40, 80
    assert cohort.deadline == interval
    assert cohort.clients.tolist() == [0, 1, 2, 4, 5]  # the transfer of client 3 takes longer
    # floor(19 / 4) = 4 and floor(18 / 8) = 2 epochs; exactly one; and parts.
    np.testing.assert_allclose(cohort.work, [4, 2, 1, 19 / 79, 16 / 36])


def test_timelyfl_draws_its_clients():
    seen = set()
    for seed in range(20):
        cohort = chosen(make_selector("timelyfl", k=2, concurrency=3), shown(), seed)
        assert cohort.clients.size <= 3
        seen |= set(cohort.clients.tolist())
    assert seen == set(range(6))


def test_timelyfl_among_equals_is_full_participation():
    plain, ours = (
        list(islice(quadratic_run(scheme, ConstantDelays(), clients=6).rounds(), 4))
        for scheme in (make_selector("random", k=6), make_selector("timelyfl", k=6, concurrency=0))
    )
    for left, right in zip(plain, ours, strict=True):
        assert right.loss == pytest.approx(left.loss, rel=1e-6)


# -- fedcompass --------------------------------------------------------------------------------------------------------


def moved(scheme, view, state=None):
    return scheme.decide(scheme.init() if state is None else state, view, np.random.default_rng(0))


def test_fedcompass_assigns_groups_fastest_first():
    """By hand, for Q_min = 0.2, Q_max = 1, lambda = 1.5 and rest 0."""
    compute = np.array([10.0, 12.0, 40.0, 200.0])
    move, _ = moved(make_selector("fedcompass"), shown(np.zeros(4), compute))
    # Client 0 opens a group at 10 s with the most work. Client 1 joins it with 10 / 12, client 2 with 10 / 40. Client 3
    # would have 10 / 200 < Q_min; it opens a group for what may come next: latest 15 s, and 10 s of the fastest: 25 /
    # 200 of its work, raised to Q_min.
    np.testing.assert_allclose(move.work, [1.0, 10 / 12, 10 / 40, 0.2])
    np.testing.assert_allclose(move.weights, [10.0, 10.0, 10.0, 40.0])
    assert move.wait.seconds == pytest.approx(15.0)
    assert move.apply is None


def test_fedcompass_opens_with_the_most_where_no_group_is_met():
    move, _ = moved(make_selector("fedcompass", least=0.2, most=0.5), shown(np.zeros(2), np.array([10.0, 21.0])))
    # Client 1 fits 5 / 21 of its work into the group at 5 s.
    np.testing.assert_allclose(move.work, [0.5, 5 / 21])
    alone, _ = moved(make_selector("fedcompass"), shown(np.zeros(1), np.array([10.0])))
    assert alone.work.tolist() == [1.0]


def hand(*entries):
    """Tasks as (id, client, began, step, expected arrival)."""
    ids, clients, began, steps, weights = (np.array(column) for column in zip(*entries, strict=True))
    return InFlight(ids, clients, began.astype(float), steps, weights.astype(float), work=np.ones(len(ids)))


def test_fedcompass_waits_for_the_group_and_steps_with_all():
    scheme = make_selector("fedcompass", alpha=0.9, staleness=0.5)
    compute, state = np.array([10.0, 10.0, 40.0]), scheme.init()
    flying = hand((1, 1, 0, 0, 10), (2, 2, 0, 0, 40))
    waiting = shown(
        np.zeros(3),
        compute,
        now=9.0,
        available=np.array([True, False, False]),
        in_flight=flying,
        in_hand=hand((0, 0, 0, 0, 10)),
    )
    move, state = moved(scheme, waiting, state)
    assert move.apply is None
    assert not move.start.size  # client 0 waits for its group
    assert move.wait.seconds == pytest.approx(6.0)  # until 15 s
    both = shown(
        np.zeros(3),
        compute,
        now=11.0,
        step=2,
        available=np.array([True, True, False]),
        in_flight=hand((2, 2, 0, 0, 40)),
        in_hand=hand((0, 0, 0, 0, 10), (1, 1, 0, 1, 10)),
    )
    move, _ = moved(scheme, both, state)
    assert move.apply.ids.tolist() == [0, 1]
    np.testing.assert_allclose(move.apply.weights, 0.9 / 3 * np.array([3.0, 2.0]) ** -0.5)
    assert move.start.tolist() == [0, 1]
    # The open group expects client 2 at 40 s: 2.9 times the most work of clients 0 and 1. So client 0 opens a group
    # with the most, and client 1 joins.
    np.testing.assert_allclose(move.work, [1.0, 1.0])
    np.testing.assert_allclose(move.weights, [21.0, 21.0])


def test_fedcompass_steps_at_the_latest_time_and_takes_late_answers_along():
    scheme = make_selector("fedcompass")
    compute = np.array([10.0, 10.0, 10.0])
    at_latest = shown(
        np.zeros(3),
        compute,
        now=15.0,
        available=np.array([True, False, False]),
        in_flight=hand((1, 1, 0, 0, 10), (2, 2, 12, 0, 22)),
        in_hand=hand((0, 0, 0, 0, 10)),
    )
    move, state = moved(scheme, at_latest, type(scheme.init())(9.0, 1))
    assert move.apply.ids.tolist() == [0]
    # Client 1 is late: its answer is kept, and it starts again at once, in the open group of client 2.
    late = shown(
        np.zeros(3),
        compute,
        now=17.0,
        step=1,
        available=np.array([False, True, False]),
        in_flight=hand((2, 2, 12, 0, 22), (3, 0, 15, 1, 22)),
        in_hand=hand((1, 1, 0, 0, 10)),
    )
    move, state = moved(scheme, late, state)
    assert move.apply is None
    assert move.start.tolist() == [1]
    np.testing.assert_allclose(move.work, [0.5])
    done = shown(
        np.zeros(3),
        compute,
        now=22.0,
        step=1,
        available=np.array([True, True, True]),
        in_hand=hand((1, 1, 0, 0, 10), (2, 2, 12, 0, 22), (3, 0, 15, 1, 22), (4, 1, 17, 1, 22)),
    )
    move, _ = moved(scheme, done, state)
    assert sorted(move.apply.ids.tolist()) == [1, 2, 3, 4]
    assert move.start.tolist() == [0, 1, 2]


def test_fedcompass_among_equals_is_fedavg():
    """Equal delays, alpha = 1: everybody is one group, so every step is the mean of all updates."""
    plain, ours = (
        list(islice(quadratic_run(scheme, ConstantDelays(), clients=6).rounds(), 4))
        for scheme in (make_selector("random", k=6), make_selector("fedcompass", alpha=1.0))
    )
    for left, right in zip(plain, ours, strict=True):
        assert right.loss == pytest.approx(left.loss, rel=1e-6)


def test_fedcompass_groups_answer_together_in_a_run():
    run = quadratic_run(make_selector("fedcompass"), SyntheticDelays(), clients=12)
    rounds = list(islice(run.rounds(), 12))[1:]
    assert np.mean([len(current.clients) for current in rounds]) > 2  # groups, not single answers
    work = [amount for current in rounds for amount in current.facts.get("work", {}).values()]
    assert 0.2 <= min(work) < max(work) <= 1.0


# -- pace-async with work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "compute", "work"),
    [
        (0.0, 10.0, 0.5),  # only computing: as little as is allowed
        (100.0, 10.0, 1.0),  # mostly transfer: as usual
        (15.0, 10.0, 1.5 * 0.3 / 0.7),  # between: rest / compute x elasticity / (1 - elasticity)
    ],
)
def test_pace_async_chooses_work_by_the_parts_of_delays(rest, compute, work):
    scheme = make_selector("pace-async", work="adaptive")
    move, _ = moved(scheme, shown(np.full(4, rest), np.full(4, compute)))
    np.testing.assert_allclose(move.work, np.full(4, work))
    assert scheme.sets_work


def test_pace_async_leaves_unknown_clients_at_1():
    delay = np.full(20, 10.0)
    delay[3] = np.nan
    scheme = make_selector("pace-async", work="adaptive")
    move, _ = moved(scheme, shown(np.zeros(20), delay))
    assert move.work.tolist() == [1.0 if row == 3 else 0.5 for row in range(20)]
    delay[:4] = np.nan  # too many: the known ones may be the fast ones
    move, _ = moved(scheme, shown(np.zeros(20), delay))
    assert move.work.tolist() == [1.0] * 20


def test_pace_async_with_fixed_work_is_as_before():
    scheme = make_selector("pace-async")
    move, _ = moved(scheme, shown())
    assert move.work is None
    assert not scheme.sets_work
    assert Need.WORK not in scheme.needs


def test_adaptive_work_of_1_changes_no_byte():
    """Where transfer takes nearly all the time, the rule asks for the usual work."""
    slow = SyntheticDelays(compute=(0.1, 0.2), model_bytes=100_000_000)
    fixed, adaptive = (
        list(islice(quadratic_run(make_selector("pace-async", work=work), slow, clients=8).rounds(), 8))
        for work in ("fixed", "adaptive")
    )
    assert list(map(round_line, fixed)) == list(map(round_line, adaptive))
