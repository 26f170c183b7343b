"""The server rule fednova against its paper's definition: a_i of SGD, momentum and the proximal term, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace.core.server_rule import Gather, Source
from fedpace.server.average import Average
from fedpace.server.fednova import Fednova

RULE = Fednova()


def step(rule, updates, weights, sources):
    gather = Gather(rule, np.zeros(len(updates[0])))
    model = np.linspace(-1, 1, len(updates[0]))
    for update, weight, source in zip(updates, weights, sources, strict=True):
        gather.add(model + update, model, weight, source)
    after, _ = rule.apply(None, model, gather.answers())
    return after - model


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 5.0)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_the_definition(clients, seed):
    """x <- x - tau_eff sum p_i eta d_i, with d_i = G_i a_i / |a_i| and tau_eff = sum p_i tau_i."""
    rng = np.random.default_rng(seed)
    steps, raw = np.array([tau for tau, _ in clients]), np.array([weight for _, weight in clients])
    p, eta = raw / raw.sum(), 0.1
    gradients = [rng.normal(size=(tau, 4)) for tau in steps]
    updates = [-eta * g.sum(axis=0) for g in gradients]
    expected = -(p @ steps) * eta * sum(w * g.mean(axis=0) for w, g in zip(p, gradients, strict=True))
    sources = [Source(i, 0, w, steps=float(tau)) for i, (w, tau) in enumerate(zip(p, steps, strict=True))]
    np.testing.assert_allclose(step(RULE, updates, p, sources), expected, rtol=1e-9, atol=1e-12)


def test_equal_steps_are_fedavg():
    rng = np.random.default_rng(0)
    updates, p = rng.normal(size=(3, 4)), np.array([0.5, 0.3, 0.2])
    sources = [Source(i, 0, w, steps=7.0) for i, w in enumerate(p)]
    np.testing.assert_allclose(step(RULE, updates, p, sources), step(Average(), updates, p, sources), rtol=1e-12)


def test_more_local_steps_do_not_mean_more_weight():
    """Two clients with optima -1 and 1 and equal shares: FedNova's fixed point is 0, FedAvg's is not."""
    lr, steps, optima = 0.05, (2, 40), np.array([-1.0, 1.0])
    found = {}
    for rule in (Average(), RULE):
        model = np.zeros(1)
        for _ in range(300):
            gather = Gather(rule, np.zeros(1))
            for client, (tau, optimum) in enumerate(zip(steps, optima, strict=True)):
                local = model.copy()
                for _ in range(tau):
                    local -= lr * (local - optimum)
                gather.add(local, model, 0.5, Source(client, 0, 0.5, steps=float(tau)))
            model, _ = rule.apply(None, model, gather.answers())
        found[rule.name] = float(model[0])
    assert found["average"] > 0.7
    assert abs(found["fednova"]) < abs(found["average"]) / 2  # not 0: a client's later steps see another gradient


def local(tau, *, momentum=0.0, proximal=0.0):
    """|a_i| by unrolling the local updates for gradients of 1 that do not depend on the model: x_tau / -eta."""
    moved, velocity = 0.0, 0.0
    for _ in range(tau):
        velocity = momentum * velocity + 1.0
        moved = (1 - proximal) * moved + velocity
    return moved


@pytest.mark.parametrize("tau", [1, 2, 5, 30])
def test_lengths_of_momentum_and_of_the_proximal_term(tau):
    steps = np.array([float(tau)])
    assert Fednova().lengths(steps)[0] == tau
    assert Fednova(momentum=0.9).lengths(steps)[0] == pytest.approx(local(tau, momentum=0.9))
    assert Fednova(proximal=0.2).lengths(steps)[0] == pytest.approx(local(tau, proximal=0.2))


def test_work_where_the_steps_are_unknown():
    updates, p = np.array([[2.0], [8.0]]), np.array([0.5, 0.5])
    by_work = [Source("a", 0, 0.5, work=0.5), Source("b", 0, 0.5, work=2.0)]
    # tau_eff = 1.25; 1.25 (0.5 x 2 / 0.5 + 0.5 x 8 / 2) = 5
    np.testing.assert_allclose(step(RULE, updates, p, by_work), [5.0])


def test_without_sources_it_averages():
    gather = Gather(RULE, np.zeros(2))
    gather.add(np.array([1.0, 3.0]), np.zeros(2), 0.5)
    gather.add(np.array([3.0, 3.0]), np.zeros(2), 0.5)
    after, _ = RULE.apply(None, np.zeros(2), gather.answers())
    np.testing.assert_allclose(after, [2.0, 3.0])
