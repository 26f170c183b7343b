from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import FedpaceError
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.population import Accept, Admission, CheckIn, GroupBook, Limits, Reject, Steering, make_admission
from fedpace.population.policies.paced import filled
from fedpace.testing.admission_checks import check_admission

POLICIES = registry.admission.names()
SMALL = {
    "first-come": {"buffer": 5},
    "random": {"buffer": 5},
    "over-selection": {"goal": 5},
    "paced": {"buffer": 5},
}


def test_every_policy_is_in_the_contract():
    assert set(POLICIES) == set(SMALL)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20), concurrency=st.integers(1, 40))
def test_contract(name, seed, concurrency):
    check_admission(make_admission(name, **SMALL[name]), seed=seed, check_ins=250, concurrency=concurrency)


def test_the_contract_fails_for_a_policy_that_breaks_it():
    class Greedy(type(make_admission("first-come"))):
        def weigh(self, book, groups, lags):
            return np.full(groups.size, -1.0)

    with pytest.raises(AssertionError, match="weights are"):
        check_admission(Greedy(buffer=5))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=3, max_size=3),
    concurrency=st.integers(1, 50),
)
def test_counts_are_conserved_and_limited(name, counts, concurrency):
    admission = Admission(
        make_admission(name, **SMALL[name]), Limits(concurrency=concurrency), shares={"a": 2, "b": 1, "c": 1}
    )
    visits = np.array(counts)
    most = admission.policy.room(admission.book, concurrency)
    for turn in range(3):
        told = admission.admit_counts(visits, 10.0 * turn)
        assert ((told.accepted >= 0) & (told.accepted <= visits)).all()
        assert (told.accepted.sum(0) + told.near + told.far == visits.sum(0)).all()
        assert admission.book.in_flight.sum() <= most


@pytest.mark.parametrize("name", ["first-come", "paced", "over-selection"])
def test_one_by_one_and_counts_admit_as_many(name):
    """A single group, so that no draw decides who of several groups comes first."""
    limits = Limits(concurrency=7)
    policy = make_admission(name, **SMALL[name])
    one, many = (Admission(policy, limits, shares={"a": 1.0}) for _ in range(2))
    answers = [one.admit(CheckIn("a"), 5.0) for _ in range(20)]
    told = many.admit_counts(np.array([[20], [0], [0]]), 5.0)
    assert sum(isinstance(answer, Accept) for answer in answers) == told.accepted.sum()


def test_quotas_follow_littles_law():
    """With quotas share x delay, answers arrive in the population's shares: measured on a played fleet."""
    rng = np.random.default_rng(1)
    shares, delays = {"fast": 0.6, "slow": 0.4}, {"fast": 10.0, "slow": 80.0}
    admission = Admission(make_admission("paced", power=1.0), Limits(concurrency=100), shares=shares)
    running, now = [], 0.0
    for second in range(3000):
        now = float(second)
        for end, group in [task for task in running if task[0] <= now]:
            running.remove((end, group))
            admission.answered(group, now)
        for _ in range(30):
            group = "fast" if rng.random() < 0.9 else "slow"  # check-ins are not as the population is
            if isinstance(admission.admit(CheckIn(group), now), Accept):
                running.append((now + float(rng.exponential(delays[group])), group))
        if second == 1000:
            before = admission.book.answered.copy()
    arrived = admission.book.answered - before
    assert arrived / arrived.sum() == pytest.approx([0.6, 0.4], abs=0.05)
    assert admission.book.delays == pytest.approx([10, 80], rel=0.25)


def test_delays_are_not_underestimated_while_only_fast_devices_have_answered():
    book = GroupBook.of({"a": 1.0})
    book.advance(0.0)
    book.in_flight[0] = book.training = 10
    book.advance(100.0)
    book.end(0)
    assert book.delays[0] > 500  # ten devices for 100 s, one of them has answered


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(st.floats(0, 10), min_size=1, max_size=6),
    supply=st.lists(st.floats(0.1, 50), min_size=6, max_size=6),
    total=st.floats(1, 100),
)
def test_filled_divides_the_places(wanted, supply, total):
    wanted, supply = np.array(wanted), np.array(supply[: len(wanted)])
    found = filled(wanted, supply, total)
    assert (found >= 0).all()
    assert (found <= supply + 1e-9).all()
    assert (found[wanted == 0] == 0).all()
    able = supply[wanted > 0].sum()
    assert found.sum() == pytest.approx(min(total, able))
    unlimited = found < supply - 1e-6
    ratios = found[unlimited & (wanted > 1e-9)] / wanted[unlimited & (wanted > 1e-9)]
    assert ratios.size == 0 or np.ptp(ratios) <= 1e-6 * max(1.0, ratios.max())


def test_over_selection_steps_with_the_first_answers_and_abandons_the_rest():
    admission = Admission(make_admission("over-selection", goal=10), Limits(concurrency=100), shares={"a": 1.0})
    told = admission.admit_counts(np.array([[50], [0], [0]]), 0.0)
    assert told.accepted.sum() == 13
    for second in range(1, 10):
        admission.answered("a", float(second))
        assert not admission.step_due(float(second))
    admission.answered("a", 10.0)
    assert admission.step_due(10.0)
    assert admission.weigh(["a"] * 10, [0] * 10) == pytest.approx(0.1)
    admission.stepped(10.0)
    assert admission.book.in_flight.sum() == 0
    assert admission.admit_counts(np.array([[50], [0], [0]]), 11.0).accepted.sum() == 13


def test_over_selection_does_not_wait_for_devices_that_dropped_out():
    admission = Admission(make_admission("over-selection", goal=3), Limits(concurrency=10), shares={"a": 1.0})
    admission.admit_counts(np.array([[9], [0], [0]]), 0.0)
    admission.answered("a", 1.0)
    admission.lost("a", 2.0, count=3)
    assert admission.step_due(2.0)


def test_first_come_weighs_stale_answers_less():
    admission = Admission(make_admission("first-come", buffer=2), shares={"a": 1.0})
    admission.book.version = 3
    assert admission.weigh(["a", "a"], [3, 0]) == pytest.approx([0.5, 0.25])


def busy_book(in_flight=(100, 100), delays=(10.0, 160.0)):
    """Return a book of two groups with these devices in flight and, nearly, these delays."""
    book = GroupBook.of({"a": 0.75, "b": 0.25})
    book.in_flight[:] = in_flight
    book.ended[:] = 1e9
    book.exposure[:] = np.array(delays) * book.ended
    return book


def test_paced_weighs_groups_by_their_shares():
    admission = Admission(make_admission("paced", damping=0.0), shares={"a": 0.75, "b": 0.25})
    weights = admission.weigh(["a", "b", "b", "b"], [0, 0, 0, 0])
    assert weights == pytest.approx([0.75, 0.25 / 3, 0.25 / 3, 0.25 / 3])
    assert admission.weigh(["b"], [0]) == pytest.approx([0.25])  # a group without an answer leaves its weight out


def test_paced_weighs_slow_groups_less_where_every_step_has_their_answers():
    groups = np.repeat([0, 1], [800, 50])  # as many as come: 100 / 10 s against 100 / 160 s
    weights = make_admission("paced", damping=0.25).weigh(busy_book(), groups, np.zeros(850, dtype=int))
    slow = 0.25 * 160**-0.25 / (0.75 * 10**-0.25 + 0.25 * 160**-0.25)  # share x delay^-damping
    assert weights[groups == 1].sum() == pytest.approx(slow, rel=1e-6)
    assert weights.sum() == pytest.approx(1.0, rel=1e-6)


def test_paced_gives_a_group_the_same_mean_weight_if_few_steps_have_its_answers():
    book, policy = busy_book(delays=(10.0, 80.0)), make_admission("paced", damping=0.8)
    mean = 0.25 * 80**-0.8 / (0.75 * 10**-0.8 + 0.25 * 80**-0.8)
    answers = 12
    present = 1 - math.exp(-answers * (1 / 80) / (1 / 10 + 1 / 80))  # probability of an answer of the slow group
    there = policy.weigh(book, np.repeat([0, 1], [answers - 1, 1]), np.zeros(answers, dtype=int))
    raw = [min((1 - mean) / (1 - math.exp(-answers * 8 / 9)), 1 - mean), mean / present]
    assert raw[1] < 0.25
    assert there[-1] == pytest.approx(raw[1] / max(1.0, sum(raw)), rel=1e-6)


def test_paced_never_weighs_a_group_that_hardly_answers_above_its_share():
    weights = make_admission("paced").weigh(busy_book((1000, 1)), np.array([0, 0, 1]), np.zeros(3, dtype=int))
    assert 0.2 < weights[2] <= 0.25
    assert weights.sum() <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**6)), min_size=1, max_size=40),
    freshness=st.floats(0, 100),
    seconds=st.floats(1e-3, 1e4),
)
def test_paced_prefers_fresh_answers_within_a_group(answers, freshness, seconds):
    book = GroupBook.of({"a": 0.5, "b": 0.3, "c": 0.2})
    book.step_seconds = seconds
    groups, lags = (np.array(each) for each in zip(*answers, strict=True))
    weights = make_admission("paced", freshness=freshness, damping=0.0).weigh(book, groups, lags)
    for group in range(3):
        held, ages = weights[groups == group], lags[groups == group]
        assert held.sum() == pytest.approx(book.shares[group] if held.size else 0.0)
        assert (np.diff(held[np.argsort(ages)]) <= 1e-12).all()


def test_paced_divides_an_answer_of_the_mean_age_by_e_to_the_freshness():
    admission = Admission(make_admission("paced", freshness=2.0), shares={"a": 1.0})
    admission.admit_counts(np.array([[50], [0], [0]]), 0.0)
    for second in range(1, 51):
        admission.answered("a", float(second))
    for turn in range(1, 6):
        admission.stepped(50.0 + 5 * turn)  # the first step takes 55 s, the others 5 s
    book = admission.book
    assert book.step_seconds == pytest.approx(5 + 50 * 0.9**4)
    fresh, old = admission.weigh(["a", "a"], [5, 4])
    assert old / fresh == pytest.approx(math.exp(-2 * book.step_seconds / book.delays[0]))


def test_paced_steps_with_a_thirtieth_of_the_allowed_devices():
    book = GroupBook.of({"a": 1.0})
    for concurrency, answers in ((90, 10), (3000, 100)):
        book.in_buffer[0] = answers - 1
        assert not make_admission("paced").due(book, concurrency, 0.0)
        book.in_buffer[0] = answers
        assert make_admission("paced").due(book, concurrency, 0.0)
    assert make_admission("paced", buffer=7).due(book, 10**6, 0.0)


def test_starts_per_second():
    admission = Admission(
        make_admission("first-come"), Limits(concurrency=10_000, starts_per_second=10.0), shares={"a": 1.0}
    )
    started = sum(
        admission.admit_counts(np.array([[500], [0], [0]]), float(second)).accepted.sum() for second in range(100)
    )
    assert 990 <= started <= 1050


def test_eligibility_and_minimum_separation():
    admission = Admission(make_admission("first-come"), shares={"a": 1.0})
    assert "charging" in admission.admit(CheckIn("a", charging=False), 0.0).why
    assert "metered" in admission.admit(CheckIn("a", unmetered=False), 0.0).why
    answer = admission.admit(CheckIn("a", since_trained=80_000.0), 0.0)
    assert isinstance(answer, Reject)
    assert answer.retry_between == pytest.approx((600 + 6400, 1800 + 6400))
    assert isinstance(admission.admit(CheckIn("a", since_trained=math.nan), 0.0), Reject)
    assert isinstance(admission.admit(CheckIn("a", since_trained=90_000.0), 0.0), Accept)


def test_groups_that_nobody_declared():
    declared = Admission(make_admission("paced"), shares={"a": 1.0})
    assert "not known" in declared.admit(CheckIn("b"), 0.0).why
    learnt = Admission(make_admission("paced"), Limits(max_groups=2))
    assert isinstance(learnt.admit(CheckIn("a"), 0.0), Accept)
    assert isinstance(learnt.admit(CheckIn("b"), 0.0), Accept)
    assert "not known" in learnt.admit(CheckIn("c"), 0.0).why
    assert learnt.book.shares == pytest.approx([0.5, 0.5])
    assert len(learnt.book) == 2


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Admission("paced"), "expected an admission policy"),
        (lambda: Admission(make_admission("paced")).admit("a", 0.0), "expected a CheckIn"),
        (lambda: Admission(make_admission("paced")).admit(CheckIn("a", visit="x"), 0.0), "visit must be one of"),
        (lambda: Admission(make_admission("paced")).admit(CheckIn(""), 0.0), "a group is named by"),
        (lambda: Admission(make_admission("paced"), shares={}), "at least one group"),
        (lambda: Admission(make_admission("paced"), shares={"a": -1}), "share of a"),
        (lambda: Admission(make_admission("paced")).answered("a", 0.0), "was admitted"),
        (lambda: Admission(make_admission("paced"), shares={"a": 1}).answered("a", 0.0), "in flight"),
        (lambda: Admission(make_admission("paced"), shares={"a": 1}).weigh(["a"], [1]), "a group and a version"),
        (lambda: Admission(make_admission("paced"), shares={"a": 1}).weigh([], []), "at least one answer"),
        (lambda: Limits(concurrency=0), "concurrency"),
        (lambda: Limits(retry_between=(10.0, 5.0)), "end after it starts"),
        (lambda: Limits(retry_between=7.0), "two numbers"),
        (lambda: Steering(0.0), "check_ins_per_second"),
        (lambda: make_admission("pace"), "there is no admission policy 'pace'. Did you mean 'paced'"),
        (lambda: make_admission("paced", power=2.0), "power of paced"),
        (lambda: make_admission("first-come", momentum=1.0), "momentum of first-come"),
        (lambda: make_admission("over-selection", factor=0.5), "factor of over-selection"),
        (lambda: GroupBook.load({"names": ["a"]}), "not a saved book"),
    ],
)
def test_mistakes_are_refused(wrong, sentence):
    with pytest.raises(FedpaceError, match=sentence):
        wrong()


def test_time_does_not_run_backwards():
    admission = Admission(make_admission("paced"), shares={"a": 1.0})
    admission.admit(CheckIn("a"), 10.0)
    with pytest.raises(InputError, match="backwards"):
        admission.admit(CheckIn("a"), 9.0)


def test_the_book_is_saved_as_json():
    admission = Admission(make_admission("paced"), shares={"a": 0.5, "b": 0.5})
    for second in range(20):
        admission.admit(CheckIn("ab"[second % 2]), float(second))
    admission.answered("a", 30.0)
    admission.weigh(["a"], [0])
    admission.stepped(31.0)
    text = json.dumps(admission.book.saved())
    again = Admission(make_admission("paced"), book=GroupBook.load(json.loads(text)))
    assert json.dumps(again.book.saved()) == text
    assert isinstance(again.admit(CheckIn("a"), 32.0), Accept | Reject)


def test_state_grows_with_groups_and_not_with_devices():
    admission = Admission(make_admission("paced"), Limits(concurrency=10**6), shares={"a": 1.0})
    size = len(json.dumps(admission.book.saved()))
    for turn in range(1, 50):
        admission.admit_counts(np.array([[10**6], [0], [0]]), float(turn))
    assert len(json.dumps(admission.book.saved())) < size + 400


def test_steering_tells_few_to_come_soon_when_many_come_anyway():
    steering = Steering(10.0)
    book = GroupBook.of({"a": 1.0})
    book.known[0] = 1_000_000
    book.fresh_rate[0] = 2.0
    assert steering.near_part(book) == pytest.approx([0.8])
    book.told_near[0], book.retry_rate[0] = 4.0, 3.6  # nine in ten return
    assert steering.near_part(book) == pytest.approx([0.8 / 0.9])
    book.fresh_rate[0] = 20.0
    assert steering.near_part(book) == pytest.approx([0.0])
    assert steering.far(book) == pytest.approx([4 * 1_000_000 / 10.0])
