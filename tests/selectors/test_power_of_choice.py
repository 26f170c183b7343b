"""Power-of-Choice: picks from the candidates, by their fresh losses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.selectors._drawing import draw_distinct
from fedpace.selectors.power_of_choice import PowerOfChoice


def probed(view, scheme, seed, n, **changes):
    """Return the candidates, and the view after they answered with made-up losses; others have higher stale ones."""
    rng = np.random.default_rng(seed)
    before = view(n, step=3, loss=np.full(n, 100.0), loss_step=np.full(n, 2), **changes)
    probe = scheme.probe(None, before, rng)
    loss, step = before.loss.copy(), before.loss_step.copy()
    loss[probe.clients], step[probe.clients] = rng.random(probe.clients.size), 3
    return probe, view(n, step=3, loss=loss, loss_step=step, **changes)


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d"])
@pytest.mark.parametrize("seed", range(30))
def test_it_picks_the_largest_losses_of_the_candidates(view, variant, seed):
    # Elsewhere a known bug sorts the candidates and then indexes the list of all clients.
    available = np.random.default_rng(seed + 100).random(20) < 0.8
    probe, after = probed(view, PowerOfChoice(k=3, d=6, variant=variant), seed, 20, available=available)
    assert probe.clients.size == 6
    assert probe.kind == "loss"
    assert available[probe.clients].all()
    cohort, _ = PowerOfChoice(k=3, d=6, variant=variant).select(None, after, np.random.default_rng(seed))
    expected = probe.clients[np.argsort(after.loss[probe.clients])[-3:]]
    assert cohort.clients.tolist() == sorted(expected.tolist())
    np.testing.assert_allclose(cohort.weights, 1 / 3)
    np.testing.assert_allclose(cohort.why.objective, after.loss[expected].mean())


def test_the_mini_batch_is_asked_for(view):
    probe = PowerOfChoice(k=2, variant="cpow-d", batch=17).probe(None, view(9), np.random.default_rng(0))
    assert probe.samples == 17


@pytest.mark.parametrize("variant", ["pow-d", "cpow-d", "rpow-d", "adapow-d"])
def test_the_first_round_asks_nobody_and_draws_uniformly(view, variant):
    scheme = PowerOfChoice(k=2, variant=variant)
    first = view(4, step=0, share=[1, 0, 0, 0], loss=np.full(4, np.nan), loss_step=np.full(4, -1))
    assert scheme.probe(None, first, np.random.default_rng(0)) is None
    rng = np.random.default_rng(1)
    counts = sum(np.bincount(scheme.select(None, first, rng)[0].clients, minlength=4) for _ in range(2000))
    np.testing.assert_allclose(counts / 2000, 0.5, atol=0.05)


def test_equal_losses_are_drawn_from_at_random(view):
    tied = view(6, step=3, loss=np.ones(6), loss_step=np.full(6, 3))
    rng = np.random.default_rng(2)
    counts = sum(np.bincount(PowerOfChoice(k=2).select(None, tied, rng)[0].clients, minlength=6) for _ in range(3000))
    np.testing.assert_allclose(counts / 3000, 1 / 3, atol=0.04)


def test_rpow_asks_nobody_and_takes_the_unseen_first(view):
    scheme = PowerOfChoice(k=2, d=4, variant="rpow-d")
    seen = view(4, step=5, loss=[9.0, np.nan, 1.0, 3.0], loss_step=[1, -1, 2, 3])
    assert scheme.probe(None, seen, np.random.default_rng(0)) is None
    assert scheme.select(None, seen, np.random.default_rng(0))[0].clients.tolist() == [0, 1]


def test_adapow_goes_from_everybody_to_k(view):
    scheme = PowerOfChoice(k=2, variant="adapow-d", switch=10)
    assert scheme.probe(None, view(8, step=9), np.random.default_rng(0)).clients.tolist() == list(range(8))
    late = view(8, step=10, share=[0.5, 0.5, 0, 0, 0, 0, 0, 0])
    assert scheme.probe(None, late, np.random.default_rng(0)) is None
    assert scheme.select(None, late, np.random.default_rng(0))[0].clients.tolist() == [0, 1]


def test_who_does_not_answer_is_replaced_by_share(view):
    share = np.array([0, 0, 0.5, 0.5, 0, 0])
    silent = view(6, step=3, loss_step=[3, 0, 0, 0, 0, 0], share=share)
    cohort, _ = PowerOfChoice(k=3).select(None, silent, np.random.default_rng(0))
    assert cohort.clients.tolist() == [0, 2, 3]
    assert "1 candidates answered" in cohort.why.status


@given(st.integers(1, 6), st.lists(st.floats(0, 1), min_size=6, max_size=6), st.integers(0, 1000))
def test_candidates_are_distinct_and_those_of_weight_zero_come_last(k, weight, seed):
    weight = np.array(weight)
    drawn = draw_distinct(np.arange(6), weight, k, np.random.default_rng(seed))
    assert len(set(drawn.tolist())) == k
    assert (weight[drawn] > 0).sum() == min(k, (weight > 0).sum())


def test_candidates_are_drawn_as_numpy_draws_them():
    weight = np.array([0.5, 0.3, 0.15, 0.05])
    ours, theirs = np.zeros(4), np.zeros(4)
    a, b = np.random.default_rng(0), np.random.default_rng(1)
    for _ in range(20_000):
        ours[draw_distinct(np.arange(4), weight, 2, a)] += 1
        theirs[b.choice(4, 2, replace=False, p=weight)] += 1
    np.testing.assert_allclose(ours / 20_000, theirs / 20_000, atol=0.015)


def test_options_are_checked():
    with pytest.raises(InputError, match="d of power-of-choice must be at least k = 5"):
        PowerOfChoice(k=5, d=4)
    with pytest.raises(InputError, match="variant"):
        PowerOfChoice(variant="pow")
