"""The ledger learns which part of a client's seconds grows with the work, and estimates the seconds of any work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import Coordinator, Need, Outcome, Session, make_selector
from fedpace._base.errors import InputError
from fedpace.core.delay_estimator import SHARE_DOUBT, DelayEstimator
from fedpace.core.ledger import Ledger

ESTIMATOR = DelayEstimator()


def observed(parts, works, *, noise=0.0, seed=0):
    """The estimates after tasks with these works: seconds = (rest + work compute) times log-normal noise."""
    rng = np.random.default_rng(seed)
    state = ESTIMATOR.init(len(parts))
    rows = np.arange(len(parts))
    for step, work in enumerate(works):
        amount = np.full(len(parts), work)
        seconds = [(rest + work * compute) * np.exp(noise * rng.normal()) for rest, compute in parts]
        state = ESTIMATOR.fold(state, rows, seconds, [True] * len(parts), step=step, work=amount)
    return state


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(1, 50), st.floats(1, 50)), min_size=1, max_size=6),
    st.lists(st.floats(0.2, 4.0), min_size=1, max_size=5),
)
def test_without_noise_both_parts_are_found(parts, works):
    state = observed(parts, [*works, 0.25, 2.0] * 8)
    rest, compute = np.array(parts).T
    np.testing.assert_allclose(state.share, compute / (rest + compute), atol=0.06)
    # The estimate is a mean of log-normal seconds: exp(noise^2 / 2) above the median.
    np.testing.assert_allclose(ESTIMATOR.seconds(state), rest + compute, rtol=0.08)


def test_with_noise_the_share_is_close():
    parts = [(5.0, 45.0), (45.0, 5.0), (25.0, 25.0)] * 5
    state = observed(parts, [1.0, 0.25, 0.5, 3.0] * 10, noise=0.2, seed=3)
    shares = state.share.reshape(5, 3).mean(0)
    np.testing.assert_allclose(shares, [0.9, 0.1, 0.5], atol=0.1)
    assert (state.share_doubt < SHARE_DOUBT**2 / 4).all()


def test_equal_work_changes_nothing_and_says_nothing_of_the_share():
    parts = [(5.0, 45.0), (30.0, 3.0)]
    plain, ones = observed(parts, [1.0] * 6, noise=0.3), None
    state = ESTIMATOR.init(2)
    rng = np.random.default_rng(0)
    for step in range(6):
        seconds = [(rest + compute) * np.exp(0.3 * rng.normal()) for rest, compute in parts]
        state = ones = ESTIMATOR.fold(state, [0, 1], seconds, [True] * 2, step=step)
    for name, column in plain.arrays().items():
        assert np.array_equal(column, ones.arrays()[name]), name
    assert state.share.tolist() == [0.5, 0.5]
    assert state.cross.tolist() == [0.0, 0.0]


def test_a_share_that_the_host_gives_counts():
    state = ESTIMATOR.with_shares(ESTIMATOR.init(3), [0, 1, 2], [0.9, np.nan, 2.0])
    assert state.share.tolist() == [0.9, 0.5, 1.0]
    assert state.share_doubt[0] < state.share_doubt[1]


@pytest.mark.parametrize("work", [[1.0], [0.0, 1.0], [np.nan, 1.0]])
def test_bad_work_is_refused(work):
    with pytest.raises(InputError, match="expected 2 amounts of work above 0"):
        ESTIMATOR.fold(ESTIMATOR.init(2), [0, 1], [1.0, 1.0], [True, True], step=0, work=work)


@pytest.mark.parametrize("learn", [True, False])
def test_the_view_tells_the_seconds_of_any_work(learn):
    session = Session(make_selector("random", k=2), learn_delays=learn)
    session.join(["a", "b"], delays=[10.0, 40.0], compute=[8.0, 4.0])
    view = session.view()
    np.testing.assert_allclose(view.compute / view.delay, [0.8, 0.1], rtol=1e-9)
    np.testing.assert_allclose(view.seconds_with(1.0), view.delay)
    np.testing.assert_allclose(view.seconds_with(0.5), view.delay - view.compute / 2)
    np.testing.assert_allclose(view.seconds_with(np.array([2.0, 3.0])), view.delay + view.compute * [1, 2])


def test_half_grows_where_nothing_is_known():
    session = Session(make_selector("random", k=2), learn_delays=False)
    session.join(["a"], delays=[10.0])
    assert session.view().growing.tolist() == [5.0]


def test_a_part_larger_than_the_whole():
    ledger = Ledger()
    rows = ledger.join(["a"])
    with pytest.raises(InputError, match="the compute of client 'a' is part of its delay, but 12 of 10 s came"):
        ledger.set_delays(rows, [10.0], [12.0])
    with pytest.raises(InputError, match="give delays too"):
        Coordinator(make_selector("random")).join(["a"], compute=[1.0])


def test_answers_with_different_work_teach_the_ledger():
    """Through a coordinator, as a live server would."""
    scheme = make_selector("fedprox", k=4, straggling="random", stragglers=0.75, least=0.2)
    coordinator = Coordinator(scheme, offers=[Need.DELAY, Need.WORK])
    parts = {"a": (3.0, 27.0), "b": (18.0, 2.0), "c": (1.0, 9.0), "d": (20.0, 60.0)}
    coordinator.join(parts)
    while coordinator.step < 25:
        due = coordinator.due(coordinator.now)
        if due.step is not None:
            coordinator.stepped()
        ends = sorted((sum(parts[t.client]) + (t.work - 1) * parts[t.client][1], t) for t in due.tasks)
        began = coordinator.now
        for seconds, task in ends:
            coordinator.receive(task.id, Outcome(task.client, seconds=seconds), began + seconds)
    columns = coordinator.ledger.columns
    np.testing.assert_allclose(columns["compute"] / columns["delay"], [0.9, 0.1, 0.9, 0.75], atol=0.1)


@pytest.mark.parametrize("work", [0.25, 1.0, 3.0])
def test_a_client_that_reports_its_computing_is_known_at_once(work):
    ledger = Ledger()
    ledger.join(["a", "b"])
    told = Outcome("a", seconds=10.0 + 40.0 * work, compute=40.0 * work)
    ledger.fold([told, Outcome("b", seconds=50.0)], 0, work=[work, 1.0])
    share = ledger.columns["compute"] / ledger.columns["delay"]
    np.testing.assert_allclose(share, [0.8, 0.5], atol=0.02)


def test_more_computing_than_seconds_counts_as_all():
    ledger = Ledger()
    ledger.join(["a"])
    ledger.fold([Outcome("a", seconds=10.0, compute=1e6)], 0)
    assert ledger.columns["compute"][0] == ledger.columns["delay"][0]
    with pytest.raises(InputError, match="must be a finite number of seconds, at least 0"):
        ledger.check([Outcome("a", seconds=10.0, compute=-1.0)])
