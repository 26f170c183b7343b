from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.base import summarise
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.nycmesh import NycmeshDelays


def test_the_numbers_are_those_of_the_draws() -> None:
    model = LognormalDelays(median=500.0).build(40, model_bytes=0, seed=0)
    found = summarise(model, rounds=3, levels=(0.5, 0.9), bins=7)
    draws = np.array([model.draw(step) for step in range(3)])
    np.testing.assert_allclose(found.quantiles, np.quantile(draws, [0.5, 0.9]))
    assert found.mean == pytest.approx(draws.mean())
    assert found.slow == pytest.approx((draws > 1000).mean())
    assert found.full_round == pytest.approx(draws.max(axis=1).mean())
    assert (found.clients, found.fleets, found.rounds) == (40, 1, 3)
    assert found.counts.sum() == draws.size
    assert found.counts.size == 7
    assert [name for name, _ in found.rows()] == ["p50", "p90", "mean", "share above 1000 s", "full round"]


def test_many_fleets_are_pooled() -> None:
    found = summarise(*(NycmeshDelays().build(100, model_bytes=0, seed=seed) for seed in range(80)), rounds=1)
    assert found.fleets == 80
    assert found.slow == pytest.approx(0.10, abs=0.015)
    assert found.full_round == pytest.approx(1980, abs=25)
    assert found.counts.sum() == 8000


def test_delays_that_are_all_alike() -> None:
    found = summarise(ConstantDelays().build(4, model_bytes=0, seed=0), rounds=2)
    assert found.counts.sum() == 8
    assert found.counts.max() == 8
    assert set(found.quantiles) == {60.0}


def test_bad_input() -> None:
    small, large = (ConstantDelays().build(n, model_bytes=0, seed=0) for n in (2, 3))
    with pytest.raises(InputError, match="at least one delay model"):
        summarise()
    with pytest.raises(InputError, match="fleets of one size, but 2, 3 clients came"):
        summarise(small, large)
    with pytest.raises(InputError, match="rounds must be at least 1"):
        summarise(small, rounds=0)
    with pytest.raises(InputError, match="level must lie between 0 and 1"):
        summarise(small, levels=(1.5,))
