"""Whose updates are turned round: two answers tell while clients agree, and none once they do not."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace import stream
from fedpace.core.screening import AGREED, compared
from fedpace.core.trust import Trust

CLIENTS, COHORT = 60, 10


def fleet() -> Trust:
    trust = Trust()
    trust.append(CLIENTS)
    return trust


def judge(trust: Trust, rows, cosines, step: int, versions=None) -> list[int]:
    """Return whose answers are left out of the step."""
    born = [step] * len(rows) if versions is None else versions
    _, against = trust.judge(list(rows), np.ones(len(rows)), born, np.asarray(cosines, dtype=float), step)
    return np.asarray(rows)[against].tolist()


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


def test_it_is_not_asked_again_when_it_could_no_longer_be_told():
    trust, rng = fleet(), stream(4, "turning")
    rows = np.arange(COHORT)
    for step in (1, 2):
        judge(trust, rows, step_of({0}, 0.45, rng, rows), step)
    everybody = np.ones(CLIENTS, dtype=bool)
    for step in (150, 5_000):
        judge(trust, rows[1:], np.full(COHORT - 1, 0.05), step)
        assert np.flatnonzero(~trust.admitted(everybody)).tolist() == [0]


def test_the_first_answer_against_the_others_is_left_out_and_nothing_is_held_against_its_client():
    trust, rng = fleet(), stream(5, "turning")
    rows = np.arange(COHORT)
    assert judge(trust, rows, step_of({0, 1}, 0.45, rng, rows), 1) == [0, 1]
    assert (trust.weight() == 1).all()
    cosines = np.full(COHORT, 0.4)
    assert judge(trust, rows, cosines, 2) == [], "an answer that is not against the others counts"


def test_answers_to_models_of_several_ages_are_not_left_out():
    trust, rng = fleet(), stream(6, "turning")
    rows = np.arange(COHORT)
    assert judge(trust, rows, step_of({0}, 0.45, rng, rows), 5, versions=[4] * 5 + [5] * 5) == []


def test_an_honest_client_loses_two_turns_at_the_most():
    """It happened to point against the others while these agreed, and once they do not nobody can tell any more."""
    trust = fleet()
    rows = np.arange(COHORT)
    lost = [judge(trust, rows, [-0.3, *[0.3] * (COHORT - 1)], 0)]
    lost += [judge(trust, rows, [-0.1, *[0.1] * (COHORT - 1)], step) for step in range(1, 30)]
    assert lost == [[0], [0], *[[]] * 28]
    assert (trust.weight() == 1).all()


def test_nobody_is_left_out_where_half_would_be():
    trust, rng = fleet(), stream(7, "turning")
    rows = np.arange(COHORT)
    judge(trust, rows, step_of({0, 1, 2, 3}, 0.6, rng, rows), 1)
    few = [0, 1, 2, 3, 4]
    assert judge(trust, few, [-0.5, -0.5, -0.5, -0.5, 0.5], 2) == []


def test_the_others_are_not_compared_with_whom_is_doubted():
    """Four of ten that turn round leave no agreement; without those that were seen before, there is."""
    trust = fleet()
    judge(trust, np.arange(COHORT), [*[-0.5] * 3, *[0.5] * 7], 1)
    rows = [0, 1, 2, *range(20, 27)]
    believed = trust.believed(rows, [2] * COHORT)
    assert believed.tolist() == [False] * 3 + [True] * 7
    direction = np.ones(64)
    rng = stream(8, "turning")
    honest = [direction + 0.8 * rng.normal(size=64) for _ in range(COHORT)]
    updates = [-u if place in (0, 1, 2, 3, 4) else u for place, u in enumerate(honest)]  # 20 and 21 lie too
    alone = compared(lambda: iter(updates), [2] * COHORT)[1]
    assert np.median(alone) < AGREED, "five of ten: nobody agrees with anybody"
    lengths, cosines = compared(lambda: iter(updates), [2] * COHORT, believed)
    times, _ = trust.judge(rows, lengths, [2] * COHORT, cosines, 2)
    assert not times.any()
    assert trust.columns["turned"].nonzero()[0].tolist() == [0, 1, 2]
    assert trust.columns["aligned"][[20, 21]].max() < 0 < trust.columns["aligned"][22:27].min()


def test_two_signs_that_agree_do():
    """Neither its mean cosine nor how it goes with the others' agreement is beyond doubt: both together are."""
    trust, rng = fleet(), stream(9, "turning")
    rows = np.arange(COHORT)
    for step in range(4):
        cosines = 0.22 + 0.02 * rng.normal(size=COHORT)
        cosines[0] = -0.5
        judge(trust, rows, cosines, step)
    assert trust.columns["turned"].nonzero()[0].tolist() == [0]


def test_states_from_before_have_counted_nothing():
    saved = {name: array for name, array in fleet().arrays().items() if name not in ("aligned", "agreement", "turned")}
    trust = fleet()
    trust.load(saved, CLIENTS)
    assert not trust.columns["aligned"].any()
    assert trust.columns["agreement"].shape == trust.columns["turned"].shape == (CLIENTS,)


def test_of_few_coordinates_a_cosine_says_little():
    """Directions that have nothing to do with each other have cosines of 1 / sqrt(d): of three, any is likely."""
    rows, cosines = list(range(COHORT)), np.array([-0.5, *[0.5] * (COHORT - 1)])
    small, large = fleet(), fleet()
    for step in (1, 2):
        against = small.judge(rows, np.ones(COHORT), [step] * COHORT, cosines, step, coordinates=3).against
        assert step == 2 or not against.any()
        assert large.judge(rows, np.ones(COHORT), [step] * COHORT, cosines, step, coordinates=100).against[0]
    assert not small.columns["turned"].any()
    assert large.columns["turned"][0]
    small.judge(rows, np.ones(COHORT), [3] * COHORT, cosines, 3, coordinates=3)
    assert small.weight()[0] < 1, "three that point away as far are held against it for a while, as always"
    assert not small.columns["turned"].any()
