"""DivFL: whom it asks, whom it picks, what they weigh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpace._base.errors import InputError
from fedpace.core.types import View
from fedpace.selectors.divfl import Divfl

RNG = np.random.default_rng(0)


def mean_distance(clients, sketches, share):
    """Return sum_j w_j min_i |g_i - g_j|, from the definition."""
    gaps = [[np.linalg.norm(sketches[i] - g) for i in clients] for g in sketches]
    return sum(w * min(row) for w, row in zip(share, gaps, strict=True))


@pytest.mark.parametrize("method", ["lazy", "plain", "stochastic"])
def test_the_objective_is_the_definition_and_the_unavailable_count(view, method):
    share = np.arange(1.0, 21) / 210
    shown = view(20, share=share, available=np.arange(20) % 3 > 0)
    cohort, _ = Divfl(k=4, method=method).select(None, shown, np.random.default_rng(1))
    assert len(cohort.clients) == 4
    assert shown.available[cohort.clients].all()
    np.testing.assert_allclose(cohort.why.objective, mean_distance(cohort.clients, shown.updates, share), rtol=1e-12)


def test_one_from_each_group_with_both_weightings(view):
    sketches = np.array([[0, 0], [0.1, 0], [-0.1, 0], [5, 5], [5.1, 5], [np.nan, np.nan]])
    share = np.array([0.2, 0.1, 0.1, 0.3, 0.2, 0.1])
    shown = view(6, updates=sketches, share=share, available=[1, 1, 1, 1, 1, 0])
    cohort, _ = Divfl(k=2).select(None, shown, RNG)
    assert cohort.clients.tolist() == [0, 3]
    np.testing.assert_allclose(cohort.weights, [0.4, 0.6])
    proxy, _ = Divfl(k=2, weights="proxy").select(None, shown, RNG)
    np.testing.assert_allclose(proxy.weights, [4 / 9, 5 / 9])
    assert proxy.mode == "average"


@pytest.mark.parametrize(
    ("mode", "asks"),
    [("exact", [1, 1, 1, 1, 1, 1, 1]), ("every-q", [1, 0, 0, 1, 0, 0, 1]), ("no-overhead", [0] * 7)],
)
def test_when_it_asks_for_gradients(view, mode, asks):
    scheme = Divfl(k=1, mode=mode, q=3)
    for step, due in enumerate(asks):
        probe = scheme.probe(None, view(4, step=step, available=[1, 0, 1, 1]), RNG)
        assert (probe is not None) == bool(due)
        if probe is not None:
            assert probe.kind == "gradient"
            assert probe.clients.tolist() == [0, 2, 3]


def test_every_q_compares_directions_only(view):
    # Client 2 took part since the last asking: its update is 100 times as long as the others' gradients.
    sketches = np.array([[1, 0], [0.9, 0.1], [100, 0], [0, 1], [0.1, 0.9], [0, 0]])
    cohort, _ = Divfl(k=2, mode="every-q").select(None, view(6, updates=sketches), RNG)
    groups = {0: "x", 1: "x", 2: "x", 3: "y", 4: "y", 5: "none"}
    assert {groups[c] for c in cohort.clients.tolist()} == {"x", "y"}
    raw, _ = Divfl(k=2).select(None, view(6, updates=sketches), RNG)
    assert 2 in raw.clients.tolist()


@given(st.integers(0, 10**6), st.integers(2, 15))
def test_relabelling_relabels_the_cohort(seed, n):
    rng = np.random.default_rng(seed)
    sketches, share, order = rng.standard_normal((n, 3)), rng.dirichlet(np.ones(n)), rng.permutation(n)
    blank = {
        "step": 1,
        "now": 0.0,
        "available": np.ones(n, bool),
        "delay": np.ones(n),
        "loss": np.ones(n),
        "loss_step": np.zeros(n),
        "participations": np.ones(n),
    }
    for scheme in (Divfl(k=(n + 1) // 2), Divfl(k=(n + 1) // 2, weights="proxy")):
        plain, _ = scheme.select(None, View(share=share, updates=sketches, **blank), rng)
        moved, _ = scheme.select(None, View(share=share[order], updates=sketches[order], **blank), rng)
        back = np.argsort(order[moved.clients])
        assert order[moved.clients][back].tolist() == plain.clients.tolist()
        np.testing.assert_allclose(moved.weights[back], plain.weights)


def test_missing_sketches_are_refused(view):
    with pytest.raises(InputError, match="divfl needs update sketches"):
        Divfl(k=1).select(None, view(3, updates=None), RNG)
