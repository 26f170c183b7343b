from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.lognormal import LognormalDelays


def test_median_and_sigma_over_the_clients() -> None:
    mean = LognormalDelays(median=60.0, sigma=1.2).build(20_000, model_bytes=0, seed=0).expected()
    assert np.median(mean) == pytest.approx(60.0, rel=0.03)
    assert np.log(mean).std() == pytest.approx(1.2, rel=0.02)


def test_the_default_has_a_long_tail() -> None:
    mean = LognormalDelays().build(20_000, model_bytes=0, seed=0).expected()
    assert np.quantile(mean, 0.9) > 6.5 * np.median(mean)


def test_the_size_of_the_model_changes_nothing() -> None:
    small = LognormalDelays().build(9, model_bytes=1, seed=0)
    large = LognormalDelays().build(9, model_bytes=10**9, seed=0)
    np.testing.assert_array_equal(small.draw(3), large.draw(3))


def test_the_widest_noise_still_gives_positive_finite_delays() -> None:
    model = LognormalDelays(sigma=10.0, jitter=10.0).build(10_000, model_bytes=0, seed=0)
    assert np.isfinite(model.draw(0)).all()
    assert (model.draw(0) > 0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"median": 0.0}, "median of lognormal must be above 0"),
        ({"median": float("nan")}, "median"),
        ({"sigma": -1.0}, "sigma of lognormal must lie between 0 and 10"),
        ({"sigma": 11.0}, "between 0 and 10"),
        ({"jitter": True}, "jitter"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        LognormalDelays(**options)
