"""Fed-CBS: QCID by both formulas, and the draws by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace.selectors.fed_cbs import FLOOR, FedCbs, imbalance


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 10))
def test_qcid_by_both_formulas(seed, members, classes):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 500, members).astype(float)
    a = rng.dirichlet(np.ones(classes), members)
    # The form that the server can compute from encrypted products: (sum s_ij) / (sum n)^2 - 1 / C.
    s = np.outer(sizes, sizes) * (a @ a.T)
    np.testing.assert_allclose(
        imbalance((sizes[:, None] * a).sum(axis=0)), s.sum() / sizes.sum() ** 2 - 1 / classes, atol=1e-12
    )


def test_qcid_of_the_extremes():
    np.testing.assert_allclose(imbalance(np.array([[5.0, 0, 0], [2, 2, 2], [0, 0, 0]])), [2 / 3, 0, 2 / 3], atol=1e-15)


def chances(labels, k, first):
    """Return the probability of each ordered draw, from the definition."""
    n = len(labels)
    found = {}
    for order in itertools.permutations(range(n), k):
        p, rest = first[order[0]] / first.sum(), [i for i in range(n) if i != order[0]]
        together = labels[order[0]]
        for position, pick in enumerate(order[1:], start=2):
            score = {i: (imbalance(together + labels[i]) + FLOOR) ** -position for i in rest}
            p *= score[pick] / sum(score.values())
            together, rest = together + labels[pick], [i for i in rest if i != pick]
        found[frozenset(order)] = found.get(frozenset(order), 0) + p
    return found


@pytest.mark.parametrize("step", [0, 9])
def test_draws_follow_the_definition(view, step):
    labels = np.array([[9.0, 1, 0], [1, 8, 1], [0, 2, 9], [4, 4, 3]])
    times = np.array([1, 5, 0, 2])
    shown = view(4, step=step, labels=labels, participations=times)
    bonus = 10 * np.sqrt(3 * np.log(step + 1) / (2 * np.array([1, 5, 1, 2])))
    expected = chances(labels, 3, 1 / (imbalance(labels) + FLOOR) + bonus)
    rng = np.random.default_rng(0)
    seen = dict.fromkeys(expected, 0)
    for _ in range(4000):
        seen[frozenset(FedCbs(k=3).select(None, shown, rng)[0].clients.tolist())] += 1
    for members, p in expected.items():
        assert abs(seen[members] / 4000 - p) < 0.035


def test_large_cohorts_of_balanced_clients_do_not_underflow(view):
    shown = view(300, labels=np.full((300, 5), 7.0))
    cohort, _ = FedCbs(k=200).select(None, shown, np.random.default_rng(0))
    assert len(set(cohort.clients.tolist())) == 200
    assert cohort.why.objective == pytest.approx(0)


def test_it_balances_better_than_chance(view):
    labels = np.kron(np.eye(5), np.full((8, 1), 20.0)) + 1
    shown = view(40, labels=labels)
    rng = np.random.default_rng(0)
    ours = np.mean([FedCbs(k=10).select(None, shown, rng)[0].why.objective for _ in range(50)])
    chance = np.mean([imbalance(labels[rng.choice(40, 10, replace=False)].sum(axis=0)) for _ in range(200)])
    assert ours < 0.1 * chance


def test_shares_are_the_weights(view):
    shown = view(3, share=[0.2, 0.3, 0.5])
    np.testing.assert_allclose(FedCbs(k=3).select(None, shown, np.random.default_rng(0))[0].weights, [0.2, 0.3, 0.5])
