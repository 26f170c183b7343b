"""Whose updates are turned round: two answers tell while clients agree, and none once they do not."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace import stream
from fedpace.core.screening import AGREED
from fedpace.core.trust import Trust

CLIENTS, COHORT = 60, 10


def fleet() -> Trust:
    trust = Trust()
    trust.append(CLIENTS)
    return trust


def judge(trust: Trust, rows, cosines, step: int) -> None:
    trust.judge(list(rows), np.ones(len(rows)), [step] * len(rows), np.asarray(cosines, dtype=float), step)


def step_of(liars, agreement: float, rng: np.random.Generator, rows) -> np.ndarray:
    """Cosines of a cohort in which honest clients have `agreement` on average, and liars as much the other way."""
    cosines = agreement + 0.12 * rng.normal(size=len(rows))
    return np.where(np.isin(rows, list(liars)), -cosines, cosines)


def test_two_answers_tell_while_clients_agree_and_one_does_not():
    trust, rng = fleet(), stream(0, "turning")
    rows = np.arange(COHORT)
    judge(trust, rows, step_of({0, 1}, 0.45, rng, rows), 1)
    assert (trust.weight() == 1).all(), "one answer is never enough"
    judge(trust, rows, step_of({0, 1}, 0.45, rng, rows), 2)
    assert np.flatnonzero(trust.weight() < 0.6).tolist() == [0, 1]


def test_a_fifth_is_found_in_cohorts_that_are_drawn():
    trust, rng = fleet(), stream(1, "turning")
    liars = set(range(12))
    for step in range(30):
        rows = rng.choice(CLIENTS, COHORT, replace=False)
        judge(trust, rows, step_of(liars, 0.4, rng, rows), step)
    found = set(np.flatnonzero(trust.weight() < 0.6).tolist())
    assert found <= liars
    assert len(found) >= 10


def test_nothing_is_told_once_clients_agree_on_little():
    """Honest clients point away from the others by chance then, some of them again and again."""
    trust, rng = fleet(), stream(2, "turning")
    own = np.linspace(-0.22, 0.3, CLIENTS)
    for step in range(80):
        rows = rng.choice(CLIENTS, COHORT, replace=False)
        cosines = own[rows] + 0.1 * rng.normal(size=COHORT)
        assert np.median(cosines) < AGREED + 0.15
        judge(trust, rows, np.clip(cosines, -0.2, 0.19), step)
    assert (trust.weight() == 1).all()
    assert not trust.columns["agreement"].any()


@pytest.mark.parametrize("own", [-0.15, -0.05, 0.1])
def test_an_honest_client_whose_data_are_like_nobodys_stays(own):
    """It agrees with the others on little, for as long as they agree, but does not work against them."""
    trust, rng = fleet(), stream(3, "turning")
    rows = np.arange(COHORT)
    for step in range(40):
        cosines = 0.4 + 0.12 * rng.normal(size=COHORT)
        cosines[0] = own + 0.1 * rng.normal()
        judge(trust, rows, cosines, step)
    assert (trust.weight() == 1).all()


def test_it_is_held_off_until_after_the_time_in_which_it_can_be_told():
    trust, rng = fleet(), stream(4, "turning")
    rows = np.arange(COHORT)
    for step in (1, 2):
        judge(trust, rows, step_of({0}, 0.45, rng, rows), step)
    everybody = np.ones(CLIENTS, dtype=bool)
    for step, asked in ((150, False), (260, True)):
        judge(trust, rows[1:], np.full(COHORT - 1, 0.05), step)
        assert bool(trust.admitted(everybody)[0]) is asked


def test_states_from_before_have_counted_nothing():
    saved = {name: array for name, array in fleet().arrays().items() if name not in ("aligned", "agreement")}
    trust = fleet()
    trust.load(saved, CLIENTS)
    assert not trust.columns["aligned"].any()
    assert trust.columns["agreement"].shape == (CLIENTS,)
