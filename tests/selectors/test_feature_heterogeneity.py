"""The shared start of both DelayHet schemes: who counts, and B scaled down, never up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from views import view_of_moments

from fedpace import View, make_selector
from fedpace._base.errors import InputError
from fedpace.moments.bank import MAX_MEAN_B
from fedpace.selectors._feature_heterogeneity import feature_heterogeneity

SCALES = [0.8, 1.0, 1.2, 5.0]


def make_view(moments=SCALES, share=None, available=None, delay=None):
    return view_of_moments(moments, range(1, len(moments) + 1) if delay is None else delay, share, available)


def gather(view, target=0.0, ridge=0.0):
    return feature_heterogeneity(view, ridge=ridge, target=target, scheme="toy")


def test_b_of_scalar_moments():
    """B_ij = |a_i - a_j| / mean(a) (ERRATA A1)."""
    found = gather(make_view([0.8, 1.0, 1.2]))
    np.testing.assert_allclose(found.matrix, np.abs(np.subtract.outer([0.8, 1.0, 1.2], [0.8, 1.0, 1.2])), atol=1e-6)
    assert found.largest_mean == pytest.approx(0.2, abs=1e-6)
    assert found.scale == 1.0
    np.testing.assert_allclose(found.share, 1 / 3)
    assert found.rows.tolist() == [0, 1, 2]


def test_target_0_leaves_b_alone():
    plain, same = gather(make_view()), gather(make_view(), target=0.0)
    assert plain.scale == same.scale == 1.0
    assert plain.largest_mean > MAX_MEAN_B


@pytest.mark.parametrize("target", [0.1, 0.5, 0.7])
def test_a_large_b_is_scaled_down_to_the_target(target):
    plain, scaled = gather(make_view()), gather(make_view(), target=target)
    assert scaled.largest_mean == plain.largest_mean, "recorded as it was"
    assert scaled.scale == pytest.approx(target / plain.largest_mean)
    np.testing.assert_allclose(scaled.matrix, plain.matrix * scaled.scale)
    assert (scaled.matrix @ scaled.share).max() == pytest.approx(target)


def test_a_small_b_is_never_scaled_up():
    plain = gather(make_view([0.8, 1.0, 1.2]))
    scaled = gather(make_view([0.8, 1.0, 1.2]), target=0.7)
    assert scaled.scale == 1.0
    np.testing.assert_array_equal(scaled.matrix, plain.matrix)


def test_equal_moments_have_no_heterogeneity():
    found = gather(make_view([2.0, 2.0]), target=0.5)
    np.testing.assert_allclose(found.matrix, 0.0, atol=1e-6)
    assert found.scale == 1.0


def test_the_mean_is_weighted_by_shares():
    view = make_view([1.0, 3.0], share=[0.75, 0.25])
    found = gather(view)
    np.testing.assert_allclose(found.matrix, [[0, 2 / 1.5], [2 / 1.5, 0]], atol=1e-6)
    np.testing.assert_allclose(found.largest_mean, 0.75 * 2 / 1.5, atol=1e-6)


def test_a_ridge_damps():
    plain, damped = gather(make_view()), gather(make_view(), ridge=1.0)
    np.testing.assert_allclose(damped.matrix, plain.matrix / 2, atol=1e-6)


def test_the_unknown_do_not_count():
    view = make_view([0.8, None, 1.0, 1.2], share=[0.1, 0.7, 0.1, 0.1], delay=[4.0, np.nan, 5.0, 6.0])
    found = gather(view)
    assert found.rows.tolist() == [0, 2, 3]
    np.testing.assert_allclose(found.share, 1 / 3)
    np.testing.assert_array_equal(found.delay, [4.0, 5.0, 6.0])
    np.testing.assert_allclose(found.matrix, gather(make_view([0.8, 1.0, 1.2])).matrix)


def test_the_absent_count_but_are_no_candidates():
    found = gather(make_view([0.8, 1.0, 1.2], available=[True, False, True]))
    assert found.rows.tolist() == [0, 1, 2]
    assert found.candidates.tolist() == [True, False, True]


def test_no_moments_at_all():
    view = make_view([1.0])
    bare = View(**{**vars(view), "moments": None})
    with pytest.raises(InputError, match="toy needs feature moments, but no client has reported any"):
        gather(bare)


@pytest.mark.parametrize(
    ("ridge", "target", "words"),
    [
        (-0.1, 0.0, "ridge of delayhet-submodular must be at least 0, but -0.1 came"),
        (math.nan, 0.0, "ridge of delayhet-submodular"),
        (0.1, -0.1, "target_heterogeneity of delayhet-submodular must lie in"),
        (0.1, math.nan, "target_heterogeneity of delayhet-submodular"),
        (0.1, 0.71, r"target_heterogeneity of delayhet-submodular must lie in \[0, 0\.707107\), but 0\.71 came"),
        (0.1, 1 / math.sqrt(2), "target_heterogeneity of delayhet-submodular must lie in"),
    ],
)
def test_bad_options(ridge, target, words):
    with pytest.raises(InputError, match=words):
        make_selector("delayhet-submodular", ridge=ridge, target_heterogeneity=target)
    make_selector("delayhet-submodular", ridge=0.0, target_heterogeneity=0.7)
