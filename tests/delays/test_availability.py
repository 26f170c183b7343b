from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.availability import Availability


def table(config: Availability, clients: int = 300, rounds: int = 200, seed: int = 0) -> np.ndarray:
    model = config.build(clients, seed=seed)
    return np.array([model.available(step) for step in range(rounds)])


def test_by_default_everybody_always() -> None:
    model = Availability().build(7, seed=0)
    assert table(Availability()).all()
    assert not any(model.crashes(step).any() for step in range(50))


def test_on_and_off_shares() -> None:
    here = table(Availability(on=12.0, off=4.0))
    assert here.mean() == pytest.approx(0.75, abs=0.02)
    assert here.mean(axis=1).std() < 0.05, "clients must not all leave at once"


def test_periods_have_their_lengths() -> None:
    here = table(Availability(on=6.0, off=3.0, spread=0.0), clients=20, rounds=90)
    changes = np.flatnonzero(np.diff(here[:, 0].astype(int)) == 1)
    np.testing.assert_array_equal(np.diff(changes), 9)


def test_crashes_have_their_probability_and_are_drawn_anew() -> None:
    model = Availability(crash=0.1).build(500, seed=0)
    crashed = np.array([model.crashes(step) for step in range(100)])
    assert crashed.mean() == pytest.approx(0.1, abs=0.005)
    assert crashed.mean(axis=0).max() < 0.3
    assert Availability(crash=1.0).build(9, seed=0).crashes(3).all()


def test_late_ones_join_and_stay() -> None:
    here = table(Availability(late=0.4, join_by=30))
    assert here[0].mean() == pytest.approx(0.6, abs=0.08)
    assert here[30:].all()
    assert (np.diff(here.astype(int), axis=0) >= 0).all()
    assert here[15].mean() == pytest.approx(0.8, abs=0.08)
    assert not table(Availability(late=1.0))[0].any()


def test_same_answers_in_any_order_for_a_prefix_and_read_only() -> None:
    config = Availability(on=5.0, off=2.0, crash=0.2, late=0.3)
    few, many = config.build(10, seed=3), config.build(40, seed=3)
    for step in (9, 0, 4):
        np.testing.assert_array_equal(few.available(step), many.available(step)[:10])
        np.testing.assert_array_equal(few.crashes(step), many.crashes(step)[:10])
    with pytest.raises(ValueError, match="read-only"):
        few.available(0)[0] = True
    assert (table(config, seed=1) != table(config, seed=2)).any()


@pytest.mark.parametrize(
    "options",
    [
        {"on": 0.0},
        {"off": -1.0},
        {"spread": 1.0},
        {"crash": 1.1},
        {"late": float("nan")},
        {"join_by": 0},
        {"join_by": 2.5},
    ],
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Availability(**options)


def test_bad_questions() -> None:
    with pytest.raises(InputError, match=r"number of clients|at least one client"):
        Availability().build(0, seed=0)
    with pytest.raises(InputError, match="a step must be"):
        Availability().build(2, seed=0).available(-1)
