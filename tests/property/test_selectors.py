"""Relabelling clients relabels the cohort, for the deterministic schemes and the distribution behind the random one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpace import View
from fedpace._base.errors import InfeasibleError
from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.selectors._feature_heterogeneity import feature_heterogeneity
from fedpace.selectors.delayhet_sampling import SamplingObjective
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular


@st.composite
def fleets(draw):
    """A fleet with ties in delay, absent clients and unequal shares, and an order to shuffle it into."""
    count = draw(st.integers(2, 8))
    rng = stream(draw(st.integers(0, 10_000)), "fleet")
    base = rng.normal(size=(5, 3))
    factors = [base + draw(st.sampled_from([0.1, 0.4])) * rng.normal(size=(5, 3)) for _ in range(count)]
    delay = rng.integers(1, 5, count).astype(float) if draw(st.booleans()) else rng.uniform(1, 50, count)
    share = rng.dirichlet(np.ones(count))
    available = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    available[draw(st.integers(0, count - 1))] = True
    return factors, delay, share, available, np.array(draw(st.permutations(range(count))))


def make_view(factors, delay, share, available):
    bank = MomentBank(len(factors))
    for row, factor in enumerate(factors):
        bank.put(row, factor)
    nothing = np.full(len(factors), np.nan)
    return View(
        step=0,
        now=0.0,
        available=available,
        share=share,
        delay=delay,
        loss=nothing,
        loss_step=np.full(len(factors), -1),
        participations=np.zeros(len(factors), int),
        moments=bank,
    )


def both(fleet):
    factors, delay, share, available, order = fleet
    plain = make_view(factors, delay, share, available)
    moved = make_view([factors[row] for row in order], delay[order], share[order], available[order])
    return plain, moved, order


@settings(max_examples=80, deadline=None)
@given(
    fleets(),
    st.sampled_from(
        [
            DelayhetSubmodular(),
            DelayhetSubmodular(target_heterogeneity=0.5),
            DelayhetSubmodular(solver="min-norm", target_heterogeneity=0.5),
        ]
    ),
)
def test_relabelling_clients_relabels_the_cohort(fleet, selector):
    plain, moved, order = both(fleet)
    try:
        one, _ = selector.select(None, plain, stream(0))
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            selector.select(None, moved, stream(0))
        return
    other, _ = selector.select(None, moved, stream(0))
    weights = dict(zip(one.clients.tolist(), one.weights, strict=True))
    back = dict(zip(order[other.clients].tolist(), other.weights, strict=True))
    assert weights.keys() == back.keys()
    for client, weight in weights.items():
        assert back[client] == pytest.approx(weight, abs=1e-9)
    assert one.why.objective == pytest.approx(other.why.objective)


# The same fleets in every run: once in hundreds, a step of the capped search is accepted or not by a last bit.
@settings(max_examples=15, deadline=None, derandomize=True)
@given(fleets(), st.integers(1, 4))
def test_relabelling_clients_relabels_the_distribution(fleet, draws):
    plain, moved, order = both(fleet)
    found = []
    for view in (plain, moved):
        problem = feature_heterogeneity(view, ridge=0.1, target=0.4, scheme="test")
        p = np.zeros(view.clients)
        p[problem.candidates], _ = SamplingObjective.of(problem, draws).minimise(6)
        found.append(p)
    np.testing.assert_allclose(found[1], found[0][order], atol=1e-5)
