from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.mixture import MixtureDelays
from fedpace.delays.uniform import UniformDelays


def test_shares_decide_how_many() -> None:
    parts = [{"share": 3, "name": "constant", "seconds": 10.0}, {"share": 1, "name": "constant", "seconds": 99.0}]
    mean = MixtureDelays(parts=parts).build(8000, model_bytes=0, seed=0).expected()
    assert set(mean) == {10.0, 99.0}
    assert np.mean(mean == 99.0) == pytest.approx(0.25, abs=0.02)


def test_two_parts_of_one_kind_are_not_copies() -> None:
    part = {"share": 1.0, "name": "uniform"}
    mean = MixtureDelays(parts=(part, part)).build(400, model_bytes=0, seed=0).expected()
    assert len(set(mean)) == 400


def test_a_single_part_and_an_empty_one() -> None:
    parts = ({"share": 1.0, "name": "constant"}, {"share": 1e-12, "name": "nycmesh"})
    np.testing.assert_array_equal(MixtureDelays(parts=parts).build(5, model_bytes=0, seed=0).draw(2), 60.0)


def test_a_mixture_of_mixtures() -> None:
    inner = [{"share": 1.0, "name": "constant", "seconds": 7.0}]
    parts = [{"share": 1.0, "name": "mixture", "parts": inner}]
    np.testing.assert_array_equal(MixtureDelays(parts=parts).build(3, model_bytes=0, seed=0).expected(), 7.0)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((), "parts must be a list of tables"),
        ("lognormal", "parts must be a list of tables"),
        ([{"share": 1.0}], "part 0 of the mixture must be a table with 'share' and 'name'"),
        ([{"share": 0.0, "name": "constant"}], "the share of part 0 of the mixture must be above 0"),
        ([{"share": 1.0, "name": "warp"}], "there is no delay model 'warp'"),
        ([{"share": 1.0, "name": "base"}], "there is no delay model 'base'"),
        ([{"share": 1.0, "name": "../x"}], "there is no delay model"),
        ([{"share": 1.0, "name": 5}], "there is no delay model 5"),
        ([{"share": 1.0, "name": "constant", "sec": 1.0}], "has no option 'sec'; its options are seconds, jitter"),
        ([{"share": 1.0, "name": "constant", "seconds": -1.0}], "seconds of constant must be above 0"),
    ],
)
def test_bad_parts(parts: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        MixtureDelays(parts=parts)


def test_the_plain_models() -> None:
    np.testing.assert_array_equal(ConstantDelays(seconds=5.0).build(3, model_bytes=9, seed=1).draw(7), 5.0)
    mean = UniformDelays(seconds=[10, 20]).build(4000, model_bytes=0, seed=0).expected()
    assert 10 <= mean.min() < 10.1
    assert 19.9 < mean.max() <= 20
    with pytest.raises(InputError, match="seconds of uniform must run from the smaller"):
        UniformDelays(seconds=(9.0, 3.0))
    with pytest.raises(InputError, match="seconds of constant must be above 0"):
        ConstantDelays(seconds=0.0)
