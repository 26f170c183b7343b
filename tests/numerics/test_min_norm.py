"""Fujishige-Wolfe: what it promises on submodular functions, and that it survives the paper's."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.numerics import best_prefix, min_norm_minimiser


def objective(B, delay, empty):
    """The paper's g with a large finite value where the bound says nothing."""

    def g(mask):
        if not mask.any():
            return empty
        h = B[mask].min(axis=0).mean()
        return delay[mask].max() / (1 - 2 * h * h) if 2 * h * h < 0.999 else 1e3 * delay.max()

    return g


def features(seed, n):
    rng = stream(seed, "min-norm")
    moments = rng.uniform(0.6, 1.4, n)
    return np.abs(np.subtract.outer(moments, moments)) / moments.mean(), rng.uniform(1, 10, n)


def test_modular():
    weights = np.array([1.0, -2.0, 0.5, -0.1])
    found = min_norm_minimiser(lambda mask: 7 + weights[mask].sum(), 4)
    assert found.members.tolist() == [1, 3]
    np.testing.assert_allclose(found.value, 4.9)
    assert found.converged
    assert abs(found.gap) < 1e-9


def test_empty_only_where_allowed():
    def f(mask):
        return float(mask.sum()) + 3.0

    assert min_norm_minimiser(f, 3).members.size == 0
    assert min_norm_minimiser(f, 3).value == 3
    found = min_norm_minimiser(f, 3, allow_empty=False)
    assert found.members.size == 1
    assert found.value == 4


def test_a_constant_function_and_one_element():
    assert min_norm_minimiser(lambda mask: 2.0, 3).value == 2
    assert min_norm_minimiser(lambda mask: -1.0 * mask.sum(), 1).members.tolist() == [0]


def test_a_chain_gives_the_same_answer_with_one_call_a_vertex():
    rng = stream(3, "cut")
    graph = rng.integers(0, 3, (7, 7)).astype(float)
    weights = rng.normal(size=7) * 4

    def f(mask):
        return graph[np.ix_(mask, ~mask)].sum() + weights[mask].sum()

    calls = []

    def chain(order):
        calls.append(order)
        return np.array([f(np.isin(np.arange(7), order[: size + 1])) for size in range(7)])

    plain, chained = min_norm_minimiser(f, 7), min_norm_minimiser(f, 7, chain=chain)
    assert plain.members.tolist() == chained.members.tolist()
    assert plain.iterations == chained.iterations
    assert len(calls) == chained.iterations + 2


@pytest.mark.parametrize("seed", range(20))
def test_the_papers_objective_neither_breaks_it_nor_lets_it_beat_the_exact_scan(seed):
    B, delay = features(seed, 9)
    singles = [objective(B, delay, 0.0)(np.arange(9) == i) for i in range(9)]
    for empty in (0.0, min(singles), max(singles), 10 * max(singles)):
        found = min_norm_minimiser(objective(B, delay, empty), 9, max_iter=200, allow_empty=False)
        assert found.members.size
        assert found.iterations <= 200
        assert found.value >= best_prefix(B, delay).objective * (1 - 1e-12)


def test_the_cap_is_reported():
    B, delay = features(1, 12)
    found = min_norm_minimiser(objective(B, delay, 1e3), 12, max_iter=1)
    assert found.iterations == 1
    assert not found.converged


def test_bad_input_is_refused_with_a_sentence():
    with pytest.raises(InputError, match="finite numbers, but inf"):
        min_norm_minimiser(lambda mask: np.inf, 2)
    with pytest.raises(InputError, match="at least one element"):
        min_norm_minimiser(lambda mask: 0.0, 0)
    with pytest.raises(InputError, match="max_iter"):
        min_norm_minimiser(lambda mask: 0.0, 2, max_iter=0)
    with pytest.raises(InputError, match="2 values"):
        min_norm_minimiser(lambda mask: 0.0, 2, chain=lambda order: np.zeros(3))
