from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.core.delay_estimator import DelayEstimator, Estimates


def run(estimator: DelayEstimator, rounds: np.ndarray) -> Estimates:
    """Everybody observed in every round."""
    state = estimator.init(rounds.shape[1])
    for step, seconds in enumerate(rounds):
        state = estimator.fold(state, np.arange(seconds.size), seconds, np.ones(seconds.size, bool), step=step)
    return state


@pytest.fixture
def estimator() -> DelayEstimator:
    return DelayEstimator()


def noisy(rounds: int, mean: np.ndarray, sigma: float = 0.3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return mean * np.exp(sigma * rng.standard_normal((rounds, mean.size)) - sigma**2 / 2)


def test_it_finds_the_means_and_the_noise(estimator: DelayEstimator) -> None:
    mean = np.geomspace(10, 5000, 200)
    state = run(estimator, noisy(60, mean))
    assert np.abs(np.log(estimator.seconds(state) / mean)).mean() < 0.12
    assert state.noise == pytest.approx(0.3, abs=0.06)


def test_constant_delays_are_learnt_exactly(estimator: DelayEstimator) -> None:
    mean = np.geomspace(10, 5000, 50)
    state = run(estimator, np.tile(mean, (30, 1)))
    np.testing.assert_allclose(estimator.seconds(state), mean, rtol=1e-2)


def test_one_hang_is_shrugged_off_and_three_are_believed(estimator: DelayEstimator) -> None:
    calm = np.full((20, 30), 100.0) * np.exp(0.1 * np.random.default_rng(0).standard_normal((20, 30)))
    state = run(estimator, calm)
    before = estimator.seconds(state)[0]
    for step in range(20, 22):
        state = estimator.fold(state, [0], [900.0], [True], step=step)
        assert estimator.seconds(state)[0] == pytest.approx(before, rel=0.02)
    state = estimator.fold(state, [0], [900.0], [True], step=22)
    assert estimator.seconds(state)[0] == pytest.approx(900.0, rel=0.05)


def test_a_client_that_speeds_up_is_believed_at_once(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(20, np.full(30, 1000.0), 0.1))
    state = estimator.fold(state, [3], [100.0], [True], step=20)
    assert estimator.seconds(state)[3] == pytest.approx(100.0, rel=0.05)


def test_slow_drift_is_followed(estimator: DelayEstimator) -> None:
    trend = 100 * 4 ** (np.arange(80) / 80)
    state = run(estimator, trend[:, None] * noisy(80, np.ones(40), 0.2))
    assert np.median(estimator.seconds(state)) == pytest.approx(trend[-1], rel=0.15)


def test_the_longer_ago_the_less_the_past_counts(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(20, np.full(30, 100.0)))
    soon, late = (estimator.fold(state, [0], [140.0], [True], step=step) for step in (20, 200))
    assert estimator.seconds(late)[0] > estimator.seconds(soon)[0] * 1.05


def test_the_estimate_is_the_mean_not_the_median(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(100, np.full(400, 100.0), 0.6))
    assert estimator.seconds(state).mean() == pytest.approx(100.0, rel=0.06)


def test_a_stranger_in_a_uniform_fleet_is_believed(estimator: DelayEstimator) -> None:
    state = run(estimator, np.full((30, 10), 100.0)).append(1)
    state = estimator.fold(state, [10], [800.0], [True], step=30)
    assert estimator.seconds(state)[10] == pytest.approx(800.0, rel=0.1)


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_below_plain_mean_and_last_value_under_drift_and_outliers(estimator: DelayEstimator, share: float) -> None:
    rng = np.random.default_rng(1)
    n = 150
    log_mean = np.log(100) + rng.standard_normal(n)
    state, total, count, last = estimator.init(n), np.zeros(n), np.zeros(n), np.full(n, np.nan)
    errors = []
    for step in range(80):
        log_mean = log_mean + 0.05 * rng.standard_normal(n)
        seconds = np.exp(log_mean + 0.3 * rng.standard_normal(n) - 0.045)
        seconds *= np.where(rng.random(n) < 0.2, rng.uniform(4, 15, n), 1.0)
        rows = np.flatnonzero(rng.random(n) < (share if step else 1.0))
        state = estimator.fold(state, rows, seconds[rows], np.ones(rows.size, bool), step=step)
        total[rows] += seconds[rows]
        count[rows] += 1
        last[rows] = seconds[rows]
        if step > 10:
            guesses = (estimator.seconds(state), total / count, last)
            errors.append([np.abs(np.log(guess) - log_mean).mean() for guess in guesses])
    ours, mean, latest = np.mean(errors, axis=0)
    assert ours < 0.6 * latest
    assert ours < 0.4 * mean


def test_a_cut_is_at_least_that_long(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(20, np.full(30, 100.0)))
    told = estimator.fold(state, [0], [20.0], [False], step=20)
    assert estimator.seconds(told)[0] == pytest.approx(estimator.seconds(state)[0], rel=1e-3)
    cut, answer = (estimator.fold(state, [1], [120.0], [done], step=20) for done in (False, True))
    assert estimator.seconds(state)[1] < estimator.seconds(answer)[1] < estimator.seconds(cut)[1]
    assert answer.doubt[1] < cut.doubt[1] < told.doubt[0] * 1.001


def test_a_client_that_never_makes_the_deadline_ends_above_it(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(10, np.full(30, 100.0), 0.2))
    for step in range(10, 25):
        state = estimator.fold(state, [5], [300.0], [False], step=step)
    assert estimator.seconds(state)[5] > 300
    assert np.isfinite(estimator.seconds(state)).all()


def test_a_newcomer_cut_off_is_placed_above_the_cut_and_the_fleet(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(10, np.geomspace(20, 500, 40))).append(1)
    middle = estimator.seconds(state)[40]
    state = estimator.fold(state, [40], [400.0], [False], step=10)
    assert estimator.seconds(state)[40] > 400 > middle


def test_the_unseen_get_the_fleet_s_median(estimator: DelayEstimator) -> None:
    state = estimator.init(3)
    assert np.isnan(estimator.seconds(state)).all()
    assert not state.seen.any()
    state = run(estimator, noisy(20, np.geomspace(10, 1000, 41), 0.05)).append(2)
    np.testing.assert_array_equal(state.seen[-3:], [True, False, False])
    np.testing.assert_allclose(estimator.seconds(state)[-2:], 100.0, rtol=0.05)


def test_a_crash_teaches_nothing(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(5, np.full(4, 100.0)))
    after = estimator.fold(state, [2], [np.nan], [False], step=5)
    np.testing.assert_array_equal(after.level, state.level)
    np.testing.assert_array_equal(after.step, state.step)


def test_fold_is_pure_and_the_state_read_only(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(5, np.full(4, 100.0)))
    level = state.level.copy()
    estimator.fold(state, [0], [500.0], [True], step=5)
    np.testing.assert_array_equal(state.level, level)
    with pytest.raises(ValueError, match="read-only"):
        state.level[0] = 0.0


def test_joining_leaving_and_restoring(estimator: DelayEstimator) -> None:
    state = run(estimator, noisy(8, np.geomspace(10, 1000, 6)))
    fewer = state.remove([1, 4])
    np.testing.assert_array_equal(fewer.level, np.delete(state.level, [1, 4]))
    again = Estimates.load(state.append(2).arrays())
    np.testing.assert_array_equal(again.level[:6], state.level)
    assert again.noise == state.noise
    assert again.step[6] == -1
    np.testing.assert_array_equal(estimator.seconds(Estimates.load(state.arrays())), estimator.seconds(state))


def test_more_than_one_client_at_once_is_each_alone(estimator: DelayEstimator) -> None:
    """Rows do not disturb each other: relabelling the clients relabels the estimates."""
    rounds = noisy(15, np.geomspace(10, 1000, 8))
    order = np.random.default_rng(0).permutation(8)
    straight, shuffled = run(estimator, rounds), run(estimator, rounds[:, order])
    np.testing.assert_allclose(estimator.seconds(straight)[order], estimator.seconds(shuffled), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(0, 1e9) | st.just(float("nan")), st.booleans()), min_size=1, max_size=40
    )
)
def test_whatever_comes_the_estimates_are_finite_and_positive(rounds: list[tuple[int, float, bool]]) -> None:
    estimator = DelayEstimator()
    state = estimator.init(5)
    for step, (row, seconds, finished) in enumerate(rounds):
        state = estimator.fold(state, [row], [seconds], [finished], step=step)
    guess = estimator.seconds(state)
    if state.seen.any():
        assert np.isfinite(guess).all()
        assert (guess > 0).all()
    assert (state.doubt >= 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([0, 0], [1.0, 2.0], [True, True]), "a row came twice"),
        (([9], [1.0], [True]), r"rows must lie in 0..3, but 9..9 came"),
        (([-1], [1.0], [True]), "rows must lie in"),
        (([1], [-5.0], [True]), "seconds of client 1 must be finite and at least 0.* -5.0 came"),
        (([1], [np.inf], [False]), "inf came"),
        (([1, 2], [1.0], [True]), "as many seconds and finished as rows"),
    ],
)
def test_bad_observations(estimator: DelayEstimator, arguments: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        estimator.fold(estimator.init(4), *arguments, step=0)


@pytest.mark.parametrize(
    "options", [{"memory": 0.5}, {"outlier": 0.0}, {"patience": 0}, {"patience": 1.5}, {"noise": 9.0}]
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        DelayEstimator(**options)
