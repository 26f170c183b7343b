"""What one client may do to the model at most: `Trust` against its promises, by hand and by random sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.core.ledger import Ledger
from fedpace.core.types import Outcome
from fedpace.trust import Trust
from fedpace.trust.bounds import COLUMNS, filled_up, reference_length
from fedpace.trust.limits import (
    CLIP,
    FIRST_BUFFER,
    FIRST_RMS,
    LONGEST,
    MAX_REFUSALS,
    MIN_CLIENTS,
    REFERENCE_STEPS,
    REST_STEPS,
    SHARE_FLEET,
    WEIGHT_BURST,
    WEIGHT_RATE,
)

QUICK = settings(max_examples=60, deadline=None)
LENGTHS = st.one_of(st.floats(0, 1e308), st.sampled_from([math.inf, math.nan, 0.0, 1e-300]))
HONEST = st.floats(0.5, 2.0)


def fleet(clients, **options):
    trust = Trust(**options)
    trust.append(range(clients))
    return trust


def rows(*numbers):
    return np.array(numbers, dtype=np.int64)


# -- the length of updates -----------------------------------------------------------------------------------


@QUICK
@given(st.lists(LENGTHS, min_size=1, max_size=12), st.booleans(), st.sampled_from(["update", "sketch", "counters"]))
def test_a_factor_is_never_above_1_and_0_only_for_what_is_not_finite(lengths, on, kind):
    trust = fleet(12, on=on)
    factors = trust.clip_factors(range(len(lengths)), lengths, kind, size=10)
    assert ((factors >= 0) & (factors <= 1)).all()
    np.testing.assert_array_equal(factors == 0, ~np.isfinite(lengths))
    assert all(np.isfinite(known).all() and (known <= LONGEST).all() for known in trust.longest.values())


@QUICK
@given(st.lists(HONEST, min_size=6, max_size=20), st.lists(st.floats(3.0, 1e300), min_size=1, max_size=6))
def test_a_quarter_of_the_clients_moves_the_reference_nowhere_beyond_the_others(honest, long):
    long = long[: len(honest) // 3]  # at most a quarter of all
    trust = fleet(len(honest) + len(long))
    trust.clip_factors(range(len(trust)), [*honest, *long])
    reference = reference_length(trust.longest["update"])
    assert min(honest) <= reference <= max(honest)
    factors = trust.clip_factors(range(len(trust)), [*honest, *long])
    assert (factors[: len(honest)] == 1).all()
    assert (factors * [*honest, *long] <= CLIP * max(honest) * (1 + 1e-9)).all()


def test_lengths_are_clipped_to_ten_times_the_upper_quartile():
    trust = fleet(8)
    lengths = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1000.0]  # sorted places 0..7: 0.75 * 7 = 5.25, the lower is 6.0
    np.testing.assert_allclose(trust.clip_factors(range(8), lengths), [1] * 7 + [CLIP * 6.0 / 1000.0])


def test_every_client_has_one_vote_however_often_it_answers():
    trust = fleet(8)
    trust.clip_factors(range(8), np.ones(8))
    for _ in range(100):
        trust.clip_factors([0, 0, 0], [50.0, 80.0, 90.0])
    assert reference_length(trust.longest["update"]) == 1.0
    np.testing.assert_allclose(trust.clip_factors([1], [100.0]), CLIP / 100)


def test_the_reference_does_not_fall_as_training_converges():
    trust = fleet(8)
    trust.clip_factors(range(8), np.ones(8))
    for _ in range(20):
        trust.clip_factors(range(7), np.full(7, 1e-3))
    np.testing.assert_array_equal(trust.clip_factors([7], [0.9]), 1.0)


def test_an_honest_minority_of_a_quarter_or_more_is_not_clipped():
    for clients in (8, 12, 20, 40):
        trust = fleet(clients)
        minority = clients // 4 + 1
        lengths = np.where(np.arange(clients) < minority, 100.0, 1.0)
        for _ in range(3):
            assert (trust.clip_factors(range(clients), lengths) == 1).all(), clients


@pytest.mark.parametrize("clients", range(1, MIN_CLIENTS))
def test_nobody_is_clipped_in_the_smallest_fleets(clients):
    trust = fleet(clients)
    lengths = [1.0, 1e200, 1e300][:clients]
    for _ in range(3):
        np.testing.assert_array_equal(trust.clip_factors(range(clients), lengths, size=3), 1.0)
    assert trust.clip_factors([0], [math.nan])[0] == 0


@pytest.mark.parametrize("options", [{"on": False}, {"clip": 0.0}])
def test_where_nothing_is_clipped_what_is_not_finite_is_refused_all_the_same(options):
    trust = fleet(8, **options)
    trust.clip_factors(range(8), np.ones(8))
    np.testing.assert_array_equal(trust.clip_factors(range(4), [1.0, 1e300, math.inf, math.nan]), [1, 1, 0, 0])


def test_before_enough_clients_were_heard_first_updates_have_a_bound_of_their_own():
    trust = fleet(20)
    np.testing.assert_allclose(trust.clip_factors([0], [1e9], size=4), FIRST_RMS * 2 / 1e9)
    np.testing.assert_array_equal(trust.clip_factors([1], [FIRST_RMS * 2], size=4), 1.0)
    np.testing.assert_allclose(trust.clip_factors([0], [1e9], "counters"), FIRST_BUFFER / 1e9)
    np.testing.assert_array_equal(trust.clip_factors([0], [1e9], "sketch"), 1.0)


def test_each_kind_of_vector_has_its_own_reference():
    trust = fleet(5)
    trust.clip_factors(range(5), np.full(5, 1000.0), "counters")
    trust.clip_factors(range(5), np.ones(5))
    np.testing.assert_array_equal(trust.clip_factors([0], [1000.0], "counters"), 1.0)
    np.testing.assert_allclose(trust.clip_factors([0], [1000.0]), 0.01)


def test_lengths_that_are_only_looked_at_and_those_of_clients_that_left_are_not_remembered():
    trust = fleet(6)
    trust.clip_factors(range(6), np.ones(6))
    before = trust.longest["update"].copy()
    np.testing.assert_allclose(trust.clip_factors([0], [100.0], remember=False), CLIP / 100)
    np.testing.assert_allclose(trust.clip_factors([-1], [100.0]), CLIP / 100)
    np.testing.assert_array_equal(trust.longest["update"], before)
    assert trust.clip_factors([], []).shape == (0,)


def test_attackers_cannot_ratchet_the_reference():
    """Each push makes honest updates ten times as long; the reference follows by 2 % of the first one per step."""
    trust = fleet(8)
    trust.clip_factors(range(8), [1.0] * 8)
    for step in range(1, 101):
        longer = 10.0 ** min(step, 200)
        factors = trust.clip_factors(range(8), [longer] * 7 + [1e250], step=step)
        assert factors[7] * 1e250 <= CLIP * (1 + step / REFERENCE_STEPS) * (1 + 1e-9)


def test_the_reference_follows_honest_clients_whose_updates_grow():
    trust = fleet(8)
    trust.clip_factors(range(8), [1.0] * 8)
    assert (trust.clip_factors(range(8), [3.0] * 8, step=1) == 1).all()
    assert trust.clip_factors([0], [29.0], step=100) == 1, "three times the first length is allowed by then"
    assert trust.clip_factors([0], [31.0], step=100) < 1, "the longest of most is 3"


# -- weights -------------------------------------------------------------------------------------------------


FLEET = 20
"""Clients of the examples."""


def shares_of(clients):
    return np.full(clients, 1 / clients)


@st.composite
def weighted(draw, clients=30):
    """A step: rows of clients, some of them twice, and their weights, whose sum is 1."""
    chosen = draw(st.lists(st.integers(0, clients - 1), min_size=1, max_size=8))
    raw = np.array(draw(st.lists(st.floats(0, 1), min_size=len(chosen), max_size=len(chosen))))
    raw = raw if raw.sum() > 0 else np.ones(len(chosen))
    return np.array(chosen, dtype=np.int64), raw / raw.sum()


@QUICK
@given(weighted(), st.lists(st.floats(0, 4), min_size=30, max_size=30))
def test_weights_are_within_the_room_and_sum_to_at_most_1(step, used):
    chosen, weights = step
    trust, shares = fleet(30), shares_of(30)
    trust.columns["weight_used"][:] = used
    capped = trust.bound_weights(chosen, weights, shares, 1)
    together = np.bincount(chosen, capped, minlength=30)
    room = np.maximum(0, WEIGHT_BURST - np.maximum(0, np.array(used) - WEIGHT_RATE / 30))
    assert (together <= room + 1e-9).all()
    assert (capped >= 0).all()
    assert capped.sum() <= 1 + 1e-9
    assert (capped[weights == 0] == 0).all(), "who has no weight gets none"
    if capped.sum() < 1 - 1e-9:  # somebody who has weight and room would have got more
        heard = np.bincount(chosen, weights, minlength=30) > 0
        np.testing.assert_allclose(together[heard], room[heard], atol=1e-9)


@QUICK
@given(weighted(clients=30))
def test_weights_that_no_cap_binds_are_the_very_same(step):
    chosen, weights = step
    trust = fleet(30)  # nothing used: there is room for whole steps
    assert trust.bound_weights(chosen, weights, shares_of(30), 1) is weights


def test_what_is_above_a_cap_goes_to_the_others_in_proportion():
    trust = fleet(FLEET)
    trust.columns["weight_used"][0] = WEIGHT_BURST  # of which a step gives back WEIGHT_RATE / FLEET = 0.5
    weights = np.array([0.7, 0.1, 0.2])
    np.testing.assert_allclose(
        trust.bound_weights(rows(0, 1, 2), weights, shares_of(FLEET), 1), [0.5, 0.5 / 3, 1 / 3], rtol=1e-12
    )


def test_a_client_that_was_seldom_heard_may_be_most_of_a_step():
    trust = fleet(FLEET)
    weights = np.array([0.98, 0.02])
    assert trust.bound_weights(rows(0, 1), weights, shares_of(FLEET), 1) is weights


def test_who_answers_alone_has_the_whole_step_within_its_budget():
    trust, shares = fleet(100), shares_of(100)
    had = []
    for step in range(1, 9):
        weights = trust.bound_weights(rows(0), np.ones(1), shares, step)
        trust.observe(rows(0), weights, shares, step)
        had.append(float(weights[0]))
    rate = WEIGHT_RATE / 100
    np.testing.assert_allclose(had, [1, 1, 1, 1, 1, 5 * rate, rate, rate])


def test_several_answers_of_one_client_share_its_cap_by_their_weights():
    trust = fleet(FLEET)
    trust.columns["weight_used"][0] = WEIGHT_BURST
    capped = trust.bound_weights(rows(0, 0, 1), np.array([0.6, 0.3, 0.1]), shares_of(FLEET), 1)
    np.testing.assert_allclose(capped, [1 / 3, 1 / 6, 0.5])
    weights = np.array([0.4, 0.05, 0.35, 0.2])
    assert trust.bound_weights(rows(0, 0, 1, 2), weights, shares_of(FLEET), 1) is weights, "0.45 is below the cap"


def test_no_cap_holds_for_clients_that_have_left():
    trust = fleet(FLEET)
    weights = np.array([0.4, 0.5, 0.1])
    assert trust.bound_weights(rows(-1, -1, 2), weights, shares_of(FLEET), 1) is weights
    trust.observe(rows(-1, -1, 2), weights, shares_of(FLEET), 1)
    np.testing.assert_array_equal(np.flatnonzero(trust.columns["weight_used"]), [2])


@pytest.mark.parametrize("options", [{"on": False}, {"rate": 0.0}])
def test_weights_can_be_left_without_a_cap_over_time(options):
    trust, shares = fleet(10, **options), shares_of(10)
    for step in range(1, 50):
        weights = np.ones(1)
        assert trust.bound_weights(rows(0), weights, shares, step) is weights
        trust.observe(rows(0), weights, shares, step)


@st.composite
def limited(draw):
    raw = np.array(draw(st.lists(st.floats(0.01, 1), min_size=1, max_size=8)))
    limits = draw(st.lists(st.floats(0, 1), min_size=raw.size, max_size=raw.size))
    return raw / raw.sum(), np.array(limits)


@QUICK
@given(limited())
def test_filling_up_keeps_within_limits_and_within_order(case):
    weights, limits = case
    found = filled_up(weights, limits)
    assert (found <= np.maximum(limits, 0) + 1e-12).all()
    assert found.sum() == pytest.approx(min(1.0, limits.sum()), abs=1e-9)
    alike = filled_up(weights, np.full(weights.size, float(limits.max())))
    order = np.argsort(weights)
    assert (np.diff(alike[order]) >= -1e-12).all(), "where the limits are alike, who had more has no less"
    free = found < limits - 1e-9
    if free.sum() > 1:  # those below their limits were raised by one factor
        np.testing.assert_allclose(found[free] / weights[free], found[free][0] / weights[free][0], rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([1.0, WEIGHT_RATE, 30.0]), st.sampled_from(["average", "delta"]))
def test_over_any_window_a_client_has_at_most_its_burst_and_its_rate(data, rate, mode):
    clients = 30
    raw = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=clients, max_size=clients)))
    shares, trust = raw / raw.sum(), fleet(clients, rate=rate)
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    greedy = int(rng.integers(clients))
    had = np.zeros((40, clients))
    for step in range(1, 41):
        others = rng.choice(clients, size=int(rng.integers(1, 5)), replace=False)
        chosen = rng.permutation(np.concatenate([others, np.full(int(rng.integers(0, 3)), greedy)]))
        weights = rng.random(chosen.size) ** 4
        if mode == "average":
            capped = trust.bound_weights(chosen, weights / weights.sum(), shares, step)
        else:
            capped = trust.bound_weights(chosen, 10 * (weights - 0.3), shares, step, "delta")
        trust.observe(chosen, capped, shares, step)
        had[step - 1] = np.bincount(chosen, np.abs(capped), minlength=clients)
    sums = np.concatenate([np.zeros((1, clients)), np.cumsum(had, axis=0)])
    for start in range(40):
        steps = np.arange(1, 41 - start)[:, None]
        assert (sums[start + 1 :] - sums[start] <= WEIGHT_BURST + rate * shares * steps + 1e-9).all()


def test_delta_weights_are_cut_and_keep_their_sign_and_nobody_gets_the_rest():
    trust = fleet(FLEET)
    capped = trust.bound_weights(rows(0, 1, 2), np.array([7.0, -6.0, 0.5]), shares_of(FLEET), 1, "delta")
    np.testing.assert_array_equal(capped, [WEIGHT_BURST, -WEIGHT_BURST, 0.5])
    weights = np.array([1.0, -0.5])
    assert trust.bound_weights(rows(0, 1), weights, shares_of(FLEET), 1, "delta") is weights
    assert fleet(FLEET, on=False).bound_weights(rows(0), np.array([9.0]), shares_of(FLEET), 1, "delta")[0] == 9.0


# -- claims --------------------------------------------------------------------------------------------------


@QUICK
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60))
def test_nobody_claims_most_of_the_objective_of_a_large_fleet(samples):
    samples = np.array(samples)
    found = fleet(samples.size).bound_samples(samples)
    changed = np.flatnonzero(found != samples)
    assert changed.size <= 1
    if samples.size >= SHARE_FLEET and np.count_nonzero(samples) > 1:
        assert found.max() <= 0.5 * found.sum() * (1 + 1e-9)
    if samples.size < SHARE_FLEET or samples.max() <= 0.5 * samples.sum():
        assert found is samples
    assert fleet(samples.size, on=False).bound_samples(samples) is samples


def test_who_reports_fewer_seconds_than_were_measured_is_believed_within_an_allowance():
    trust = fleet(1)
    assert trust.bound_seconds(3.0, 10.0) == 7.5
    assert trust.bound_seconds(8.0, 10.0) == 8.0
    assert trust.bound_seconds(30.0, 10.0) == 30.0, "who claims to be slower may"
    assert trust.bound_seconds(0.0, 1.0) == 0.5, "a second of transfer, but at least half of what was measured"
    assert trust.bound_seconds(0.0, 2.0) == 1.0
    assert trust.bound_seconds(3.0, math.nan) == 3.0
    assert fleet(1, on=False).bound_seconds(3.0, 10.0) == 3.0
    assert trust.bound_seconds(np.float16(3.0), 1e6) == 750_000.0


def timed(*, learn_delays, spread):
    """The view's delays of 20 clients of which the last claims 1 s and takes 100, after ten answers each."""
    ledger = Ledger(learn_delays=learn_delays)
    ledger.join(range(20))
    ledger.set_delays(np.arange(20), [10.0] * 19 + [1.0])
    taken = np.random.default_rng(0).lognormal(0.0, spread, size=(10, 20)) * ([10.0] * 19 + [100.0])
    for step, seconds in enumerate(taken):
        ledger.fold([Outcome(client, seconds=took) for client, took in enumerate(seconds.tolist())], step)
    return ledger.facts()["delay"]


def test_delays_that_the_host_gives_are_never_changed_however_late_answers_are():
    np.testing.assert_array_equal(timed(learn_delays=False, spread=1.5), [10.0] * 19 + [1.0])


def test_a_false_claim_is_corrected_where_delays_are_learnt():
    found = timed(learn_delays=True, spread=0.3)
    assert found[19] > 2 * np.median(found[:19])


def test_a_moment_far_above_the_others_is_clipped():
    trust, moment = fleet(8), np.ones((2, 2))
    found = trust.bound_moments({row: moment * (1e3 if row == 0 else 1.0) for row in range(8)})
    assert found[0] == pytest.approx(1e-5), "to ten times the median of the traces, which are squares"
    assert all(found[row] == 1.0 for row in range(1, 8))
    assert trust.bound_moments({0: moment})[0] == 1.0, "an honest one is taken as it is"
    assert fleet(8, on=False).bound_moments({0: 1e9 * moment}) == {0: 1.0}
    trust.forget_moments()
    assert trust.bound_moments({0: 1e9 * moment}) == {0: 1.0}, "of one there is no median"


@QUICK
@given(st.lists(st.floats(-150, 150), min_size=1, max_size=12))
def test_corrections_of_moments_are_finite_and_most_are_none(logs):
    trust = fleet(len(logs))
    found = trust.bound_moments({row: np.full((1, 1), math.exp(log)) for row, log in enumerate(logs)})
    assert set(found) == set(range(len(logs)))
    assert all(0 < scale < math.inf for scale in found.values())
    assert 2 * sum(scale != 1 for scale in found.values()) <= len(logs)


# -- honest fleets that look odd ------------------------------------------------------------------------------


def test_clients_that_send_nothing_have_no_vote_on_the_length_of_others():
    trust = fleet(40)
    sent = np.zeros(40)
    sent[:10] = np.linspace(1.0, 5.0, 10)
    for step in range(5):
        np.testing.assert_array_equal(trust.clip_factors(range(40), sent, step=step), 1.0)


def test_a_client_that_trains_fifty_times_as_long_is_shortened_and_stays():
    trust, sent = fleet(40), np.ones(40)
    sent[7] = 50.0
    for step in range(5):
        factors = trust.clip_factors(range(40), sent, step=step)
        assert factors[7] == pytest.approx(CLIP / 50.0), "as long as ten others"
        np.testing.assert_array_equal(np.delete(factors, 7), 1.0)
    assert rests(trust, 5) == []


def test_a_client_that_joins_late_is_bounded_by_the_lengths_of_those_before():
    trust = fleet(20)
    trust.clip_factors(range(20), np.ones(20))
    for step in range(1, 30):
        trust.append([20])
        assert trust.clip_factors([20], [1e6], step=step)[0] * 1e6 <= CLIP * (1 + step / REFERENCE_STEPS) * (1 + 1e-9)
        trust.remove(rows(20), [20])


# -- evidence ------------------------------------------------------------------------------------------------


def verdict(*accepted):
    return np.array(accepted, dtype=np.bool_)


def rests(trust, step):
    return np.flatnonzero(~trust.admitted(np.ones(len(trust), dtype=np.bool_), step)).tolist()


def test_a_client_that_the_validation_set_refuses_repeatedly_rests_for_a_while_and_longer_each_time():
    trust = fleet(6)
    for step in range(MAX_REFUSALS):
        assert rests(trust, step) == []
        trust.observe_verdicts(np.array([0, 1, -1]), verdict(False, True, True), step)
    last = MAX_REFUSALS - 1
    assert rests(trust, last + 1) == rests(trust, last + int(REST_STEPS)) == [0]
    assert rests(trust, last + 1 + int(REST_STEPS)) == [], "a rest ends by itself"
    trust.observe_verdicts(np.array([0, 1]), verdict(False, True), 100)
    assert rests(trust, 100 + 2 * int(REST_STEPS)) == [0], "the next one is twice as long"
    assert rests(trust, 101 + 2 * int(REST_STEPS)) == []
    trust.observe_verdicts(np.array([0, 1]), verdict(True, True), 200)
    trust.observe_verdicts(np.array([0, 1]), verdict(False, True), 201)
    assert rests(trust, 202) == [], "an accepted update makes good for all before"


def test_one_refusal_is_enough_where_most_updates_of_a_step_are_refused():
    trust = fleet(6)
    trust.observe_verdicts(np.array([0, 1, 2, 3]), verdict(False, False, True, True), 0)
    assert rests(trust, 1) == []
    trust.observe_verdicts(np.array([2, 3, 4]), verdict(False, True, False), 1)
    assert rests(trust, 2) == [2, 4]


def test_who_is_readmitted_has_no_past():
    trust = fleet(6)
    trust.observe_verdicts(np.array([0]), verdict(False), 0)
    assert rests(trust, 1) == [0]
    trust.readmit(rows(0))
    assert rests(trust, 1) == []
    for step in range(1, MAX_REFUSALS):
        trust.observe_verdicts(np.array([0, 1]), verdict(False, True), step)
    assert rests(trust, MAX_REFUSALS) == []


@QUICK
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_at_most_half_of_those_there_rest_and_those_refused_most(refused, data):
    trust = fleet(len(refused))
    for number in range(max(refused)):
        for row, times in enumerate(refused):
            if number < times:
                trust.observe_verdicts(np.array([row]), verdict(False), 0)
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(refused), max_size=len(refused))))
    found = trust.admitted(among, 1)
    bad = np.array(refused) > 0
    assert not (found & ~among).any()
    resting = among & ~found
    assert int(resting.sum()) == min(int((among & bad).sum()), int(among.sum()) // 2)
    if resting.any() and (found & bad).any():
        assert np.array(refused)[resting].min() >= np.array(refused)[found].max()


def test_numbers_stay_finite_however_often_a_client_is_refused():
    trust = fleet(2)
    for step in range(2000):
        trust.observe_verdicts(np.array([0, 1]), verdict(False, True), step)
    assert all(np.isfinite(column).all() for name, column in trust.columns.items() if name != "moment_size")


# -- rows and saving -----------------------------------------------------------------------------------------


def told():
    trust = fleet(6)
    trust.clip_factors(range(6), [1.0, 2.0, 3.0, 4.0, 5.0, 600.0])
    trust.clip_factors([1], [9.0], "counters")
    trust.observe(rows(0, 3), np.array([0.25, 0.75]), shares_of(6), 4)
    trust.bound_moments({row: np.eye(2) for row in range(4)})
    trust.observe_verdicts(np.array([5]), verdict(False), 3)
    return trust


def test_what_is_saved_comes_back():
    trust, again = told(), Trust()
    again.load({name: np.array(array) for name, array in trust.arrays().items()}, 6)
    assert trust.arrays().keys() == again.arrays().keys() >= COLUMNS.keys()
    for name, array in trust.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name], name)
    np.testing.assert_array_equal(again.clip_factors([5], [1e6]), trust.clip_factors([5], [1e6]))


def test_rows_come_and_go_with_their_clients():
    trust = told()
    before = {name: array.copy() for name, array in trust.arrays().items()}
    trust.remove(rows(0, 4), [0, 4])
    trust.append([6])
    assert len(trust) == 5
    for name, array in trust.arrays().items():
        np.testing.assert_array_equal(array[:4], before[name][[1, 2, 3, 5]], name)
    assert trust.longest["update"][4] == 0
    np.testing.assert_array_equal(rests(trust, 4), [3])
    empty = Trust()
    assert len(empty) == 0
    assert empty.admitted(np.zeros(0, dtype=np.bool_), 0).size == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"refusals": None},
        {"weight_used": np.zeros(5)},
        {"weight_used": np.full(6, math.nan)},
        {"weight_used": np.full(6, -1.0)},
        {"moment_size": np.full(6, math.inf)},
        {"rest_until": np.array(["a"] * 6)},
        {"longest/update": np.zeros((6, 1))},
        {"longest/update": np.array([1, 1, 1, 1, 1, math.inf])},
        {"longest/update": np.full(6, -1.0)},
        {"more": np.zeros(2)},
    ],
    ids=str,
)
def test_what_was_damaged_is_refused_and_changes_nothing(damage):
    saved = {name: array for name, array in (told().arrays() | damage).items() if array is not None}
    trust = fleet(6)
    with pytest.raises(InputError, match="start anew"):
        trust.load(saved, 6)
    assert not trust.longest
    np.testing.assert_array_equal(trust.columns["weight_used"], 0.0)
