from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.synthetic import SyntheticDelays


def test_a_fixed_link_and_compute_give_the_paper_s_formula() -> None:
    model = SyntheticDelays(link_speed=(1e6, 1e6), compute=(20.0, 20.0)).build(3, model_bytes=4_000_000, seed=0)
    np.testing.assert_allclose(model.expected(), 24.0, rtol=1e-15)


def test_both_parts_are_uniform_over_their_ranges() -> None:
    link = SyntheticDelays(compute=(0.0, 0.0)).build(4000, model_bytes=10**6, seed=1).expected()
    speed = 1e6 / link
    assert 200e3 <= speed.min() < 210e3
    assert 4.99e6 < speed.max() <= 5e6
    assert np.mean(speed) == pytest.approx(2.6e6, rel=0.03)
    compute = SyntheticDelays().build(4000, model_bytes=0, seed=1).expected()
    assert 15 <= compute.min() < 15.5
    assert 99.5 < compute.max() <= 100
    assert abs(np.corrcoef(speed, compute)[0, 1]) < 0.06


def test_constant_over_the_rounds_as_in_the_paper() -> None:
    model = SyntheticDelays().build(10, model_bytes=10**6, seed=0)
    np.testing.assert_array_equal(model.draw(0), model.draw(99))
    noisy = SyntheticDelays(jitter=0.2).build(10, model_bytes=10**6, seed=0)
    np.testing.assert_array_equal(noisy.expected(), model.expected())
    assert (noisy.draw(0) != noisy.draw(1)).all()


def test_table_3_s_faster_links_shorten_the_tail() -> None:
    worst = [
        SyntheticDelays(link_speed=(200e3, top)).build(500, model_bytes=26_000_000, seed=0).expected().mean()
        for top in (1e6, 5e6, 10e6)
    ]
    assert worst[0] > worst[1] > worst[2]


def test_a_size_of_its_own_replaces_the_model_s() -> None:
    fixed = SyntheticDelays(model_bytes=1_600_000).build(5, model_bytes=7, seed=0)
    plain = SyntheticDelays().build(5, model_bytes=1_600_000, seed=0)
    np.testing.assert_array_equal(fixed.expected(), plain.expected())


def test_ranges_may_come_as_lists() -> None:
    assert SyntheticDelays(link_speed=[1, 2], compute=[3, 4]) == SyntheticDelays(  # type: ignore[arg-type]
        link_speed=(1.0, 2.0), compute=(3.0, 4.0)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"link_speed": (0.0, 1e6)}, "link_speed of synthetic must be above 0"),
        ({"link_speed": (5e6, 2e5)}, "swap them"),
        ({"link_speed": 5e6}, "two numbers"),
        ({"compute": (-1.0, 10.0)}, "compute of synthetic must be at least 0"),
        ({"compute": (1.0, float("nan"))}, "compute of synthetic must be at least 0"),
        ({"jitter": -0.1}, "jitter of synthetic must lie between 0 and 10"),
        ({"jitter": float("inf")}, "between 0 and 10"),
        ({"jitter": "wild"}, "'wild' came"),
        ({"model_bytes": -3}, "model_bytes"),
    ],
)
def test_bad_options(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        SyntheticDelays(**options)


def test_a_delay_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="client 0 a delay of 0"):
        SyntheticDelays(compute=(0.0, 0.0)).build(2, model_bytes=0, seed=0)
